"""What the last versions of a repository hold of trainings, so that none is read twice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from mvc.adapters.optimizers.states import FileState, ParameterId
    from mvc.adapters.optimizers.weights import WeightKey

_MOST = 32
_Value = TypeVar("_Value")


class _LastFew(OrderedDict[Hashable, _Value], Generic[_Value]):
    def __setitem__(self, key: Hashable, value: _Value) -> None:
        super().__setitem__(key, value)
        if len(self) > _MOST:
            self.popitem(last=False)


class Trainings:
    """``states`` of files by path and ``content_id``; ``matched``: weights by ``Step.key``."""

    def __init__(self) -> None:
        self.states: _LastFew[FileState] = _LastFew()
        self.matched: _LastFew[Mapping[ParameterId, WeightKey]] = _LastFew()
