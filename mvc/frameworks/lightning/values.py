"""What Lightning keeps beside tensors, as the plain values that a commit takes, and back.

A state of mvc holds dictionaries, lists, tuples, numbers, texts, bytes and arrays. Lightning's
checkpoints have more: paths, counters, hyper-parameters in an ``AttributeDict``. Each of these
becomes a plain value, and a list beside it says what stood where. The kinds are a closed
table; a value of any other type is refused by its place, because it could only come back by
running what a file says.
"""

from __future__ import annotations

import argparse
import datetime
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.data import AttributeDict

from mvc.adapters.structure import MAX_DEPTH, part_name
from mvc.errors import DamagedData, UnsupportedTensor

__all__ = ["original", "plain"]

Place = tuple[Any, ...]
_AS_THEY_ARE = {type(None), bool, int, float, complex, str, bytes}
_FACTORIES: dict[str, Any] = {f.__name__: f for f in (bool, dict, float, int, list, set, str)}


@dataclass(frozen=True)
class _Kind:
    """A type with the conversions of its values to plain values and back."""

    type: type
    out: Callable[[Any], Any]
    back: Callable[[Any], Any]


def _sorted(values: Any) -> list[Any]:
    return sorted(values, key=repr)  # the order of a set is another in every process


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise TypeError(name)
    return found


def _from_factory(kept: Any) -> defaultdict[Any, Any]:
    factory = None if kept["factory"] is None else _FACTORIES[kept["factory"]]
    return defaultdict(factory, kept["items"])


def _state_dict(kept: Any) -> OrderedDict[str, Any]:
    made = OrderedDict(kept["items"])
    made._metadata = kept["metadata"]  # type: ignore[attr-defined]
    return made


_KINDS = {
    "attributes": _Kind(AttributeDict, dict, AttributeDict),
    "counter": _Kind(Counter, dict, Counter),
    "date": _Kind(datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "datetime": _Kind(
        datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat
    ),
    "default": _Kind(
        defaultdict,
        lambda v: {"factory": v.default_factory and v.default_factory.__name__, "items": dict(v)},
        _from_factory,
    ),
    "device": _Kind(torch.device, str, torch.device),
    "dtype": _Kind(torch.dtype, lambda v: str(v).removeprefix("torch."), _dtype),
    "frozenset": _Kind(frozenset, _sorted, frozenset),
    "namespace": _Kind(
        argparse.Namespace, lambda v: dict(vars(v)), lambda v: argparse.Namespace(**v)
    ),
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
        datetime.timedelta,
        lambda v: [v.days, v.seconds, v.microseconds],
        lambda v: datetime.timedelta(*v),
    ),
}
_NAMES = {kind.type: name for name, kind in _KINDS.items() if name != "state-dict"}


def plain(value: Any, name: str) -> dict[str, Any]:
    """``value`` in types that a state holds, and what was of another type where.

    Tensors are the same objects. Raises UnsupportedTensor naming the place below ``name``.
    """
    kinds: list[list[Any]] = []
    return {"value": _Out(name, kinds).value(value, ()), "kinds": kinds}


class _Out:
    def __init__(self, name: str, kinds: list[list[Any]]) -> None:
        self._name = name
        self._kinds = kinds

    def value(self, value: Any, place: Place) -> Any:
        if len(place) > MAX_DEPTH // 2:
            raise UnsupportedTensor(f"{self._text(place)[:200]} is nested too deeply")
        kind = self._kind(value, place)
        if kind is not None:
            self._kinds.append([list(place), kind])
            value = _KINDS[kind].out(value)
        if type(value) in {dict, OrderedDict}:
            return type(value)((k, self.value(v, (*place, k))) for k, v in value.items())
        if type(value) in {list, tuple}:
            return type(value)(self.value(v, (*place, i)) for i, v in enumerate(value))
        return value

    def _kind(self, value: Any, place: Place) -> str | None:
        if type(value) is OrderedDict and hasattr(value, "_metadata"):
            return "state-dict"
        if type(value) is defaultdict and value.default_factory not in {None, *_FACTORIES.values()}:
            raise self._refusal(value, place)
        if type(value) in _NAMES:
            return _NAMES[type(value)]
        known = type(value) in {*_AS_THEY_ARE, dict, OrderedDict, list, tuple}
        if not known and not isinstance(value, torch.Tensor | np.ndarray | np.generic):
            raise self._refusal(value, place)
        return None

    def _refusal(self, value: Any, place: Place) -> UnsupportedTensor:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        return UnsupportedTensor(
            f"{self._text(place)} is of type {kind}, which mvc cannot keep exactly",
            hint="keep numbers, texts, tensors and containers of them; for hyper-parameters "
            "use save_hyperparameters(ignore=[...])",
        )

    def _text(self, place: Place) -> str:
        return ".".join([self._name, *(part_name(key) for key in place)])


def original(kept: Any) -> Any:
    """The inverse of ``plain``. Raises DamagedData."""
    try:
        kinds = {tuple(place): _KINDS[kind] for place, kind in kept["kinds"]}
        return _back(kept["value"], (), kinds)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DamagedData("what was kept of a Lightning checkpoint is malformed") from error


def _back(value: Any, place: Place, kinds: dict[Place, _Kind]) -> Any:
    if type(value) in {dict, OrderedDict}:
        value = type(value)((k, _back(v, (*place, k), kinds)) for k, v in value.items())
    elif type(value) in {list, tuple}:
        value = type(value)(_back(v, (*place, i), kinds) for i, v in enumerate(value))
    return kinds[place].back(value) if place in kinds else value
