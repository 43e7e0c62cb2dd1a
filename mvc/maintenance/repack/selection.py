"""Selections: the codings that a layout keeps and makes, blob by blob.

A layout is about versions, but versions share blobs, and not every delta is reversible. So
the selection is completed afterwards: a blob that cannot be reached keeps a stored coding,
or gets a full record.

Blobs that no version has (of forgotten states, before gc) keep the codings they have, and the
paths of others may lead through them. Nothing new is made of them or from them.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from mvc.ids import CommitId
from mvc.maintenance.repack.candidates import Candidate, Node, starts_of
from mvc.maintenance.repack.costs import Costs
from mvc.maintenance.repack.solve.model import Edge, Selected, Versions
from mvc.maintenance.repack.survey import Survey
from mvc.maintenance.storage_graph import CheapestPath, Reachability, cheapest_paths
from mvc.store.graph.search import Link
from mvc.store.writing.layout import Layout as SkipLayout

_Key = tuple[bytes, int, bytes | None, tuple[int, int, int] | None]


class Selection:
    """A set of codings, stored ones and new ones."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._chosen: dict[_Key, Candidate] = {}

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._chosen.values())

    def __contains__(self, candidate: Candidate) -> bool:
        return _key(candidate) in self._chosen

    def add(self, candidates: Iterable[Candidate]) -> None:
        for candidate in candidates:
            self._chosen.setdefault(_key(candidate), candidate)

    def add_edges(self, versions: Versions, layout: Selected) -> None:
        """Adds the deltas of a layout, each in the direction that recovery takes."""
        times = versions.recovery(layout)
        for number in sorted(layout.edges):
            edge = versions.edges[number]
            made = self._costs.between(edge.a, edge.b, edge.span)
            forward, backward = directions(edge, times)
            for id_, candidates in made.items():
                self.add_delta(id_, candidates, forward=forward, backward=backward)

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
                candidate = self._costs.turned(candidate)
            self.add([candidate])

    def drop(self, candidates: Iterable[Candidate]) -> None:
        for candidate in candidates:
            self._chosen.pop(_key(candidate), None)

    def drop_full(self, gone: Set[bytes]) -> None:
        """Drops the full records of blobs. What shares a payload with one of them is encoded anew.

        A group stays if a blob in it is of no version, since nothing new can be made of that.
        """
        others: set[bytes] = set()
        for group in self._costs.candidates.groups.values():
            ids = {candidate.id for candidate in group if candidate.base is None}
            if not ids.isdisjoint(gone) and ids <= self._costs.first.keys():
                others |= ids - gone
        dropped = gone | others
        self.drop([o for o in self if o.base is None and o.id in dropped])
        for id_ in sorted(others):
            self.add(self._costs.anew(id_))

    @property
    def new(self) -> list[Candidate]:
        """Codings that are not stored yet."""
        return [candidate for candidate in self if candidate.place is None]

    def left_out(self) -> list[Candidate]:
        """Stored codings that are not chosen."""
        return [candidate for candidate in self._costs.candidates if candidate not in self]

    def complete(self) -> None:
        """Makes every piece recoverable, without relying on the form of untried codings."""
        for candidates in self._costs.candidates.groups.values():
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
            self.add(self._costs.tried(id_, base))

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
        for other in self._costs.candidates.of((candidate.base or b"", candidate.start)):
            kept = other.grouped or other.id not in self._costs.survey.specs
            if other.base == candidate.id and not other.reversible and not kept:
                self.drop([other])

    def _needed(self) -> Iterator[Node]:
        """Every piece of every stored blob, those of versions first and in their order."""
        survey = self._costs.survey
        for version in survey.versions:
            for id_ in version.blobs:
                for start in starts_of(survey.size(id_)):
                    yield id_, start
        for candidate in self._costs.candidates:
            if candidate.id not in survey.specs:
                yield candidate.node

    def _turnable(self) -> dict[Node, list[Candidate]]:
        """Chosen deltas that are not reversible, by the piece they start from."""
        found: dict[Node, list[Candidate]] = defaultdict(list)
        for candidate in self:
            if (
                candidate.base is not None
                and candidate.id in self._costs.survey.specs
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
            o for o in self._costs.candidates.of(node) if o.base and (o.base, o.start) in reached
        ]
        if node[0] in self._costs.survey.specs:
            ways = turnable.get(node, ())
            found += [self._costs.turned(o) for o in ways if o.node in reached and o in self]
        return [min(found, key=lambda candidate: candidate.stored)] if found else []

    def _full_of(self, node: Node) -> list[Candidate]:
        full = [
            candidate for candidate in self._costs.candidates.of(node) if candidate.base is None
        ]
        if full:
            return [min(full, key=lambda candidate: candidate.stored)]
        if node[0] not in self._costs.survey.specs:
            return []  # it is lost, and no version needs it
        return self._costs.alone(node[0])

    def _name_all(self) -> None:
        """Gives every blob a coding of its own.

        A blob that is only the base of a delta is nowhere named by its full id. So the delta
        is turned round. Then its other end may have no coding, and so on towards the full
        record. Where the other end is of no version, the blob is encoded anew.
        """
        own, specs = Counter(candidate.id for candidate in self), self._costs.survey.specs
        ways = self.cheapest()
        waiting = [id_ for id_ in specs if not own[id_]]
        while waiting:
            id_ = waiting.pop()
            for start in starts_of(self._costs.survey.size(id_)):
                way = ways[id_, start].step
                if way.id == id_:
                    continue
                if way.id not in specs:
                    self.add(self._past_others((id_, start), ways))
                    own[id_] += 1
                    break
                self.add([self._costs.turned(way)])
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
        while base is not None and base[0] not in self._costs.survey.specs:
            base = ways[base].origin
        return self._costs.alone(node[0]) if base is None else self._costs.tried(node[0], base[0])

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


def of_store(costs: Costs) -> Selection:
    """All stored codings."""
    made = Selection(costs)
    made.add(costs.candidates)
    return made


def of_layout(costs: Costs, versions: Versions, layout: Selected) -> Selection:
    """The codings that a layout needs, and those of blobs that no version has."""
    made = Selection(costs)
    specs = costs.survey.specs
    made.add(candidate for candidate in costs.candidates if candidate.id not in specs)
    for i in sorted(layout.sources):
        for id_ in costs.survey.versions[i].blobs:
            made.add(costs.full(i, id_))
    made.add_edges(versions, layout)
    made.complete()
    return made


def of_skips(costs: Costs, layout: SkipLayout) -> Selection:
    """The codings of a layout as commits would have stored it.

    Each blob is coded once, against the blob in its place in the version that the layout names;
    those of a reset point also in full. A delta that is stored already does where that one is not
    worth it, unless it makes a long chain. Approximate steps stay: another delta would be larger.
    """
    made, survey = Selection(costs), costs.survey
    made.add(candidate for candidate in costs.candidates if candidate.id not in survey.specs)
    depths: dict[bytes, int] = {}
    most = layout.deepest // 2
    for i, (version, way) in enumerate(zip(survey.versions, _skips(survey, layout), strict=True)):
        base = version.parent if len(way) == 1 else survey.numbers[CommitId(way[-2].id)]
        if base is not None:
            span = survey.generation(i) - survey.generation(base)
            for id_, candidates in costs.between(base, i, span).items():
                if costs.first[id_] != i or costs.candidates.added(id_, survey.size(id_)):
                    continue
                if not any(candidate.base for candidate in candidates):
                    size = survey.size(id_)
                    stored = costs.candidates.delta(id_, size, survey.specs.keys()) or []
                    under = max((depths.get(c.base or b"", 0) for c in stored), default=0)
                    candidates = stored if stored and under <= most else candidates
                made.add(candidates)
                depths[id_] = max(depths.get(c.base, 0) + 1 if c.base else 0 for c in candidates)
        for id_ in version.blobs:
            made.add(costs.candidates.added(id_, survey.size(id_)))
        if len(way) == 1:
            for id_ in version.blobs:
                made.add(costs.full(i, id_))
                depths[id_] = 0
    made.complete()
    return made


def _skips(survey: Survey, layout: SkipLayout) -> list[tuple[Link, ...]]:
    """For each version what leads to it, from a version in full on; it comes last itself."""
    made: list[tuple[Link, ...]] = []
    for version in survey.versions:
        under = () if version.parent is None else made[version.parent]
        if under and not layout.ends(under, version.sequence):
            under = under[: under.index(layout.base(under, version.sequence)) + 1]
        else:
            under = ()
        made.append(
            (*under, Link(version.commit, version.sequence, depth=len(under), stored=0, nbytes=0))
        )
    return made


def directions(edge: Edge, times: Sequence[int | None]) -> tuple[bool, bool]:
    """Whether cheapest paths use the edge forward, and backward. ``times``: to recover each end."""
    a, b = times[edge.a], times[edge.b]
    if a is None or b is None:
        return False, False
    return a + edge.ns == b, b + edge.ns == a


def _key(candidate: Candidate) -> _Key:
    return candidate.id, candidate.start, candidate.base, candidate.place
