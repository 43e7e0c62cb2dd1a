"""Selections: the codings that a layout keeps and makes, blob by blob.

A layout is about versions, but versions share blobs, and not every delta is reversible. So
the selection is completed afterwards: a blob that cannot be reached keeps a stored coding,
or gets a full record.

Blobs that no version has (of forgotten states, before gc) keep the codings they have, and the
paths of others may lead through them. Nothing new is made of them or from them.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Set

from mvc.maintenance.repack.candidates import Candidate, Node, starts_of
from mvc.maintenance.repack.codings import Codings
from mvc.maintenance.storage_graph import CheapestPath, Reachability, cheapest_paths

__all__ = ["Selection", "of_store"]

_Key = tuple[bytes, int, bytes | None, tuple[int, int, int] | None]


class Selection:
    """A set of codings, stored ones and new ones."""

    def __init__(self, codings: Codings) -> None:
        self._codings = codings
        self._chosen: dict[_Key, Candidate] = {}

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._chosen.values())

    def __contains__(self, candidate: Candidate) -> bool:
        return _key(candidate) in self._chosen

    def add(self, candidates: Iterable[Candidate]) -> None:
        for candidate in candidates:
            self._chosen.setdefault(_key(candidate), candidate)

    def add_delta(
        self, id_: bytes, candidates: Iterable[Candidate], *, forward: bool, backward: bool
    ) -> None:
        """Adds the delta that makes ``id_``; the directions say which recoveries use it."""
        for candidate in candidates:
            against = backward if candidate.id == id_ else forward
            if (
                candidate.base
                and against
                and not candidate.reversible
                and not candidate.forward_only
            ):
                self.drop([candidate])
                candidate = self._codings.turned(candidate)
            self.add([candidate])

    def drop(self, candidates: Iterable[Candidate]) -> None:
        for candidate in candidates:
            self._chosen.pop(_key(candidate), None)

    def drop_full(self, gone: Set[bytes]) -> None:
        """Drops the full records of blobs. What shares a payload with one of them is encoded anew.

        A group stays if a blob in it is of no version, since nothing new can be made of that.
        """
        others: set[bytes] = set()
        for group in self._codings.stored.groups.values():
            ids = {candidate.id for candidate in group if candidate.base is None}
            if not ids.isdisjoint(gone) and ids <= self._codings.first.keys():
                others |= ids - gone
        dropped = gone | others
        self.drop([o for o in self if o.base is None and o.id in dropped])
        for id_ in sorted(others):
            self.add(self._codings.anew(id_))

    @property
    def new(self) -> list[Candidate]:
        """Codings that are not stored yet."""
        return [candidate for candidate in self if candidate.place is None]

    def left_out(self) -> list[Candidate]:
        """Stored codings that are not chosen."""
        return [candidate for candidate in self._codings.stored if candidate not in self]

    def complete(self) -> None:
        """Makes every piece recoverable, without relying on the form of untried codings."""
        for candidates in self._codings.stored.groups.values():
            if any(candidate in self for candidate in candidates):
                self.add(candidates)  # they share one payload
        self._prove()
        self._reach_all()
        self._name_all()
        self._reach_all()

    def _prove(self) -> None:
        """Tries new deltas that are needed backwards: they may turn out to be full records."""
        reached = self._reached()
        unproven = {
            (candidate.id, candidate.base)
            for candidate in self.new
            if candidate.base is not None
            and not candidate.sure
            and (candidate.base, candidate.start) not in reached
        }
        self.drop(
            [candidate for candidate in self.new if (candidate.id, candidate.base) in unproven]
        )
        for id_, base in unproven:
            assert base is not None
            self.add(self._codings.tried(id_, base))

    def _reach_all(self) -> None:
        """Adds a coding for every piece that cannot be reached."""
        reached = self._reached()
        waiting = deque(node for node in self._needed() if node not in reached)
        turnable = self._turnable()
        put_off: set[Node] = set()
        while waiting:
            node = waiting.popleft()
            if node in reached:
                continue
            found = self._delta_to(node, reached, turnable)
            if not found and node not in put_off:
                put_off.add(node)  # another piece's coding may lead here
                waiting.append(node)
                continue
            for candidate in found or self._full_of(node):
                self.add([candidate])
                _add(reached, candidate)
                self._drop_other_way(candidate)

    def _drop_other_way(self, candidate: Candidate) -> None:
        """Drops the other direction of a turned delta, unless it shares its payload."""
        for other in self._codings.stored.of((candidate.base or b"", candidate.start)):
            kept = other.grouped or other.id not in self._codings.survey.specs
            if other.base == candidate.id and not other.reversible and not kept:
                self.drop([other])

    def _needed(self) -> Iterator[Node]:
        """Every piece of every stored blob, those of versions first and in their order."""
        survey = self._codings.survey
        for version in survey.versions:
            for id_ in version.blobs:
                for start in starts_of(survey.size(id_)):
                    yield id_, start
        for candidate in self._codings.stored:
            if candidate.id not in survey.specs:
                yield candidate.node

    def _turnable(self) -> dict[Node, list[Candidate]]:
        """Chosen deltas that are not reversible, by the piece they start from."""
        found: dict[Node, list[Candidate]] = defaultdict(list)
        for candidate in self:
            if (
                candidate.base is not None
                and candidate.id in self._codings.survey.specs
                and not candidate.reversible
                and not candidate.forward_only
            ):
                found[candidate.base, candidate.start].append(candidate)
        return found

    def _delta_to(
        self, node: Node, reached: Reachability, turnable: Mapping[Node, list[Candidate]]
    ) -> list[Candidate]:
        """The smallest delta that makes a piece: a stored one, or a chosen one turned round."""
        found = [
            o for o in self._codings.stored.of(node) if o.base and (o.base, o.start) in reached
        ]
        if node[0] in self._codings.survey.specs:
            ways = turnable.get(node, ())
            found += [self._codings.turned(o) for o in ways if o.node in reached and o in self]
        return [min(found, key=lambda candidate: candidate.stored)] if found else []

    def _full_of(self, node: Node) -> list[Candidate]:
        full = [candidate for candidate in self._codings.stored.of(node) if candidate.base is None]
        if full:
            return [min(full, key=lambda candidate: candidate.stored)]
        if node[0] not in self._codings.survey.specs:
            return []  # it is lost, and no version needs it
        return self._codings.full(node[0])

    def _name_all(self) -> None:
        """Gives every blob a coding of its own.

        A blob that is only the base of a delta is nowhere named by its full id. So the delta
        is turned round. Then its other end may have no coding, and so on towards the full
        record. Where the other end is of no version, the blob is encoded anew.
        """
        own, specs = Counter(candidate.id for candidate in self), self._codings.survey.specs
        ways = self.cheapest()
        waiting = [id_ for id_ in specs if not own[id_]]
        while waiting:
            id_ = waiting.pop()
            for start in starts_of(self._codings.survey.size(id_)):
                way = ways[id_, start].step
                if way.id == id_:
                    continue
                if way.id not in specs:
                    self.add(self._past_others((id_, start), ways))
                    own[id_] += 1
                    break
                self.add([self._codings.turned(way)])
                own[id_] += 1
                if way.grouped or way not in self:
                    continue
                self.drop([way])
                own[way.id] -= 1
                if not own[way.id]:
                    waiting.append(way.id)

    def _past_others(
        self, node: Node, ways: Mapping[Node, CheapestPath[Node, Candidate]]
    ) -> list[Candidate]:
        """New codings of a blob, from the nearest blob of a version on its cheapest path."""
        base = ways[node].origin
        while base is not None and base[0] not in self._codings.survey.specs:
            base = ways[base].origin
        return (
            self._codings.full(node[0]) if base is None else self._codings.tried(node[0], base[0])
        )

    def cheapest(self) -> dict[Node, CheapestPath[Node, Candidate]]:
        """The cheapest path to each piece, in nanoseconds."""
        sources: list[tuple[float, Node, Candidate]] = []
        edges: dict[Node, list[tuple[float, Node, Candidate]]] = defaultdict(list)
        for candidate in self:
            ns = candidate.seconds * 1e9
            if candidate.base is None:
                sources.append((ns, candidate.node, candidate))
                continue
            base = (candidate.base, candidate.start)
            edges[base].append((ns, candidate.node, candidate))
            if candidate.reversible:
                edges[candidate.node].append((ns, base, candidate))
        return cheapest_paths(sources, edges)

    def _reached(self) -> Reachability:
        """The pieces that chosen codings lead to; untried ones count as forward only."""
        reached = Reachability()
        for candidate in self:
            _add(reached, candidate)
        return reached


def _add(reached: Reachability, candidate: Candidate) -> None:
    reversible = candidate.reversible and candidate.sure
    reached.add(candidate.id, candidate.start, candidate.base, reversible=reversible)


def of_store(codings: Codings) -> Selection:
    """All stored codings."""
    made = Selection(codings)
    made.add(codings.stored)
    return made


def _key(candidate: Candidate) -> _Key:
    return candidate.id, candidate.start, candidate.base, candidate.place
