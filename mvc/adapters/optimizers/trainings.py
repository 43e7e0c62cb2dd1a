"""A cache of optimizer states and weights of the newest versions, so that no file is read twice."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from mvc.adapters.optimizers.states import FileState, ParameterId, WeightKey

_MOST = 32
_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class Trainings(Struct):
    """``states``: maps path and ``content_id`` of a file to the optimizers and weights in the file.

    ``matched``: for each optimizer (``Step.key``), maps its parameters to the keys of weights.
    """

    states: dict[tuple[str, bytes], FileState] = {}
    matched: dict[Hashable, Mapping[ParameterId, WeightKey]] = {}


def remember(known: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    """Adds a value to ``known``. If there are too many values, removes the oldest value."""
    known[key] = value
    if len(known) > _MOST:
        del known[next(iter(known))]
