"""A storage graph in memory, for stored objects that are not in the index.

The nodes of a storage graph are objects (the bytes of a tensor, for example). An edge is a delta
from one object, the base, to another object (``mvc.store.graph.search``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from mvc.store.graph.search import Graph, PathStep, Speed
from mvc.store.packs.records import BASE_BYTES
from mvc.store.snapshot import Snapshot


class MemoryGraph(Graph):
    """A graph that is built by calls of ``add`` and ``name``.

    A coding says how an object is stored: in full, or as a delta from a base. ``add`` adds a
    coding. ``name`` registers an object without a coding.
    """

    def __init__(self, snapshot: Snapshot, speed: Speed) -> None:
        super().__init__(snapshot, speed)
        self._named: dict[bytes, bytes] = {}
        self._to: dict[bytes, list[PathStep]] = {}
        self._from: dict[bytes, list[PathStep]] = {}

    def name(self, id_: bytes) -> None:
        """Registers the id of an object.

        A delta names its base by the first bytes of the base's id. If several registered ids begin
        with these bytes, the base is the object that was registered first.
        """
        self._named.setdefault(id_[:BASE_BYTES], id_)

    def add(self, step: PathStep) -> None:
        """Adds a coding. A delta that can be undone is also an edge from the object to its base."""
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
    """A graph of all records of a snapshot, even of deltas whose bases are not stored.

    ``know`` registers the ids of objects that no record contains.
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

    def reached(self, available: Iterable[bytes]) -> set[bytes]:
        """The objects that can be recovered if the bytes of ``available`` are known.

        Large objects are stored in pieces of 32 MiB. The pieces of an object are not distinguished.
        """
        reachable = {
            *available,
            *(id_ for id_, steps in self._to.items() if not steps[0].member.base),
        }
        leads: dict[bytes, list[tuple[bytes, set[bytes]]]] = {}  # (object, all objects it lacks)
        for id_, steps in self._to.items():
            for member in (step.member for step in steps if step.member.base):
                needs = {self._named[name] for name in member.needs if name in self._named}
                if len(needs) < len(set(member.needs)):
                    continue
                for need in needs:
                    leads.setdefault(need, []).append((id_, needs))
                if not member.coding.forward_only:
                    leads.setdefault(id_, []).append((self._named[member.base], {id_}))
        waiting = list(reachable)
        while waiting:
            at = waiting.pop()
            for id_, lacks in leads.pop(at, ()):
                lacks.discard(at)
                if not lacks and id_ not in reachable:
                    reachable.add(id_)
                    waiting.append(id_)
        return reachable
