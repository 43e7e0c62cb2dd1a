"""``mvc repack``: completes a selection of codings, measures it, and plans the repack.

A *blob* is a tensor's bytes. A *coding* is a stored form of a piece of a blob: a full record, or a
delta from a base (another blob). A repack selects the codings to store. At first, the selection may
lack codings: a piece may have no *path*, which is a series of codings that recovers the piece.
``completed`` adds codings in steps:

1. If a coding is selected, all codings that share its payload (stored bytes) are selected, too.
2. A new delta whose base has no path is encoded on trial. The result may be a full record instead.
3. A piece without a path gets a delta from a piece with a path: the smallest of the stored deltas
   and the reversed selected deltas. If there is no such delta, the piece gets a full record.
4. Each blob gets a coding of its own, because only a coding has the full id of its blob. To make
   this coding, a delta may be reversed. This may remove the path to another blob, so step 3 is
   repeated.

Some stored blobs belong to no version, for example blobs of forgotten versions before ``mvc gc``.
Their codings are retained, and paths may lead through them. They get no new codings, and are not
bases of new deltas.
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
    """A set of codings.

    Codings with the same piece, base and place in a pack are the same coding.
    """

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
        """The ``candidates`` that are not selected."""
        return [candidate for candidate in candidates if candidate not in self]

    def cheapest(self) -> dict[Node, CheapestPath]:
        """The cheapest path to each piece that can be recovered. Cheaper paths come first.

        If two paths cost the same, the path with fewer deltas is chosen. A coding is used only if
        all pieces that it needs can be recovered.
        """
        edges: dict[Node, list[tuple[Candidate, list[Node], Node]]] = defaultdict(list)
        heap: list[tuple[float, int, int, Node, Candidate, Node | None]] = []
        tickets = count()
        for candidate in self:
            node, needs = candidate.node, candidate.needs
            if not needs:
                ns = candidate.seconds * 1e9
                heap.append((ns, 0, next(tickets), node, candidate, None))
            for needed in needs:
                edges[needed].append((candidate, needs, node))
            if candidate.reversible and not candidate.inputs:
                edges[node].append((candidate, [node], needs[0]))
        heapify(heap)
        paths: dict[Node, CheapestPath] = {}
        while heap:
            cost, deltas, _, node, step, origin = heappop(heap)
            if node in paths:
                continue
            stored = step.stored + (0 if origin is None else paths[origin].stored)
            paths[node] = CheapestPath(cost, deltas, stored, step=step, origin=origin)
            for candidate, needs, target in edges[node]:
                if target not in paths and all(needed in paths for needed in needs):
                    ns, depth = cost + candidate.seconds * 1e9, paths[needs[0]].deltas + 1
                    heappush(heap, (ns, depth, next(tickets), target, candidate, needs[0]))
        return paths


class CheapestPath(NamedTuple):
    """The path to a piece. ``cost``: time in nanoseconds. ``deltas``: number of deltas.

    ``stored``: number of bytes to read. ``step``: the last coding of the path. ``origin``: the
    piece that the last coding starts from, or None.
    """

    cost: float
    deltas: int
    stored: int
    step: Candidate
    origin: Node | None


def _key(candidate: Candidate) -> _Key:
    return candidate.id, candidate.start, candidate.base, candidate.place


class LayoutMetrics(Struct, frozen=True):
    """The size of a layout (the codings of a repository), and the costs of recovering a version.

    ``bytes``: the size of all packs. ``reset_points``: versions that are stored in full, in the
    order of versions. ``worst_*``, ``mean_*``: the worst and the mean of all versions.
    ``*_seconds``: estimated time on this machine. ``*_bytes``: number of stored bytes to decode.
    ``*_deltas``: number of deltas to apply for the tensor that needs most deltas.
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
                hint="run 'mvc fsck --repair', with --from if you have a backup; 'mvc forget "
                f"{version.commit.short}' deletes its state",
            )
        paths = [reached[node] for node in nodes]
        wanted = {node: min(PIECE, survey.size(node[0]) - node[1]) for node in nodes}
        walks = decoded(wanted, lambda node: shared.last_step(reached[node]))
        works = together(walks, shared.seconds.__getitem__)
        times.append(costs.rates.version(works, version.files, version.nbytes))
        sizes.append(sum(path.stored for path in paths))
        depths.append(max((path.deltas for path in paths), default=0))
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
    """The groups of a selection. A group consists of codings that share a payload.

    ``seconds``: maps a group to the time to decode the whole payload. New codings have no payload
    yet. If the pipeline makes groups, new codings of blobs that one operation published are assumed
    to be a group.
    """

    def __init__(self, costs: Costs, selection: Selection) -> None:
        text = costs.survey.config.get("commit.pipeline")
        self._groups_new = Pipeline.parse(text).coding().scope == "group"
        self._graph = costs.survey.graph
        groups: dict[Hashable, list[Candidate]] = defaultdict(list)
        for candidate in selection.new if self._groups_new else ():
            groups[self._group(candidate)].append(candidate)
        groups_ = (*groups.items(), *costs.candidates.groups.items())
        self.seconds: dict[Hashable, float] = {
            key: of_group(o.seconds for o in codings) for key, codings in groups_
        }

    def last_step(self, path: CheapestPath) -> tuple[int, Part, Node | None, list[Node]]:
        """The last step of a path, as ``decoded`` needs it."""
        part = path.step.seconds, self._group(path.step)
        return path.step.nbytes, part, path.origin, path.step.needs[1:]

    def _group(self, candidate: Candidate) -> Hashable | None:
        if candidate.place is not None:
            return candidate.place[:2] if candidate.grouped else None
        if not self._groups_new:
            return None
        return self._graph.entry_of(candidate.id), candidate.base is None, "new"


# -- bytes in packs ------------------------------------------------------------------------


def _packed(costs: Costs, selection: Selection) -> int:
    """The size of all packs after a repack: without unselected codings, with new codings."""
    dropped = defaultdict(set)
    for candidate in selection.lacking(costs.candidates):
        assert candidate.place is not None
        dropped[candidate.place[:2]].add(candidate.place[2])
    graph = costs.survey.graph
    headers = [(graph.pack_reader.header(*place), members) for place, members in dropped.items()]
    freed = sum(header.size - _size_without(header, members) for header, members in headers)
    new_by_entry: dict[int, list[Candidate]] = defaultdict(list)
    for candidate in selection.new:
        new_by_entry[graph.entry_of(candidate.id)].append(candidate)
    pipeline = encoding_policy(costs.survey.config).pipeline
    added = sum(_added(candidates, pipeline) for candidates in new_by_entry.values())
    return sum(graph.lengths) - freed + added


def _size_without(header: RecordHeader, dropped: set[int]) -> int:
    """The size of a record without the members at the positions ``dropped``."""
    retained = [member for i, member in enumerate(header.members) if i not in dropped]
    if not retained or header.group:  # a group is dropped as a whole
        return 0 if not retained else header.size
    size = sum(member.stored for member in retained)
    manifests = [member for member in retained if member.kind == MANIFEST]
    for manifest in manifests:
        # A manifest in a record with blobs refers to the ids of these blobs. In a separate record,
        # the manifest has the ids itself.
        ids = sum(member.kind == BLOB for member in header.members)
        size += 32 * ids + len(encode_header([manifest], group=False, body_size=0))
    blobs = [member for member in retained if member.kind != MANIFEST]
    return size + (_head(blobs) if blobs else 0)


def _added(candidates: Sequence[Candidate], pipeline: Pipeline) -> int:
    """The size of a record of new codings."""
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
    """The selection, plus the codings that are needed to recover every piece."""
    completion = _Completion(Selection(selection), costs)
    completion.keep_groups_whole()
    completion.try_backward_deltas()
    completion.reach_every_piece()
    if completion.name_every_blob():
        completion.reach_every_piece()
    return completion.chosen


class _Completion:
    def __init__(self, chosen: Selection, costs: Costs) -> None:
        self.chosen = chosen
        self._costs = costs
        self._stored = costs.candidates
        self._specs = costs.survey.specs  # of blobs that versions have

    def keep_groups_whole(self) -> None:
        for group in self._stored.groups.values():
            if any(candidate in self.chosen for candidate in group):
                self.chosen.add(group)

    def try_backward_deltas(self) -> None:
        """Encodes each new delta whose base has no path. Replaces the delta by the result."""
        reached = self._reached()
        unproven = {
            (delta.id, delta.base): delta.span
            for delta in self.chosen.new
            if delta.base and not delta.sure and (delta.base, delta.start) not in reached
        }
        self.chosen.drop([delta for delta in self.chosen.new if (delta.id, delta.base) in unproven])
        for (id_, base), span in unproven.items():
            self.chosen.add(self._costs.tried(id_, base, span))

    def reach_every_piece(self) -> None:
        reached = self._reached()
        waiting = deque(node for node in self._needed() if node not in reached)
        one_way = self._one_way()
        deferred: set[Node] = set()
        while waiting:
            node = waiting.popleft()
            if node in reached:
                continue
            codings = self._delta_to(node, reached, one_way)
            if not codings and node not in deferred:
                deferred.add(node)  # a coding that is chosen later may recover the piece
                waiting.append(node)
                continue
            for candidate in codings or self._full_of(node):
                self.chosen.add([candidate])
                _add(reached, candidate)
                self._drop_other_direction(candidate)

    def name_every_blob(self) -> bool:
        """Gives each blob a coding of its own. Returns whether a blob had none.

        A blob without a coding is the base of a delta that is applied in reverse. This delta is
        replaced by a delta in the opposite direction. If the blob that the old delta coded then has
        no coding, that blob is treated next. If no version has that blob, the old delta stays, and
        the base is encoded again.
        """
        own = Counter(candidate.id for candidate in self.chosen)
        waiting = [id_ for id_ in self._specs if not own[id_]]
        if not waiting:
            return False
        paths = self.chosen.cheapest()
        while waiting:
            id_ = waiting.pop()
            for start in starts_of(self._specs[id_].nbytes):
                step = paths[id_, start].step
                if step.id == id_:
                    continue
                if step.id not in self._specs:
                    self.chosen.add(self._from_versions((id_, start), paths))
                    own[id_] += 1
                    break
                self.chosen.add([self._costs.reversed(step)])
                own[id_] += 1
                if step.grouped or step not in self.chosen:
                    continue
                self.chosen.drop([step])
                own[step.id] -= 1
                if not own[step.id]:
                    waiting.append(step.id)
        return True

    # -- codings of a piece ------------------------------------------------------------------

    def _delta_to(
        self, node: Node, reached: Reachability, one_way: Mapping[Node, list[Candidate]]
    ) -> list[Candidate]:
        """The smallest delta to a piece: a stored delta, or a reversed selected delta."""
        deltas = [o for o in self._stored.of(node) if o.base and reached.has_all(o.needs)]
        if node[0] in self._specs:
            reversed_ = [o for o in one_way.get(node, ()) if o.node in reached and o in self.chosen]
            deltas += map(self._costs.reversed, reversed_)
        return [min(deltas, key=lambda candidate: candidate.stored)] if deltas else []

    def _full_of(self, node: Node) -> list[Candidate]:
        full = [candidate for candidate in self._stored.of(node) if candidate.base is None]
        if full:
            return [min(full, key=lambda candidate: candidate.stored)]
        if node[0] not in self._specs:
            return []  # the blob is lost, and no version needs the blob
        return self._costs.full_of(node[0])

    def _from_versions(self, node: Node, paths: Mapping[Node, CheapestPath]) -> list[Candidate]:
        """New codings of a blob.

        To find the base, goes back on the cheapest path to this blob, until a blob that a version
        has.
        """
        base = paths[node].origin
        while base is not None and base[0] not in self._specs:
            base = paths[base].origin
        return self._costs.full_of(node[0]) if base is None else self._costs.tried(node[0], base[0])

    def _drop_other_direction(self, candidate: Candidate) -> None:
        """Drops the stored delta in the opposite direction of ``candidate``.

        The stored delta remains if it is reversible, if it shares its payload, or if no version has
        its blob.
        """
        for other in self._stored.of((candidate.base or b"", candidate.start)):
            stays = other.grouped or other.id not in self._specs
            if other.base == candidate.id and not other.reversible and not stays:
                self.chosen.drop([other])

    # -- state -----------------------------------------------------------------------------

    def _reached(self) -> Reachability:
        """The pieces to which selected codings lead.

        A new delta counts as not reversible until a trial has encoded it.
        """
        reached = Reachability()
        for candidate in self.chosen:
            _add(reached, candidate)
        return reached

    def _needed(self) -> Iterator[Node]:
        """Every piece of every stored blob. The blobs of versions come first, in the order of
        versions.
        """
        yield from (
            (id_, start)
            for version in self._costs.survey.versions
            for id_ in version.blobs
            for start in starts_of(self._specs[id_].nbytes)
        )
        yield from (candidate.node for candidate in self._stored if candidate.id not in self._specs)

    def _one_way(self) -> dict[Node, list[Candidate]]:
        """Maps a piece to the selected deltas from this piece that are not reversible."""
        one_way: dict[Node, list[Candidate]] = defaultdict(list)
        for coding in self.chosen:
            if coding.base and coding.id in self._specs and coding.is_one_way:
                one_way[coding.base, coding.start].append(coding)
        return one_way


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
    """The changes of a repack. A plan without changes is false.

    ``full_*``, ``deltas_*``: numbers of codings of tensors. ``dropped``: versions whose weights the
    repack deletes, because their recipe can compute the weights again. ``prices``: with the goal
    ``weight``, the price (see ``Goal``) before and after the repack.
    """

    goal: Goal
    before: LayoutMetrics
    after: LayoutMetrics
    full_added: int
    full_removed: int
    deltas_added: int
    deltas_removed: int
    rewrite: RewritePlan
    dropped: tuple[CommitId, ...] = ()
    prices: tuple[float, float] | None = None

    def __bool__(self) -> bool:
        return bool(self.rewrite or self.dropped)

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
    """A layout: the size of all packs, and the estimated times to recover a version."""

    bytes: int
    worst_seconds: float
    mean_seconds: float


class RepackCurve(Struct, frozen=True):
    """Possible layouts, from the fastest recovery to the fewest bytes. ``today``: the present
    layout.
    """

    points: tuple[CurvePoint, ...]
    today: CurvePoint


class RepackProblem:
    """The inputs of the planner. Raises DamagedData if a record is damaged.

    ``dropped``: maps versions to a file's path. The plan is made as if these files had no weights.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        goal: Goal,
        progress: Progress | None = None,
        dropped: Mapping[CommitId, str] | None = None,
    ) -> None:
        graph = read_records(store.snapshot)
        graph.history.dropped.update(dropped or {})
        graph.refuse_damage()
        self.goal = goal
        self.progress = progress
        self.survey: Survey = survey(store, config, graph, progress)
        candidates = Candidates(graph, store.rates, self.survey.specs)
        self.costs = Costs(self.survey, candidates, Sizes(self.survey), store.rates)
        learn_stored(self.costs)
        self.stored = Selection(self.costs.candidates)
        self.before = layout_metrics(self.costs, self.stored)

    def selected(self, build: Callable[[], Selection]) -> Selection:
        """The selection that ``build`` makes, with measured sizes of new codings.

        After a first call of ``build``, some of the new codings are encoded on trial, which
        measures their sizes. Then ``build`` is called again with these sizes.
        """
        chosen = build()
        return build() if attempt(self.costs, chosen.new, self.progress) else chosen

    def plan_of(self, chosen: Selection) -> RepackPlan:
        """The plan to store exactly these codings."""
        removed, new = chosen.lacking(self.costs.candidates), chosen.new
        places = {candidate.place for candidate in removed if candidate.place is not None}
        rewrite = RewritePlan(
            self.survey.graph,
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
            full_removed=sum(o.base is None for o in removed),
            deltas_added=sum(o.base is not None for o in new),
            deltas_removed=sum(o.base is not None for o in removed),
            rewrite=rewrite,
        )

    def unchanged(self) -> RepackPlan:
        return self.plan_of(self.stored)
