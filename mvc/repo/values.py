"""Metrics and params of versions and annotations: what a caller gives, and what is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mvc.errors import WrongUsage
from mvc.limits import MAX_METRICS, MAX_NAME_BYTES, MAX_PARAMS
from mvc.names import check_key, encode_text, printable


def metrics_from(values: Mapping[str, object]) -> dict[str, float]:
    """Metrics as float64. Raises WrongUsage, which names a value that is no number."""
    result = {}
    for name, value in values.items():
        # torch warns if a loss with its autograd graph is converted.
        detach = getattr(value, "detach", None)
        number: Any = detach() if callable(detach) else value
        try:
            result[name] = float(number)
        except (TypeError, ValueError, RuntimeError):
            raise WrongUsage(f"metric {name!r} is not a number: {value!r}") from None
        except OverflowError:
            raise WrongUsage(f"metric {name!r} does not fit a float64") from None
    return result


def params_from(values: Mapping[str, object]) -> dict[str, str]:
    """Params as texts: a text as it is, anything else as JSON (``0.001``, ``true``, ``[1, 2]``).

    Raises WrongUsage, which names a value that JSON cannot hold.
    """
    import json  # a command that records none has no need of it

    result = {}
    for name, value in values.items():
        try:
            result[name] = (
                value
                if isinstance(value, str)
                else json.dumps(value, default=lambda one: one.item())  # one of numpy or torch
            )
        except (TypeError, ValueError, AttributeError, RuntimeError, RecursionError):
            raise WrongUsage(
                f"param {name!r} is neither text nor plain data: {type(value).__name__}"
            ) from None
    return result


def check_values(metrics: Mapping[str, float], params: Mapping[str, str]) -> None:
    """Raises WrongUsage or InvalidName for metrics and params that no version can have."""
    if len(metrics) > MAX_METRICS:
        raise WrongUsage(f"more than {MAX_METRICS} metrics")
    if len(params) > MAX_PARAMS:
        raise WrongUsage(f"more than {MAX_PARAMS} params")
    for name in metrics:
        check_key(name, "metric")
    for name, value in params.items():
        check_key(name, "param")
        if len(encode_text(value)) > MAX_NAME_BYTES:
            raise WrongUsage(f"the param {printable(name)} is longer than {MAX_NAME_BYTES} bytes")
