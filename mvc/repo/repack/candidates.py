"""The ways there are to make each blob: stored codings, and ones that could be stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from mvc.io.process import cpu_count
from mvc.limits import SLAB
from mvc.repo.maintenance.inventory import Inventory
from mvc.store.graph.speed import Speed
from mvc.store.packs.records import BLOB

__all__ = ["Candidate", "Candidates", "Node", "found_from_base", "starts_of"]

Node = tuple[bytes, int]
"""A blob's id and the first byte of one of its pieces."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One piece of a blob, alone or from the same piece of ``base``.

    ``stored``: payload bytes. ``reversible``: ``base`` can be had back from it. ``place``
    is where it lies; None for what could be stored, ``sure`` if its form is known by trial.
    ``grouped`` ones share a payload, of which ``stored`` is their part. A ``forward_only`` could
    not be walked back even if it were published the other way round.
    """

    id: bytes
    start: int
    nbytes: int
    stored: int
    base: bytes | None = None
    reversible: bool = False
    place: tuple[int, int, int] | None = None
    grouped: bool = False
    sure: bool = True
    forward_only: bool = False

    @property
    def node(self) -> Node:
        return self.id, self.start

    def ns(self, speed: Speed) -> float:
        """Estimated nanoseconds on all processors to read and decode it."""
        rate = speed.full if self.base is None else speed.delta
        seconds = speed.latency + self.stored / speed.read + self.nbytes / rate
        return seconds * 1e9 / cpu_count()


def starts_of(nbytes: int) -> range:
    """The first bytes of a blob's pieces."""
    return range(0, max(nbytes, 1), SLAB)


class Candidates:
    """What is stored, by piece."""

    def __init__(self, found: Inventory) -> None:
        self._by_node: dict[Node, list[Candidate]] = defaultdict(list)
        self.groups: dict[tuple[int, int], list[Candidate]] = defaultdict(list)
        for coding in found.all_codings():
            member = coding.member
            if member.kind != BLOB:
                continue
            candidate = Candidate(
                member.id,
                member.start,
                member.nbytes,
                coding.stored,
                coding.base,
                coding.reversible,
                coding.place,
                coding.record.header.group,
                forward_only=bool(member.coding.bridge),
            )
            self._by_node[candidate.node].append(candidate)
            if candidate.grouped:
                self.groups[coding.record.pack, coding.record.offset].append(candidate)

    def __iter__(self) -> Iterator[Candidate]:
        for candidates in self._by_node.values():
            yield from candidates

    def of(self, node: Node) -> list[Candidate]:
        """Every stored coding of a piece."""
        return self._by_node.get(node, [])

    def full(self, id_: bytes, nbytes: int) -> list[Candidate] | None:
        """A blob's full records, the smallest of each piece; None if a piece has none."""
        found = [
            min((o for o in self.of((id_, start)) if o.base is None), key=_stored, default=None)
            for start in starts_of(nbytes)
        ]
        return (
            None if None in found else [candidate for candidate in found if candidate is not None]
        )

    def delta(self, id_: bytes, nbytes: int, bases: Collection[bytes]) -> list[Candidate] | None:
        """A blob's codings against some of ``bases``, the smallest of each piece.

        Pieces that a base does not have are full. None if a piece has no such coding, or
        none of them is a delta.
        """
        found: list[Candidate] = []
        for start in starts_of(nbytes):
            fitting = [o for o in self.of((id_, start)) if o.base is None or o.base in bases]
            deltas = [o for o in fitting if o.base is not None]
            best = min(deltas or fitting, key=_stored, default=None)
            if best is None:
                return None
            found.append(best)
        return found if any(candidate.base is not None for candidate in found) else None


def found_from_base(found: Inventory, id_: bytes, base: bytes | None) -> bool:
    """Whether readers at ``base`` would find a new delta that makes ``id_`` from it."""
    return base is not None and found.entry_of[base] <= found.entry_of[id_]


def _stored(candidate: Candidate) -> int:
    return candidate.stored
