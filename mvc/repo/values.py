"""Converts and checks the metrics (numbers) and params (texts) of versions and annotations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mvc.errors import WrongUsage
from mvc.limits import MAX_METRICS, MAX_NAME_BYTES, MAX_PARAMS
from mvc.names import check_key, encode_text, printable


def metrics_from(values: Mapping[str, object]) -> dict[str, float]:
    """Metrics as float64. Raises WrongUsage with the name of an invalid value."""
    result = {}
    for name, value in values.items():
        # Without ``detach``, torch would warn if the value is a loss with its autograd graph.
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
    """Params as texts: texts unchanged, other values as JSON (``0.001``, ``true``, ``[1, 2]``).

    Raises WrongUsage with the name of a value that JSON cannot represent.
    """
    import json  # slow, and rarely needed

    result = {}
    for name, value in values.items():
        try:
            result[name] = (
                value
                if isinstance(value, str)
                else json.dumps(value, default=lambda one: one.item())  # a number of numpy or torch
            )
        except (TypeError, ValueError, AttributeError, RuntimeError, RecursionError):
            raise WrongUsage(
                f"param {name!r} is neither text nor plain data: {type(value).__name__}"
            ) from None
    return result


def check_values(metrics: Mapping[str, float], params: Mapping[str, str]) -> None:
    """Raises WrongUsage or InvalidName if metrics or params are invalid."""
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
