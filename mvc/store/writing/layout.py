"""Which earlier version a new one is coded against, and when a chain ends in a full record.

In the layout ``chain`` it is always the version before; ``skip``: docs/decisions.md, "Skip deltas".
Version 0 is where the way to the last version begins (``Graph.chain``). There may be newer full
records that are not on that way.

Where other operations lie between the versions of an object, at regular distances, k
counts these distances. At irregular ones k counts operations, its versions have some of the
numbers 0, 1, 2, ..., and the rule is the same: a version that begins a new block of b^v numbers
is coded against the first version on the way that lies in the block before. So no way has more
than b - 1 deltas of one size.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import count, pairwise
from math import gcd, log
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from mvc.store.graph.search import Link


ENDLESS = 1 << 30
"""An interval that no chain reaches."""
PATTERN = r"skip:([2-9]|1[0-6])|chain(:([1-9][0-9]{0,3}|10000))?"
"""How ``store.layout`` is written."""
_INTERVAL = {"chain": 28, "skip": 64}


RUN = 32
"""Versions that follow each other by an optimizer's steps, before one is coded plainly.

A plain version takes three to five times the bytes of a predicted one: a run of 32 adds a tenth to
the bytes, and its last version takes 32 payloads a tensor to recover.
"""


def before_run(chain: tuple[Link, ...], run: int | None = None) -> tuple[Link, ...]:
    """The links of a chain before the run with which it ends: what later versions go on from.

    ``run``: the operation that published its first version, for a tensor that is itself coded
    plainly in the run of others. Where the chain begins in the run, only its own links count.
    """
    own = next((i for i, link in enumerate(chain) if link.predicted), len(chain))
    if run is None:
        return chain[: own or 1]
    end = next((i for i, link in enumerate(chain[:own]) if link.sequence >= run), own)
    return chain[: end or own or 1]


class Layout(Struct, frozen=True, dict=True):
    """``interval``: versions from one full record to the next. ``step``: b, or 0 for a chain."""

    interval: int = ENDLESS
    step: int = 0

    @classmethod
    def parse(cls, text: str, interval: int | None = None) -> Layout:
        """From a text that ``PATTERN`` matches.

        ``interval``: the one that is set; by default the layout's own.
        """
        if not re.fullmatch(PATTERN, text):
            raise ValueError(text)
        kind, _, number = text.partition(":")
        if kind == "skip":
            return cls(interval or _INTERVAL[kind], int(number))
        return cls(int(number) if number else interval or _INTERVAL[kind])

    def __str__(self) -> str:
        return f"skip:{self.step}" if self.step else f"chain:{self.interval}"

    def base(self, chain: Sequence[Link], sequence: int) -> Link:
        """The version to code a new one against, of those that lead to the last one.

        ``chain``: as ``Graph.chain``; ``sequence``: the operation that publishes the new one.
        """
        if not self.step:
            return chain[-1]
        *there, new = _positions(chain, sequence)
        if not 0 <= there[-1] < new:
            return chain[-1]
        block = 1
        while new // (block * self.step) != there[-1] // (block * self.step):
            block *= self.step
        within = [at // block for at in there]
        return chain[within.index(within[-1])]

    def returns_to(self, chain: Sequence[Link], sequence: int) -> bool:
        """Whether a later version than the next one is coded against the last one of ``chain``.

        With ``skip`` that is so where a block of b versions begins.
        """
        return bool(self.step) and _begins_block(
            self.step, tuple(link.sequence for link in chain), sequence
        )

    def ends(self, chain: Sequence[Link], sequence: int) -> bool:
        """Whether the version after ``chain`` is to be stored in full.

        With ``skip`` the number of versions since the chain began is certain where they were
        published at regular distances. Else the chain ends where it is as deep as one of
        ``interval`` versions gets.
        """
        if not chain:
            return False
        if not self.step:
            return chain[-1].depth + 1 >= self.interval
        positions = _positions(chain, sequence)
        if positions[-1] < self.interval:
            return False
        *gaps, last = (b - a for a, b in pairwise(positions))
        return (last == 1 and all(map(self._is_power, gaps))) or chain[-1].depth >= self.deepest

    def is_near(self, chain: Sequence[Link], sequence: int) -> bool:
        """Whether the version after ``chain`` is one of the first two after a full record.

        If it is stored in full, too, a delta that leads to it makes no way shorter: the version
        between is as near to either.
        """
        if self.step:
            return bool(chain) and _positions(chain, sequence)[-1] < 3
        return bool(chain) and chain[-1].depth < 2

    def saved(self, chain: Sequence[Link], sequence: int) -> float:
        """About how many deltas recoveries save if the next version is stored in full.

        Each version counts once. In a chain those nearer to the next one than to the first are
        decoded from there, and all together take half of their deltas. With ``skip`` few are, but
        as many versions again take about n (b - 1) / (2 ln b) deltas more at the end of a chain of
        n than in one of their own.
        """
        if not self.step:
            versions = chain[-1].depth + 1
            return versions * (versions + 1) / 4
        return _positions(chain, sequence)[-1] * (self.step - 1) / (2 * log(self.step))

    @cached_property
    def deepest(self) -> int:
        """The most deltas of a version in a chain of ``interval`` versions."""
        if not self.step:
            return self.interval - 1
        return next(deltas for deltas in count() if self.reach(deltas) >= self.interval)

    def reach(self, deltas: int) -> int:
        """The most versions, the full one included, that are so many deltas away at most."""
        if not self.step:
            return deltas + 1
        digits, first = divmod(deltas + 1, self.step - 1)
        return ENDLESS if digits > 30 else (first + 1) * int(self.step**digits) - 1

    def _is_power(self, gap: int) -> bool:
        while gap > 1 and gap % self.step == 0:
            gap //= self.step
        return gap == 1


def _positions(chain: Sequence[Link], sequence: int) -> tuple[int, ...]:
    """How far after the first each version was published, the new one last; in regular steps."""
    return _regular((*[link.sequence for link in chain], sequence))


@lru_cache(maxsize=256)  # the tensors of a version have few different chains
def _regular(sequences: tuple[int, ...]) -> tuple[int, ...]:
    found = [number - sequences[0] for number in sequences]
    unit = gcd(*found) or 1
    return tuple(at // unit for at in found)


@lru_cache(maxsize=256)
def _begins_block(step: int, chain: tuple[int, ...], sequence: int) -> bool:
    if len(chain) < 2:
        return bool(chain)
    *_, before, last, _ = _regular((*chain, sequence))
    return before // step != last // step
