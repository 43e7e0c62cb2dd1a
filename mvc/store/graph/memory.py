"""The storage graph over records that are held in memory, where no index leads to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from mvc.store.graph.search import Graph, PathStep, Speed
from mvc.store.packs.records import BASE_BYTES
from mvc.store.snapshot import Snapshot


class MemoryGraph(Graph):
    """Over the codings that ``add`` gives it. ``name`` adds the id of an object that has none."""

    def __init__(self, snapshot: Snapshot, speed: Speed) -> None:
        super().__init__(snapshot, speed)
        self._named: dict[bytes, bytes] = {}
        self._to: dict[bytes, list[PathStep]] = {}
        self._from: dict[bytes, list[PathStep]] = {}

    def name(self, id_: bytes) -> None:
        """Adds an id. Of several objects with the same first bytes, the first is the base."""
        self._named.setdefault(id_[:BASE_BYTES], id_)

    def add(self, step: PathStep) -> None:
        """Adds a coding, to be walked backwards as well where its transform can be undone."""
        member = step.member
        self._to.setdefault(member.id, []).append(step)
        if member.base and not member.coding.forward_only:
            self._from.setdefault(member.base, []).append(replace(step, reverse=True))

    def resolve_prefix(self, prefix: bytes) -> bytes | None:
        return self._named.get(prefix)

    def steps(self, id_: bytes) -> list[PathStep]:
        return self._to.get(id_, [])

    def _leading_to(self, id_: bytes, start: int) -> Iterator[PathStep]:
        undone = self._from.get(id_[:BASE_BYTES], ()) if self.nameable(id_) else ()
        every = (*self.steps(id_), *(step for step in undone if step.member.id != id_))
        return (step for step in every if step.member.start == start)


class LooseGraph(MemoryGraph):
    """Over records that came without what they build on; made when all of them are there.

    ``know`` names objects that are no member of a record: those that lie elsewhere, and those to
    which a delta of one of these leads back.
    """

    def __init__(self, snapshot: Snapshot, speed: Speed) -> None:
        super().__init__(snapshot, speed)
        for recorded in snapshot.entries():
            for pack, at, header in snapshot.records(recorded.offset):
                for member in header.members:
                    self.name(member.id)
                    entry = recorded.offset
                    self.add(PathStep(pack, at, header, member, reverse=False, entry=entry))

    def know(self, ids: Iterable[bytes]) -> None:
        for id_ in ids:
            self.name(id_)

    def reached(self, held: Iterable[bytes]) -> set[bytes]:
        """The objects to which paths lead from these; whole objects, not pieces, are looked at."""
        found = {*held, *(id_ for id_, steps in self._to.items() if not steps[0].member.base)}
        leads: dict[bytes, list[tuple[bytes, set[bytes]]]] = {}  # where to, and what that lacks
        for id_, steps in self._to.items():
            for member in (step.member for step in steps if step.member.base):
                needs = {self._named[name] for name in member.needs if name in self._named}
                if len(needs) < len(set(member.needs)):
                    continue
                for need in needs:
                    leads.setdefault(need, []).append((id_, needs))
                if not member.coding.forward_only:
                    leads.setdefault(id_, []).append((self._named[member.base], {id_}))
        waiting = list(found)
        while waiting:
            at = waiting.pop()
            for id_, lacks in leads.pop(at, ()):
                lacks.discard(at)
                if not lacks and id_ not in found:
                    found.add(id_)
                    waiting.append(id_)
        return found
