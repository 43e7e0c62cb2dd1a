"""Candidates: the codings of each piece of a blob that are stored or could be stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from msgspec import Struct

from mvc.limits import PIECE
from mvc.maintenance.graph import StorageGraph
from mvc.model.tensor import TensorSpec
from mvc.store.packs.records import BLOB
from mvc.store.recovery.rates import Rates

Node = tuple[bytes, int]
"""A blob's id and the first byte of one of its pieces."""


class Candidate(Struct, frozen=True):
    """A coding of one piece of a blob: in full, or as a delta from the same piece of ``base``.

    ``nbytes``: raw bytes. ``seconds``: estimated processor time to read and decode it.
    ``stored``: payload bytes; ``grouped`` candidates share a payload, of
    which ``stored`` is their share. ``place``: where it is stored, None if it is not; then
    ``sure`` says whether a trial has confirmed its form. ``reversible``: the base can be
    recovered from it. ``forward_only``: a coding whose stages drop bytes of the base, so that
    it cannot be reversed whichever of the two is published first. ``span``: generations between
    the blob and ``base``, as far as a delta that is not stored was asked for between two versions.
    ``predicted``: by an optimizer's step, which needs the same piece of ``inputs`` as well.
    """

    id: bytes
    start: int
    nbytes: int
    stored: int
    seconds: float
    base: bytes | None = None
    reversible: bool = False
    place: tuple[int, int, int] | None = None
    grouped: bool = False
    sure: bool = True
    forward_only: bool = False
    span: int = 1
    predicted: bool = False
    inputs: tuple[bytes, ...] = ()

    @property
    def node(self) -> Node:
        return self.id, self.start

    @property
    def group(self) -> tuple[int, int]:
        """Pack and offset of the record that it is stored in."""
        assert self.place is not None
        return self.place[:2]

    @property
    def needs(self) -> list[Node]:
        """The pieces that it is decoded from."""
        return [(id_, self.start) for id_ in (self.base, *self.inputs) if id_ is not None]

    @property
    def is_one_way(self) -> bool:
        """Whether the base cannot be recovered from it, but a delta of its kind could be reversed.

        Then the delta turned round can be stored in its place.
        """
        return not self.reversible and not self.forward_only


def starts_of(nbytes: int) -> range:
    """The offset of each piece of a blob of ``nbytes`` bytes."""
    return range(0, max(nbytes, 1), PIECE)


class Candidates:
    """The stored codings by piece."""

    def __init__(
        self, found: StorageGraph, rates: Rates, specs: Mapping[bytes, TensorSpec]
    ) -> None:
        self._by_node: dict[Node, list[Candidate]] = defaultdict(list)
        self.groups: dict[tuple[int, int], list[Candidate]] = defaultdict(list)
        for coding in found.all_codings():
            member = coding.member
            if member.kind != BLOB:
                continue
            candidate = Candidate(
                id=member.id,
                start=member.start,
                nbytes=member.nbytes,
                stored=coding.stored,
                seconds=rates.payload(coding.record.header, member, specs.get(member.id)),
                base=coding.base,
                reversible=coding.reversible,
                place=coding.place,
                grouped=coding.record.header.group,
                forward_only=member.coding.forward_only,
                predicted=member.coding.predicted,
                inputs=coding.inputs,
            )
            self._by_node[candidate.node].append(candidate)
            if candidate.grouped:
                self.groups[coding.record.pack, coding.record.offset].append(candidate)

    def __iter__(self) -> Iterator[Candidate]:
        for candidates in self._by_node.values():
            yield from candidates

    def of(self, node: Node) -> list[Candidate]:
        return self._by_node.get(node, [])

    def added(self, id_: bytes, nbytes: int) -> list[Candidate]:
        """All codings of an object that approximate steps or an optimizer's lead to; nothing of
        others.
        """
        found = [o for start in starts_of(nbytes) for o in self.of((id_, start))]
        steps = any(o.predicted or (o.forward_only and o.grouped) for o in found)
        return found if steps else []

    def full(self, id_: bytes, nbytes: int) -> list[Candidate] | None:
        """The smallest full record of each piece; None if a piece has none."""
        found = [
            min((o for o in self.of((id_, start)) if o.base is None), key=_stored, default=None)
            for start in starts_of(nbytes)
        ]
        return (
            None if None in found else [candidate for candidate in found if candidate is not None]
        )

    def delta(self, id_: bytes, nbytes: int, bases: Collection[bytes]) -> list[Candidate] | None:
        """The smallest delta of each piece from one of ``bases``.

        A piece without such a delta is taken from its full record. None if a piece has
        neither, or if none of the pieces is a delta.
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


def found_from_base(found: StorageGraph, id_: bytes, base: bytes | None) -> bool:
    """Whether the reverse lookup from ``base`` would find a new delta that makes ``id_``."""
    return base is not None and found.entry_of(base) <= found.entry_of(id_)


def _stored(candidate: Candidate) -> int:
    return candidate.stored
