"""Layouts: the base of each new version, and when a chain ends with a full record.

In the layout ``chain`` the base is always the previous version; ``skip``: docs/decisions.md, "Skip
deltas". Versions are numbered from the one where the chain of the last version begins
(``Graph.chain``), which is number 0. Newer full records may exist outside that chain.

If the versions of an object are published at regular distances, with other operations between them,
k counts these distances. At irregular distances k counts operations; the versions have some of the
numbers 0, 1, 2, ..., and the rule is the same: a version that begins a new block of b^v numbers is
coded against the first version of the chain in the previous block. So no chain has more than b - 1
deltas of one size.
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
"""The syntax of the setting ``store.layout``."""
_INTERVAL = {"chain": 28, "skip": 64}


RUN = 32
"""Maximum number of consecutive versions that are predicted by an optimizer's steps.

A plain version takes three to five times the bytes of a predicted one: after a run of 32 it adds a
tenth to the bytes. The last version of such a run takes 32 payloads per tensor to recover.
"""


def before_run(chain: tuple[Link, ...], run: int | None = None) -> tuple[Link, ...]:
    """The links of a chain before its final run: bases for later versions.

    ``run``: the operation that published the run's first version, for a tensor of the run that is
    coded by plain deltas. If the chain begins within the run, only its unpredicted links count.
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
        """From a text that matches ``PATTERN``; ``interval`` overrides the layout's default."""
        if not re.fullmatch(PATTERN, text):
            raise ValueError(text)
        kind, _, number = text.partition(":")
        if kind == "skip":
            return cls(interval or _INTERVAL[kind], int(number))
        return cls(int(number) if number else interval or _INTERVAL[kind])

    def __str__(self) -> str:
        return f"skip:{self.step}" if self.step else f"chain:{self.interval}"

    def base(self, chain: Sequence[Link], sequence: int) -> Link:
        """The link of ``chain`` that is the base of the next version.

        ``chain``: as ``Graph.chain`` of the last version; ``sequence``: the operation that
        publishes the next one.
        """
        if not self.step:
            return chain[-1]
        *known, new = _positions(chain, sequence)
        if not 0 <= known[-1] < new:
            return chain[-1]
        block = 1
        while new // (block * self.step) != known[-1] // (block * self.step):
            block *= self.step
        within = [at // block for at in known]
        return chain[within.index(within[-1])]

    def returns_to(self, chain: Sequence[Link], sequence: int) -> bool:
        """Whether a version after the next one has the last one of ``chain`` as its base.

        With ``skip`` that is so if a block of b versions begins there.
        """
        return bool(self.step) and _begins_block(
            self.step, tuple(link.sequence for link in chain), sequence
        )

    def ends(self, chain: Sequence[Link], sequence: int) -> bool:
        """Whether the version after ``chain`` must be stored in full.

        With ``skip``, the number of versions since the chain began is certain if they were
        published at regular distances. Otherwise the chain ends when it is as deep as one of
        ``interval`` versions may be.
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

        If that version is stored in full, too, an additional delta shortens no path: the version
        between is equally near to both.
        """
        if self.step:
            return bool(chain) and _positions(chain, sequence)[-1] < 3
        return bool(chain) and chain[-1].depth < 2

    def saved(self, chain: Sequence[Link], sequence: int) -> float:
        """About how many deltas recoveries save if the next version is stored in full.

        Each version counts once. In a chain, versions nearer to the next one than to the first are
        decoded from there, which halves the deltas. With ``skip`` few are; but the same number of
        later versions needs about n (b - 1) / (2 ln b) fewer deltas in a new chain than at the end
        of a chain of n.
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
        """The most versions, the full one included, that have at most ``deltas`` deltas."""
        if not self.step:
            return deltas + 1
        digits, first = divmod(deltas + 1, self.step - 1)
        return ENDLESS if digits > 30 else (first + 1) * int(self.step**digits) - 1

    def _is_power(self, gap: int) -> bool:
        while gap > 1 and gap % self.step == 0:
            gap //= self.step
        return gap == 1


def _positions(chain: Sequence[Link], sequence: int) -> tuple[int, ...]:
    """Distances of each version from the first, the next one last, in units of regular steps."""
    return _regular((*[link.sequence for link in chain], sequence))


@lru_cache(maxsize=256)  # the tensors of a version have few different chains
def _regular(sequences: tuple[int, ...]) -> tuple[int, ...]:
    distances = [number - sequences[0] for number in sequences]
    unit = gcd(*distances) or 1
    return tuple(at // unit for at in distances)


@lru_cache(maxsize=256)
def _begins_block(step: int, chain: tuple[int, ...], sequence: int) -> bool:
    if len(chain) < 2:
        return bool(chain)
    *_, before, last, _ = _regular((*chain, sequence))
    return before // step != last // step
