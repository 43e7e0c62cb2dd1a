"""Layouts choose the delta base of each new version, and which versions are stored in full.

To recover a version of a tensor, mvc decodes a *chain* of versions (``Graph.chain``). The first
version of a chain is stored in full. Each later version is a delta from the version before it in
the chain. In the layout ``chain``, the base of a new version is the previous version. In the layout
``skip``, version k is a delta from version k - b^v, where b^v is the largest power of b that
divides k (docs/decisions.md, "Skip deltas"). Version 0 is the version stored in full.

mvc computes k from the sequence numbers of operations. If the versions of a tensor are always n
operations apart, k counts versions. Otherwise, k counts operations, so some numbers have no
version. Then the numbers are divided into blocks of b^v. If a version begins a new block, its base
is the first version of the chain in the block of the previous version. In both cases, a chain has
at most b - 1 deltas over a distance of b^v.
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
"""Maximum length of a *run*: consecutive versions that mvc predicts from the optimizer's steps.

The version after a run is stored as a plain delta, which takes three to five times the bytes of a
predicted version. So it adds about a tenth to the bytes of 32 predicted versions. To recover the
last version of a run, mvc decodes all versions of the run.
"""


def before_run(chain: tuple[Link, ...], run: int | None = None) -> tuple[Link, ...]:
    """The links (objects) of a chain before the run at its end: possible bases of later versions.

    ``run``: the number of the operation that published the first version of the run. Needed only
    for a tensor that mvc does not predict. If the whole chain is in the run, returns the links
    before the first predicted version, at least one link.
    """
    own = next((i for i, link in enumerate(chain) if link.predicted), len(chain))
    if run is None:
        return chain[: own or 1]
    end = next((i for i, link in enumerate(chain[:own]) if link.sequence >= run), own)
    return chain[: end or own or 1]


class Layout(Struct, frozen=True, dict=True):
    """``interval``: versions between two full records. ``step``: b of ``skip``, 0 for ``chain``."""

    interval: int = ENDLESS
    step: int = 0

    @classmethod
    def parse(cls, text: str, interval: int | None = None) -> Layout:
        """A layout from a text that matches ``PATTERN``.

        ``interval``: used if the text has no interval.
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
        """The link of ``chain`` that is the base of the next version.

        ``chain``: ``Graph.chain`` of the newest version. ``sequence``: number of the operation that
        publishes the next version.
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
        """Whether a version after the next version will be a delta from the end of ``chain``.

        In the layout ``skip``, this is so if the last version of ``chain`` begins a block of b.
        """
        return bool(self.step) and _begins_block(
            self.step, tuple(link.sequence for link in chain), sequence
        )

    def ends(self, chain: Sequence[Link], sequence: int) -> bool:
        """Whether the version after ``chain`` must be stored in full.

        In the layout ``skip``, a chain ends when k reaches ``interval``. If the versions are at
        irregular distances, some numbers below k have no version. Then the chain ends only if it
        has ``deepest`` deltas, too.
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
        """Whether the version after ``chain`` is the first or second after a full record.

        A version that is stored in full is usually stored as a delta, too, so that the versions
        before it can be decoded backwards. This delta is not needed here: at most one version is
        between the two full records.
        """
        if self.step:
            return bool(chain) and _positions(chain, sequence)[-1] < 3
        return bool(chain) and chain[-1].depth < 2

    def saved(self, chain: Sequence[Link], sequence: int) -> float:
        """Estimates how many fewer deltas are decoded if the next version is stored in full.

        This assumes that every version is recovered once. In the layout ``chain``, each version of
        the chain can then be decoded from the nearer full record, which halves the number of
        deltas. In the layout ``skip``, n later versions need about n (b - 1) / (2 ln b) fewer
        deltas in a new chain than at the end of a chain of n versions.
        """
        if not self.step:
            versions = chain[-1].depth + 1
            return versions * (versions + 1) / 4
        return _positions(chain, sequence)[-1] * (self.step - 1) / (2 * log(self.step))

    @cached_property
    def deepest(self) -> int:
        """The maximum number of deltas of a version in a chain of ``interval`` versions."""
        if not self.step:
            return self.interval - 1
        return next(deltas for deltas in count() if self.reach(deltas) >= self.interval)

    def reach(self, deltas: int) -> int:
        """How many versions, from the full version on, need at most ``deltas`` deltas each."""
        if not self.step:
            return deltas + 1
        digits, first = divmod(deltas + 1, self.step - 1)
        return ENDLESS if digits > 30 else (first + 1) * int(self.step**digits) - 1

    def _is_power(self, gap: int) -> bool:
        while gap > 1 and gap % self.step == 0:
            gap //= self.step
        return gap == 1


def _positions(chain: Sequence[Link], sequence: int) -> tuple[int, ...]:
    """The number k of each version of ``chain``, then the number of the next version."""
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
