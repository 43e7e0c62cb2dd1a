"""Which codings a layout keeps and which it has to make, blob by blob.

A layout speaks of versions; versions share blobs, and not every delta leads both ways. So
what a layout keeps is looked over once more: a blob that nothing leads to keeps a coding
that it has, or gets a full record.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping

from mvc.repo.maintenance.storage_graph import CheapestPath, Reachability, cheapest_paths
from mvc.repo.repack.candidates import Node, Option, starts_of
from mvc.repo.repack.costs import Costs
from mvc.repo.repack.solve.model import Edge, Layout, Versions

__all__ = ["Selection", "of_layout", "of_store"]

_Key = tuple[bytes, int, bytes | None, tuple[int, int, int] | None]


class Selection:
    """A set of codings, stored ones and new ones."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._chosen: dict[_Key, Option] = {}

    def __iter__(self) -> Iterator[Option]:
        return iter(self._chosen.values())

    def __contains__(self, option: Option) -> bool:
        return _key(option) in self._chosen

    def add(self, options: Iterable[Option]) -> None:
        for option in options:
            self._chosen.setdefault(_key(option), option)

    def add_edges(self, versions: Versions, layout: Layout) -> None:
        """The deltas of a layout, each so that it leads the way that recovery takes."""
        times = versions.recovery(layout)
        for number in sorted(layout.edges):
            edge = versions.edges[number]
            made = self._costs.between(edge.a, edge.b, edge.span)
            backward = _takes(times[edge.b], edge, times[edge.a])
            forward = _takes(times[edge.a], edge, times[edge.b])
            for id_, options in made.items():
                for option in options:
                    leads_on = option.id == id_
                    against = backward if leads_on else forward
                    if option.base and against and not option.undirected and not option.bridge:
                        self.drop([option])
                        option = self._costs.turned(option)
                    self.add([option])

    def drop(self, options: Iterable[Option]) -> None:
        for option in options:
            self._chosen.pop(_key(option), None)

    @property
    def new(self) -> list[Option]:
        """Codings that are not stored yet."""
        return [option for option in self if option.place is None]

    def left_out(self) -> list[Option]:
        """Stored codings that are not chosen."""
        return [option for option in self._costs.options if option not in self]

    def complete(self) -> None:
        """Makes everything recoverable, without relying on the form of what was never tried."""
        for options in self._costs.options.groups.values():
            if any(option in self for option in options):
                self.add(options)  # they share one payload
        self._prove()
        self._reach_all()
        self._name_all()
        self._reach_all()

    def _prove(self) -> None:
        """Tries the new deltas that are needed backwards: what comes out may be no delta."""
        reached = self._reached()
        unproven = {
            (option.id, option.base)
            for option in self.new
            if option.base is not None
            and not option.sure
            and (option.base, option.start) not in reached
        }
        self.drop([option for option in self.new if (option.id, option.base) in unproven])
        for id_, base in unproven:
            assert base is not None
            self.add(self._costs.tried(id_, base))

    def _reach_all(self) -> None:
        """Adds a coding wherever a piece is that nothing leads to."""
        reached = self._reached()
        waiting = deque(node for node in self._wanted() if node not in reached)
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
            for option in found or self._full_of(node):
                self.add([option])
                _add(reached, option)
                self._drop_other_way(option)

    def _drop_other_way(self, option: Option) -> None:
        """A delta that was turned round is not kept both ways, unless it shares its payload."""
        for other in self._costs.options.of((option.base or b"", option.start)):
            if other.base == option.id and not other.undirected and not other.grouped:
                self.drop([other])

    def _wanted(self) -> Iterator[Node]:
        """Every piece of every blob that is stored, those of versions in their order."""
        survey = self._costs.survey
        for version in survey.versions:
            for id_ in version.blobs:
                for start in starts_of(survey.size(id_)):
                    yield id_, start
        for option in self._costs.options:
            if option.id not in survey.specs:
                yield option.node

    def _turnable(self) -> dict[Node, list[Option]]:
        """Chosen deltas that readers only walk forwards, by the piece they start from."""
        found: dict[Node, list[Option]] = defaultdict(list)
        for option in self:
            if option.base is not None and not option.undirected and not option.bridge:
                found[option.base, option.start].append(option)
        return found

    def _delta_to(
        self, node: Node, reached: Reachability, turnable: Mapping[Node, list[Option]]
    ) -> list[Option]:
        """The smallest delta that leads to a piece: a stored one, or a chosen one turned round."""
        found = [o for o in self._costs.options.of(node) if o.base and (o.base, o.start) in reached]
        if node[0] in self._costs.survey.specs:
            ways = turnable.get(node, ())
            found += [self._costs.turned(o) for o in ways if o.node in reached and o in self]
        return [min(found, key=lambda option: option.stored)] if found else []

    def _full_of(self, node: Node) -> list[Option]:
        full = [option for option in self._costs.options.of(node) if option.base is None]
        if full:
            return [min(full, key=lambda option: option.stored)]
        if node[0] not in self._costs.survey.specs:
            return []  # it is lost already, and no version has it
        return self._costs.alone(node[0])

    def _name_all(self) -> None:
        """Gives every blob a coding of its own.

        A blob that is only what a delta starts from is nowhere named in full. The delta that
        leads to it is turned round; then its other end may be without one, and so on
        towards the full record.
        """
        own = Counter(option.id for option in self)
        ways = self.cheapest()
        waiting = [id_ for id_ in self._costs.survey.specs if not own[id_]]
        while waiting:
            id_ = waiting.pop()
            for start in starts_of(self._costs.survey.size(id_)):
                way = ways[id_, start].step
                if way.id == id_:
                    continue
                self.add([self._costs.turned(way)])
                own[id_] += 1
                if way.grouped or way not in self:
                    continue
                self.drop([way])
                own[way.id] -= 1
                if not own[way.id]:
                    waiting.append(way.id)

    def cheapest(self) -> dict[Node, CheapestPath[Node, Option]]:
        """The quickest way to each piece, in nanoseconds."""
        sources: list[tuple[float, Node, Option]] = []
        edges: dict[Node, list[tuple[float, Node, Option]]] = defaultdict(list)
        for option in self:
            ns = option.ns(self._costs.speed)
            if option.base is None:
                sources.append((ns, option.node, option))
                continue
            base = (option.base, option.start)
            edges[base].append((ns, option.node, option))
            if option.undirected:
                edges[option.node].append((ns, base, option))
        return cheapest_paths(sources, edges)

    def _reached(self) -> Reachability:
        """The pieces that chosen codings lead to; forms never tried lead forward only."""
        reached = Reachability()
        for option in self:
            _add(reached, option)
        return reached


def _add(reached: Reachability, option: Option) -> None:
    reversible = option.undirected and option.sure
    reached.add(option.id, option.start, option.base, reversible=reversible)


def of_store(costs: Costs) -> Selection:
    """Everything that is stored."""
    made = Selection(costs)
    made.add(costs.options)
    return made


def of_layout(costs: Costs, versions: Versions, layout: Layout) -> Selection:
    """What a layout needs, and the blobs of no version as they are."""
    made = Selection(costs)
    specs = costs.survey.specs
    made.add(option for option in costs.options if option.id not in specs)
    for i in sorted(layout.sources):
        for id_ in costs.survey.versions[i].blobs:
            made.add(costs.full(i, id_))
    made.add_edges(versions, layout)
    made.complete()
    return made


def _takes(before: int | None, edge: Edge, after: int | None) -> bool:
    """Whether recovery goes along an edge from the version that is back after ``before``."""
    return before is not None and after is not None and before + edge.ns == after


def _key(option: Option) -> _Key:
    return option.id, option.start, option.base, option.place
