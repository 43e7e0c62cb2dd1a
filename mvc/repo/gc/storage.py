"""Which codings can be deleted when some objects are unreachable, and what replaces them.

If the path to a needed object leads through unneeded ones, there are three choices: encode
it against the next needed object (the deltas between become one), store it in full, or
keep the unneeded objects as *phantoms*, which belong to no version. The cheapest is taken.
An object of a state forgotten by name is never kept as a phantom.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from mvc.codecs.patch import encode_patch
from mvc.codecs.pipeline import Pipeline
from mvc.limits import PIECE
from mvc.model.tensor import TensorSpec
from mvc.repo.context import Context
from mvc.repo.maintenance.encode import EncodeRequest
from mvc.repo.maintenance.inventory import CodingPlace, Inventory, StoredCoding
from mvc.repo.maintenance.reachable import Reachable
from mvc.repo.maintenance.storage_graph import Piece, Reachability
from mvc.store.packs.records import BASE_BYTES
from mvc.store.writing.choose import BasePiece, Policy, choose

__all__ = ["KeptCodings", "Sampler", "decide"]


@dataclass
class KeptCodings:
    """``places``: codings that stay. ``add``: codings to make. ``phantoms``: see the module.

    ``added_bytes``: estimated size of ``add``.
    """

    places: set[CodingPlace] = field(default_factory=set)
    add: list[EncodeRequest] = field(default_factory=list)
    phantoms: set[bytes] = field(default_factory=set)
    added_bytes: int = 0


def decide(found: Inventory, reach: Reachable, sampler: Sampler) -> KeptCodings:
    """The codings of ``found`` to keep, so that everything in ``reach`` can be recovered."""
    kept = KeptCodings()
    work = _Decision(found, reach, kept, sampler)
    work.keep_needed()
    work.mend()
    return kept


class _Decision:
    def __init__(
        self, found: Inventory, reach: Reachable, kept: KeptCodings, sampler: Sampler
    ) -> None:
        self._found = found
        self._reach = reach
        self._kept = kept
        self._sampler = sampler
        self._reached = Reachability()
        self._named: set[bytes] = set()  # objects with a coding of their own
        self._from: dict[bytes, list[StoredCoding]] = {}  # reversible deltas by base
        for coding in found.all_codings():
            if coding.reversible and coding.base is not None:
                self._from.setdefault(coding.base, []).append(coding)

    def _stays(self, id_: bytes) -> bool:
        return self._reach.needs(id_) or id_[:BASE_BYTES] in self._found.ambiguous

    def keep_needed(self) -> None:
        """Keeps the codings of needed objects whose bases are needed as well."""
        for id_, codings in self._found.codings.items():
            if self._stays(id_):
                for coding in codings:
                    if coding.base is None or self._stays(coding.base):
                        self._take(coding)

    def _take(self, coding: StoredCoding) -> None:
        """Keeps a coding."""
        member = coding.member
        self._kept.places.add(coding.place)
        self._named.add(member.id)
        self._reached.add(member.id, member.start, coding.base, reversible=coding.reversible)

    def mend(self) -> None:
        """Finds a path for every needed object that lost its own, oldest first.

        An object that is only the base of a kept delta needs a coding as well: a delta names
        its base by 8 bytes, and only a coding gives the full id.
        """
        for id_, codings in self._found.codings.items():
            if self._stays(id_):
                pieces = {(id_, coding.member.start) for coding in codings}
                if id_ not in self._named or not self._reached.has_all(pieces):
                    self._reconnect(id_, pieces)

    def _reconnect(self, id_: bytes, pieces: set[Piece]) -> None:
        base, steps = self._way(id_) or (self._neighbour(id_), [])
        size = self._sampler.full(id_) if base is None else self._sampler.delta(id_, base)
        if steps and sum(step.stored for step in steps) < size and self._are_fit(id_, steps):
            for step in steps:
                self._kept.phantoms |= {step.member.id, step.base or b""} - {id_, base}
                self._take(step)
            if self._reached.has_all(pieces):
                return
        self._kept.added_bytes += size
        self._kept.add.append(EncodeRequest(id_, base))
        self._named.add(id_)
        self._reached.reach(pieces)

    def _are_fit(self, id_: bytes, steps: list[StoredCoding]) -> bool:
        """Whether codings can stay as they are: both ends have codings, none is banned."""
        ends = {end for step in steps for end in (step.member.id, step.base) if end is not None}
        named = self._named | {step.member.id for step in steps}
        shared = any(step.record.header.group for step in steps)
        return not shared and {*ends, id_} <= named and not ends & self._reach.banned

    def _neighbour(self, id_: bytes) -> bytes | None:
        """A needed object that has a kept delta from this one."""
        for coding in self._from.get(id_, ()):
            other = coding.member.id
            if coding.place in self._kept.places and self._is_base(other):
                return other
        return None

    def _is_base(self, id_: bytes) -> bool:
        return (id_, 0) in self._reached and self._reach.needs(id_)

    def _way(self, id_: bytes) -> tuple[bytes, list[StoredCoding]] | None:
        """The nearest needed object behind unneeded ones, and the codings that lead from it."""
        seen = {id_}
        waiting: deque[tuple[bytes, list[StoredCoding]]] = deque([(id_, [])])
        while waiting:
            at, steps = waiting.popleft()
            for coding in (*self._found.codings.get(at, ()), *self._from.get(at, ())):
                other = coding.base if coding.member.id == at else coding.member.id
                if other is None or other in seen or coding.place in self._kept.places:
                    continue
                seen.add(other)
                if not self._stays(other):
                    waiting.append((other, [coding, *steps]))
                elif self._is_base(other):
                    return other, [coding, *steps]
        return None


class Sampler:
    """Estimates the size of codings from a sample: the first piece (at most 32 MiB) of an object.

    ``specs``: every blob that may be asked for; other ids are manifests.
    """

    def __init__(self, context: Context, specs: Mapping[bytes, TensorSpec]) -> None:
        self._recovery = context.store.recovery
        self._specs = specs
        pipeline = Pipeline.parse(context.config.get("commit.pipeline")).coding()
        self._policy = Policy(pipeline)

    def full(self, id_: bytes) -> int:
        """Bytes of a full record."""
        return self._estimate(id_, None)

    def delta(self, id_: bytes, base: bytes) -> int:
        """Bytes of a delta from ``base``, or of the full record stored if a delta is too large."""
        return self._estimate(id_, base)

    def _estimate(self, id_: bytes, base: bytes | None) -> int:
        spec = self._specs.get(id_)
        if spec is None:
            old = self._recovery.manifest(base) if base is not None else b""
            return len(encode_patch(memoryview(self._recovery.manifest(id_)), memoryview(old)))
        base_spec = None if base is None else self._specs.get(base)
        piece = None
        if base is not None and base_spec is not None and base_spec.dtype == spec.dtype:
            piece = BasePiece(base, self._piece(base, base_spec))
        new = self._piece(id_, spec)
        choice = choose(spec, new, base_spec if piece else None, piece, self._policy)[0]
        return round(choice.share * spec.nbytes)

    def _piece(self, id_: bytes, spec: TensorSpec) -> memoryview:
        out = memoryview(bytearray(min(PIECE, spec.nbytes)))
        self._recovery.piece(id_, 0, out)
        return out
