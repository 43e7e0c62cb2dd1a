"""Values of Lightning's checkpoints as plain values of a state, and back.

A checkpoint has values that a state of mvc cannot contain: paths, counters, hyper-parameters in an
``AttributeDict``. Each such value becomes a plain value (a number, text, list or dictionary), and
its type is recorded. ``_KINDS`` has all types that can be recorded. A value of any other type is
refused: to restore it, mvc would have to run code that the file names.
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.fabric.utilities.data import AttributeDict

from mvc.errors import DamagedData, UnsupportedTensor
from mvc.structure import MAX_DEPTH, part_name

KeyPath = tuple[Any, ...]
_PLAIN = {type(None), bool, int, float, complex, str, bytes, dict, OrderedDict, list, tuple}
_FACTORIES: dict[str, Any] = {f.__name__: f for f in (bool, dict, float, int, list, set, str)}


class _Kind(NamedTuple):
    """A type, and functions that convert its values to plain values and back."""

    type: type
    out: Callable[[Any], Any]
    back: Callable[[Any], Any]


def _sorted(values: Any) -> list[Any]:
    return sorted(values, key=repr)  # sorted, because a set's order differs in every process


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(name)
    return dtype


def _state_dict(stored: Any) -> OrderedDict[str, Any]:
    state = OrderedDict(stored["items"])
    state._metadata = stored["metadata"]  # type: ignore[attr-defined]
    return state


_KINDS = {
    "attributes": _Kind(AttributeDict, dict, AttributeDict),
    "counter": _Kind(Counter, dict, Counter),
    "date": _Kind(date, date.isoformat, date.fromisoformat),
    "datetime": _Kind(datetime, datetime.isoformat, datetime.fromisoformat),
    "default": _Kind(
        defaultdict,
        lambda v: {"factory": v.default_factory and v.default_factory.__name__, "items": dict(v)},
        lambda v: defaultdict(v["factory"] and _FACTORIES[v["factory"]], v["items"]),
    ),
    "device": _Kind(torch.device, str, torch.device),
    "dtype": _Kind(torch.dtype, lambda v: str(v).removeprefix("torch."), _dtype),
    "frozenset": _Kind(frozenset, _sorted, frozenset),
    "namespace": _Kind(Namespace, lambda v: dict(vars(v)), lambda v: Namespace(**v)),
    "parameter": _Kind(
        torch.nn.Parameter,
        lambda v: {"tensor": v.detach(), "grad": v.requires_grad},
        lambda v: torch.nn.Parameter(v["tensor"], requires_grad=v["grad"]),
    ),
    "path": _Kind(type(Path()), str, Path),
    "pure-path": _Kind(PurePosixPath, str, PurePosixPath),
    "set": _Kind(set, _sorted, set),
    "size": _Kind(torch.Size, list, torch.Size),
    "state-dict": _Kind(
        OrderedDict, lambda v: {"items": OrderedDict(v), "metadata": v._metadata}, _state_dict
    ),
    "timedelta": _Kind(
        timedelta, lambda v: [v.days, v.seconds, v.microseconds], lambda v: timedelta(*v)
    ),
}
_NAMES = {kind.type: name for name, kind in _KINDS.items() if name != "state-dict"}


def plain(value: Any, name: str) -> dict[str, Any]:
    """``value`` in types that a state can contain, and the original types of converted values.

    Tensors are not copied. If a value cannot be converted, raises UnsupportedTensor with the keys
    of this value below ``name``.
    """
    kinds: list[list[Any]] = []
    return {"value": _out(value, (), name, kinds), "kinds": kinds}


def _out(value: Any, keys: KeyPath, name: str, kinds: list[list[Any]]) -> Any:
    if len(keys) > MAX_DEPTH // 2:
        raise UnsupportedTensor(f"{_text(name, keys)[:200]} is nested too deeply")
    kind = _NAMES.get(type(value))
    if type(value) is OrderedDict and hasattr(value, "_metadata"):
        kind = "state-dict"
    if not _is_known(value, kind):
        cls = f"{type(value).__module__}.{type(value).__qualname__}"
        raise UnsupportedTensor(
            f"{_text(name, keys)} is of type {cls}, which mvc cannot store exactly",
            hint="use numbers, texts, tensors and containers of them; for hyper-parameters "
            "use save_hyperparameters(ignore=[...])",
        )
    if kind is not None:
        kinds.append([list(keys), kind])
        value = _KINDS[kind].out(value)
    return _converted(value, keys, lambda inner, where: _out(inner, where, name, kinds))


def _is_known(value: Any, kind: str | None) -> bool:
    if type(value) is defaultdict:
        return value.default_factory in {None, *_FACTORIES.values()}
    plain_type = kind is not None or type(value) in _PLAIN
    return plain_type or isinstance(value, torch.Tensor | np.ndarray | np.generic)


def _text(name: str, keys: KeyPath) -> str:
    return ".".join([name, *(part_name(key) for key in keys)])


def _converted(value: Any, keys: KeyPath, convert: Callable[[Any, KeyPath], Any]) -> Any:
    """A container with its items converted. Any other value is returned unchanged."""
    if type(value) in {dict, OrderedDict}:
        return type(value)((k, convert(v, (*keys, k))) for k, v in value.items())
    if type(value) in {list, tuple}:
        return type(value)(convert(v, (*keys, i)) for i, v in enumerate(value))
    return value


def original(stored: Any) -> Any:
    """The inverse of ``plain``. Raises DamagedData."""
    try:
        kinds = {tuple(keys): _KINDS[kind] for keys, kind in stored["kinds"]}
        return _back(stored["value"], (), kinds)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DamagedData("the stored Lightning checkpoint is malformed") from error


def _back(value: Any, keys: KeyPath, kinds: dict[KeyPath, _Kind]) -> Any:
    value = _converted(value, keys, lambda inner, where: _back(inner, where, kinds))
    return kinds[keys].back(value) if keys in kinds else value
