"""The rules that optimizers' steps followed in the last versions, so that few are tried again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mvc.adapters.optimizers.units import Unit
    from mvc.codecs.optim import ChosenRule


_USES = 32  # versions after which all rules are tried again
_REMEMBERED = 4096


class KnownRules:
    """By unit the rules that the last versions followed, of an open repository."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[Mapping[str, ChosenRule], int]] = {}

    def likely(self, unit: Unit) -> Mapping[str, ChosenRule]:
        """What predicted each tensor of a unit the last time; nothing after many such times."""
        chosen, uses = self._known.get(_place(unit), ({}, 0))
        self._known[_place(unit)] = chosen, uses + 1
        return chosen if uses < _USES else {}

    def remember(self, unit: Unit, chosen: Mapping[str, ChosenRule]) -> None:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[_place(unit)] = chosen, 0


def _place(unit: Unit) -> object:
    return unit.kinds, *next(iter(unit.members.items()))
