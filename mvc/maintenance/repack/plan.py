"""Selections of codings: completed, so that everything can be recovered, and priced as a whole.

A layout is about versions, but versions share blobs, and not every delta is reversible. So what a
layout needs may leave a blob without a way to it. ``completed`` takes these steps, in this order:

1. Codings that share one payload are all kept, or none.
2. A new delta that is needed backwards is tried: it may turn out to be a full record.
3. A piece that nothing leads to gets the smallest stored delta from a piece that is reached, a
   chosen delta turned round, or a full record.
4. Each blob gets a coding of its own: as the base of a delta alone it is nowhere named by its full
   id. A delta turned round for that may have been another's only way, so step 3 comes once more.

Blobs that no version has (of forgotten states, before gc) keep the codings they have, and the
paths of others may lead through them. Nothing new is made of them or from them.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

from msgspec import Struct

from mvc.errors import DamagedData
from mvc.ids import CommitId
from mvc.limits import PIECE
from mvc.maintenance.graph import Reachability, read_records
from mvc.maintenance.payloads import decoded
from mvc.maintenance.repack.goal import Goal
from mvc.maintenance.repack.problem import (
    Candidate,
    Candidates,
    Costs,
    Node,
    Sizes,
    Survey,
    attempt,
    learn_stored,
    starts_of,
    survey,
)
from mvc.maintenance.rewrite_plan import EncodeRequest, RewritePlan, encoding_policy
from mvc.pipelines.pipeline import Pipeline
from mvc.repo.config import Config
from mvc.store.packs.records import (
    BASE_BYTES,
    BLOB,
    MANIFEST,
    Coding,
    Member,
    RecordHeader,
    encode_header,
)
from mvc.store.recovery.rates import Part, of_group, together
from mvc.store.store import Store
from mvc.types import Progress

_Key = tuple[bytes, int, bytes | None, tuple[int, int, int] | None]


class Selection:
    """Codings of pieces; one with the same piece, base and place is the same coding."""

    def __init__(self, candidates: Iterable[Candidate] = ()) -> None:
        self._chosen: dict[_Key, Candidate] = {}
        self.add(candidates)

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._chosen.values())

    def __contains__(self, candidate: Candidate) -> bool:
        return _key(candidate) in self._chosen

    def add(self, candidates: Iterable[Candidate]) -> None:
        for candidate in candidates:
            self._chosen.setdefault(_key(candidate), candidate)

    def drop(self, candidates: Iterable[Candidate]) -> None:
        for candidate in candidates:
            self._chosen.pop(_key(candidate), None)

    @property
    def new(self) -> list[Candidate]:
        """Codings that are not stored yet."""
        return [candidate for candidate in self if candidate.place is None]

    def lacking(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Those that are not chosen."""
        return [candidate for candidate in candidates if candidate not in self]

    def cheapest(self) -> dict[Node, CheapestPath]:
        """The cheapest path to each piece that can be recovered, nearest first (Dijkstra).

        Of paths of equal cost the one with fewer deltas counts. A coding leads on from its base
        once its inputs are found as well, from the furthest on.
        """
        edges: dict[Node, list[tuple[Candidate, list[Node], Node]]] = defaultdict(list)
        heap: list[tuple[float, int, int, Node, Candidate, Node | None]] = []
        tickets = count()
        for candidate in self:
            node, needs = candidate.node, candidate.needs
            if not needs:
                ns = candidate.seconds * 1e9
                heap.append((ns, 0, next(tickets), node, candidate, None))
            for each in needs:
                edges[each].append((candidate, needs, node))
            if candidate.reversible and not candidate.inputs:
                edges[node].append((candidate, [node], needs[0]))
        heapify(heap)
        found: dict[Node, CheapestPath] = {}
        while heap:
            cost, deltas, _, node, step, origin = heappop(heap)
            if node in found:
                continue
            stored = step.stored + (0 if origin is None else found[origin].stored)
            found[node] = CheapestPath(cost, deltas, stored, step=step, origin=origin)
            for candidate, needs, target in edges[node]:
                if target not in found and all(each in found for each in needs):
                    ns, under = cost + candidate.seconds * 1e9, found[needs[0]].deltas + 1
                    heappush(heap, (ns, under, next(tickets), target, candidate, needs[0]))
        return found


class CheapestPath(NamedTuple):
    """``cost`` (nanoseconds), ``deltas`` and ``stored`` bytes of the path to a piece; its last
    ``step`` and the piece before it.
    """

    cost: float
    deltas: int
    stored: int
    step: Candidate
    origin: Node | None


def _key(candidate: Candidate) -> _Key:
    return candidate.id, candidate.start, candidate.base, candidate.place


class LayoutMetrics(Struct, frozen=True):
    """``bytes``: of all packs. Recovery of a whole version: estimated ``seconds`` on this machine,
    stored ``bytes`` to decode, and ``deltas`` to apply for the furthest blob; worst and mean over
    all versions. ``reset_points`` in the order of versions.
    """

    bytes: int
    reset_points: tuple[CommitId, ...]
    worst_seconds: float
    mean_seconds: float
    worst_bytes: int
    mean_bytes: float
    worst_deltas: int
    mean_deltas: float
    worst_commit: CommitId | None


def layout_metrics(costs: Costs, selection: Selection) -> LayoutMetrics:
    """The metrics of a selection. Raises DamagedData if a version cannot be recovered from it."""
    reached, shared, survey = selection.cheapest(), _Shared(costs, selection), costs.survey
    full = {candidate.node for candidate in selection if candidate.base is None}
    times, sizes, depths, reset_points = [], [], [], []
    for version in survey.versions:
        nodes = [(i, start) for i in version.blobs for start in starts_of(survey.size(i))]
        for id_, _ in (node for node in nodes if node not in reached):
            raise DamagedData(
                f"version {version.commit.short} is damaged: object {id_.hex()[:10]} is lost",
                hint="run 'mvc fsck --repair', with --from if there is a backup; else 'mvc forget "
                f"{version.commit.short}' gives the version up",
            )
        ways = [reached[node] for node in nodes]
        wanted = {node: min(PIECE, survey.size(node[0]) - node[1]) for node in nodes}
        walks = decoded(wanted, lambda node: shared.last_step(reached[node]))
        works = together(walks, shared.seconds.__getitem__)
        times.append(costs.rates.version(works, version.files, version.nbytes))
        sizes.append(sum(way.stored for way in ways))
        depths.append(max((way.deltas for way in ways), default=0))
        if all(node in full for node in nodes):
            reset_points.append(version.commit)
    total = max(1, len(times))
    worst = max(range(len(times)), key=times.__getitem__, default=None)
    return LayoutMetrics(
        bytes=_packed(costs, selection),
        reset_points=tuple(reset_points),
        worst_seconds=max(times, default=0.0),
        mean_seconds=sum(times) / total,
        worst_bytes=max(sizes, default=0),
        mean_bytes=sum(sizes) / total,
        worst_deltas=max(depths, default=0),
        mean_deltas=sum(depths) / total,
        worst_commit=None if worst is None else survey.versions[worst].commit,
    )


class _Shared:
    """The groups of a selection: ``seconds`` to decode each of them as a whole.

    New codings of a pipeline that groups are taken to share a payload if one operation first
    published their objects, because they are written together.
    """

    def __init__(self, costs: Costs, selection: Selection) -> None:
        text = costs.survey.config.get("commit.pipeline")
        self._groups_new = Pipeline.parse(text).coding().scope == "group"
        self._found = costs.survey.found
        groups: dict[Hashable, list[Candidate]] = defaultdict(list)
        for candidate in selection.new if self._groups_new else ():
            groups[self._group(candidate)].append(candidate)
        every = (*groups.items(), *costs.candidates.groups.items())
        self.seconds: dict[Hashable, float] = {
            key: of_group(o.seconds for o in made) for key, made in every
        }

    def last_step(self, path: CheapestPath) -> tuple[int, Part, Node | None, list[Node]]:
        """As ``decoded`` asks for it."""
        part = path.step.seconds, self._group(path.step)
        return path.step.nbytes, part, path.origin, path.step.needs[1:]

    def _group(self, candidate: Candidate) -> Hashable | None:
        if candidate.place is not None:
            return candidate.place[:2] if candidate.grouped else None
        if not self._groups_new:
            return None
        return self._found.entry_of(candidate.id), candidate.base is None, "new"


# -- bytes in packs ------------------------------------------------------------------------


def _packed(costs: Costs, selection: Selection) -> int:
    """Bytes of all records after codings that are not chosen are dropped and new ones added."""
    gone = defaultdict(set)
    for candidate in selection.lacking(costs.candidates):
        assert candidate.place is not None
        gone[candidate.place[:2]].add(candidate.place[2])
    found = costs.survey.found
    headers = [(found.pack_reader.header(*place), members) for place, members in gone.items()]
    less = sum(header.size - _rest(header, members) for header, members in headers)
    fresh: dict[int, list[Candidate]] = defaultdict(list)
    for candidate in selection.new:
        fresh[found.entry_of(candidate.id)].append(candidate)
    pipeline = encoding_policy(costs.survey.config).pipeline
    more = sum(_added(candidates, pipeline) for candidates in fresh.values())
    return sum(found.lengths) - less + more


def _rest(header: RecordHeader, gone: set[int]) -> int:
    """Bytes of a record without some of its members."""
    kept = [member for i, member in enumerate(header.members) if i not in gone]
    if not kept or header.group:  # a group is dropped as a whole
        return 0 if not kept else header.size
    size = sum(member.stored for member in kept)
    apart = [member for member in kept if member.kind == MANIFEST]
    for manifest in apart:
        # It is encoded again alone, without the ids of the blobs beside it.
        ids = sum(member.kind == BLOB for member in header.members)
        size += 32 * ids + len(encode_header([manifest], group=False, body_size=0))
    together = [member for member in kept if member.kind != MANIFEST]
    return size + (_head(together) if together else 0)


def _added(candidates: Sequence[Candidate], pipeline: Pipeline) -> int:
    """Bytes of a record of new codings."""
    texts = (Coding(pipeline.full().text), Coding(pipeline.text))
    members = [
        Member(
            kind=BLOB,
            id=candidate.id,
            start=candidate.start,
            nbytes=candidate.nbytes,
            coding=texts[candidate.base is not None],
            base=(candidate.base or b"")[:BASE_BYTES],
            at=0,
            stored=candidate.stored,
            check=bytes(8),
        )
        for candidate in candidates
    ]
    return _head(members) + sum(candidate.stored for candidate in candidates)


def _head(members: Iterable[Member]) -> int:
    listed = [member._replace(at=0) for member in members]
    return len(encode_header(listed, group=False, body_size=0))


def completed(selection: Selection, costs: Costs) -> Selection:
    """The selection, and the codings without which a piece could not be recovered."""
    completion = _Completion(Selection(selection), costs)
    completion.keep_groups_whole()
    completion.try_what_is_needed_backwards()
    completion.reach_every_piece()
    if completion.name_every_blob():
        completion.reach_every_piece()
    return completion.chosen


class _Completion:
    def __init__(self, chosen: Selection, costs: Costs) -> None:
        self.chosen = chosen
        self._costs = costs
        self._stored = costs.candidates
        self._specs = costs.survey.specs  # of the blobs that versions have

    def keep_groups_whole(self) -> None:
        for group in self._stored.groups.values():
            if any(candidate in self.chosen for candidate in group):
                self.chosen.add(group)

    def try_what_is_needed_backwards(self) -> None:
        """Replaces new deltas whose base nothing else leads to by what a trial makes of them."""
        reached = self._reached()
        unproven = {
            (each.id, each.base): each.span
            for each in self.chosen.new
            if each.base and not each.sure and (each.base, each.start) not in reached
        }
        self.chosen.drop([each for each in self.chosen.new if (each.id, each.base) in unproven])
        for (id_, base), span in unproven.items():
            self.chosen.add(self._costs.tried(id_, base, span))

    def reach_every_piece(self) -> None:
        reached = self._reached()
        waiting = deque(node for node in self._needed() if node not in reached)
        one_way = self._one_way()
        put_off: set[Node] = set()
        while waiting:
            node = waiting.popleft()
            if node in reached:
                continue
            found = self._delta_to(node, reached, one_way)
            if not found and node not in put_off:
                put_off.add(node)  # another piece's coding may lead here
                waiting.append(node)
                continue
            for candidate in found or self._full_of(node):
                self.chosen.add([candidate])
                _add(reached, candidate)
                self._drop_other_way(candidate)

    def name_every_blob(self) -> bool:
        """Turns deltas round from blobs without a coding of their own towards the full record.

        Returns whether there were any.

        The other end of such a delta may lose its only coding, and follows. Where the other end is
        of no version, the blob is encoded anew.
        """
        own = Counter(candidate.id for candidate in self.chosen)
        waiting = [id_ for id_ in self._specs if not own[id_]]
        if not waiting:
            return False
        ways = self.chosen.cheapest()
        while waiting:
            id_ = waiting.pop()
            for start in starts_of(self._specs[id_].nbytes):
                way = ways[id_, start].step
                if way.id == id_:
                    continue
                if way.id not in self._specs:
                    self.chosen.add(self._past_others((id_, start), ways))
                    own[id_] += 1
                    break
                self.chosen.add([self._costs.turned(way)])
                own[id_] += 1
                if way.grouped or way not in self.chosen:
                    continue
                self.chosen.drop([way])
                own[way.id] -= 1
                if not own[way.id]:
                    waiting.append(way.id)
        return True

    # -- of what a piece can be made -------------------------------------------------------

    def _delta_to(
        self, node: Node, reached: Reachability, one_way: Mapping[Node, list[Candidate]]
    ) -> list[Candidate]:
        """The smallest delta that makes a piece: a stored one, or a chosen one turned round."""
        found = [o for o in self._stored.of(node) if o.base and reached.has_all(o.needs)]
        if node[0] in self._specs:
            ways = [o for o in one_way.get(node, ()) if o.node in reached and o in self.chosen]
            found += map(self._costs.turned, ways)
        return [min(found, key=lambda candidate: candidate.stored)] if found else []

    def _full_of(self, node: Node) -> list[Candidate]:
        full = [candidate for candidate in self._stored.of(node) if candidate.base is None]
        if full:
            return [min(full, key=lambda candidate: candidate.stored)]
        if node[0] not in self._specs:
            return []  # it is lost, and no version needs it
        return self._costs.alone(node[0])

    def _past_others(self, node: Node, ways: Mapping[Node, CheapestPath]) -> list[Candidate]:
        """New codings of a blob, from the nearest blob of a version on its cheapest path."""
        base = ways[node].origin
        while base is not None and base[0] not in self._specs:
            base = ways[base].origin
        return self._costs.alone(node[0]) if base is None else self._costs.tried(node[0], base[0])

    def _drop_other_way(self, candidate: Candidate) -> None:
        """Drops the other direction of a turned delta, unless it shares its payload."""
        for other in self._stored.of((candidate.base or b"", candidate.start)):
            kept = other.grouped or other.id not in self._specs
            if other.base == candidate.id and not other.reversible and not kept:
                self.chosen.drop([other])

    # -- what is there ---------------------------------------------------------------------

    def _reached(self) -> Reachability:
        """The pieces that chosen codings lead to; untried ones count as forward only."""
        reached = Reachability()
        for candidate in self.chosen:
            _add(reached, candidate)
        return reached

    def _needed(self) -> Iterator[Node]:
        """Every piece of every stored blob, those of versions first and in their order."""
        yield from (
            (id_, start)
            for version in self._costs.survey.versions
            for id_ in version.blobs
            for start in starts_of(self._specs[id_].nbytes)
        )
        yield from (each.node for each in self._stored if each.id not in self._specs)

    def _one_way(self) -> dict[Node, list[Candidate]]:
        """Chosen deltas that are not reversible, by the piece they start from."""
        found: dict[Node, list[Candidate]] = defaultdict(list)
        for each in self.chosen:
            if each.base and each.id in self._specs and each.is_one_way:
                found[each.base, each.start].append(each)
        return found


def _add(reached: Reachability, candidate: Candidate) -> None:
    reversible = candidate.reversible and candidate.sure
    reached.add(
        candidate.id,
        candidate.start,
        candidate.base,
        reversible=reversible,
        inputs=candidate.inputs,
    )


class RepackPlan(Struct, frozen=True):
    """``rewrite``: what to do; a plan with nothing to do is false.

    ``full_*`` and ``deltas_*`` count codings of tensors.
    ``given_up``: versions that a recipe makes from then on, in place of their weights. ``prices``:
    before and after in seconds, if the goal is the lowest price.
    """

    goal: Goal
    before: LayoutMetrics
    after: LayoutMetrics
    full_added: int
    full_removed: int
    deltas_added: int
    deltas_removed: int
    rewrite: RewritePlan
    given_up: tuple[CommitId, ...] = ()
    prices: tuple[float, float] | None = None

    def __bool__(self) -> bool:
        return bool(self.rewrite or self.given_up)

    @property
    def added(self) -> tuple[CommitId, ...]:
        """Versions that become reset points."""
        known = set(self.before.reset_points)
        return tuple(id_ for id_ in self.after.reset_points if id_ not in known)

    @property
    def removed(self) -> tuple[CommitId, ...]:
        """Versions that are no longer reset points."""
        left = set(self.after.reset_points)
        return tuple(id_ for id_ in self.before.reset_points if id_ not in left)


class CurvePoint(Struct, frozen=True):
    """``bytes`` of all packs; estimated seconds to recover a version, worst and mean."""

    bytes: int
    worst_seconds: float
    mean_seconds: float


class RepackCurve(Struct, frozen=True):
    """Layouts from the fastest recovery to the fewest bytes, and the layout stored ``today``."""

    points: tuple[CurvePoint, ...]
    today: CurvePoint


class RepackProblem:
    """The inputs of the planner. Raises DamagedData if a record is damaged.

    ``given_up``: by version a path whose weights count as given up already.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        goal: Goal,
        progress: Progress | None = None,
        given_up: Mapping[CommitId, str] | None = None,
    ) -> None:
        found = read_records(store.snapshot)
        found.history.dropped.update(given_up or {})
        found.refuse_damage()
        self.goal = goal
        self.progress = progress
        self.survey: Survey = survey(store, config, found, progress)
        candidates = Candidates(found, store.rates, self.survey.specs)
        self.costs = Costs(self.survey, candidates, Sizes(self.survey), store.rates)
        learn_stored(self.costs)
        self.stored = Selection(self.costs.candidates)
        self.before = layout_metrics(self.costs, self.stored)

    def selected(self, build: Callable[[], Selection]) -> Selection:
        """What ``build`` selects once the codings that are new in its first answer were tried.

        Their sizes are known then, and some may have turned out to be full records.
        """
        chosen = build()
        return build() if attempt(self.costs, chosen.new, self.progress) else chosen

    def plan_of(self, chosen: Selection) -> RepackPlan:
        """The plan to store these codings and no others."""
        gone, new = chosen.lacking(self.costs.candidates), chosen.new
        places = {candidate.place for candidate in gone if candidate.place is not None}
        rewrite = RewritePlan(
            self.survey.found,
            leave=places,
            add=[EncodeRequest(*pair) for pair in dict.fromkeys((o.id, o.base) for o in new)],
            packs={pack for pack, _, _ in places},
            specs=self.survey.specs,
        )
        return RepackPlan(
            goal=self.goal,
            before=self.before,
            after=layout_metrics(self.costs, chosen) if rewrite else self.before,
            full_added=sum(o.base is None for o in new),
            full_removed=sum(o.base is None for o in gone),
            deltas_added=sum(o.base is not None for o in new),
            deltas_removed=sum(o.base is not None for o in gone),
            rewrite=rewrite,
        )

    def unchanged(self) -> RepackPlan:
        return self.plan_of(self.stored)
