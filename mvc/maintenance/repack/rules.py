"""Selects what ``mvc repack`` stores by a rule, or prepares the decision for the solver.

A *content* is the bytes of one tensor. A *coding* is one stored form of a content: a full record,
or a delta from another content. A *shape* has for each content at most one delta, from an earlier
content. The solver decides which deltas of a shape to store, and which contents to store in full
(``ContentPlan``). Four goals of a repack need no solver: a reset point every N versions, the layout
in the settings, reset points to add, and reset points to remove.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from heapq import heappop, heappush
from typing import TypeAlias

from mvc.errors import Unattainable
from mvc.ids import CommitId
from mvc.maintenance.repack.goal import Goal
from mvc.maintenance.repack.plan import Selection, completed
from mvc.maintenance.repack.problem import Candidate, Costs, Survey, Version, starts_of
from mvc.maintenance.repack.solve import (
    BYTES_ONLY,
    Bundles,
    Edge,
    Nodes,
    Priced,
    Selected,
    Solver,
    Training,
)
from mvc.maintenance.weights import Alternative
from mvc.repo.lookup import availability
from mvc.store.graph.search import Link
from mvc.store.writing.layout import Layout as SkipLayout

Shape: TypeAlias = Mapping[bytes, tuple[bytes, list[Candidate]]]
"""Maps a content to an earlier content, and to the codings of a delta from that content."""
Group: TypeAlias = tuple[int, int]
"""Pack and offset of a payload that contains several contents."""


def of_unversioned(costs: Costs) -> Selection:
    """The stored codings of blobs that no version has."""
    specs = costs.survey.specs
    return Selection(candidate for candidate in costs.candidates if candidate.id not in specs)


def coded_from(costs: Costs, bases: Iterable[int | None]) -> Shape:
    """The shape with deltas from base versions. ``bases``: for each version, the position of its
    base version.

    If several versions have a content, the base version of the first of these versions counts.
    """
    first, shape = costs.survey.first, dict[bytes, tuple[bytes, list[Candidate]]]()
    for i, base in enumerate(bases):
        for id_, candidates in ({} if base is None else costs.between(base, i)).items():
            ends = {o.id for o in candidates} | {o.base for o in candidates if o.base}
            other_ids = ends - {id_}
            if first[id_] == i and len(other_ids) == 1:
                (other,) = other_ids
                if first.get(other, i) < i:
                    shape[id_] = other, candidates
    return shape


def history(costs: Costs) -> Shape:
    """The shape with deltas from the parent of the first version that has the content."""
    return coded_from(costs, (version.parent for version in costs.survey.versions))


def as_stored(costs: Costs) -> Shape:
    """The shape with the smallest stored delta of each content."""
    shape: dict[bytes, tuple[bytes, list[Candidate]]] = {}
    numbers = {id_: number for number, id_ in enumerate(costs.survey.first)}
    for id_, base, candidates in costs.of_whole_blobs():
        if base is None:
            continue
        older, newer = sorted((id_, base), key=numbers.__getitem__)
        size = sum(o.stored for o in candidates)
        smaller = newer not in shape or size < sum(o.stored for o in shape[newer][1])
        if smaller and (newer == id_ or all(o.reversible for o in candidates)):
            shape[newer] = older, candidates
    return shape


class ContentPlan:
    """The solver's input for a shape.

    ``contents``: the sizes and decoding times of full records and deltas. ``numbers``: maps the id
    of a content to its position in ``contents``.
    """

    def __init__(
        self,
        costs: Costs,
        shape: Shape,
        weight: float | None = None,
        alternatives: Mapping[CommitId, Alternative] | None = None,
        factors: Mapping[Group, float] | None = None,
    ) -> None:
        """``weight``: how many seconds of recovery time are worth one stored gigabyte; None if time
        does not count. ``alternatives``: recipes, with which the solver may drop weights.

        ``factors``: maps a group (contents that share one payload) to the factor by which the sizes
        of its contents are multiplied.
        """
        self._costs, self._shape, self._factors = costs, shape, factors or {}
        survey = costs.survey
        self._ids = list(survey.first)
        self.numbers = {id_: number for number, id_ in enumerate(self._ids)}
        self._contents_of = [[self.numbers[id_] for id_ in v.blobs] for v in survey.versions]
        self._full = [costs.full_of(id_) for id_ in self._ids]
        self._codings_of = [(id_, *shape[id_]) for id_ in self._ids if id_ in shape]
        timed = list(map(self._timed, survey.versions, self._contents_of))
        fixed, self._shares = [ns for ns, _ in timed], [share for _, share in timed]
        self.contents = Nodes(
            list(map(self._bytes, self._full)),
            list(map(self._ns, self._ids, self._full)),
            [self._edge(*coded) for coded in self._codings_of],
        )
        self._bytes_only = weight is None
        self._priced = Priced(
            self.contents,
            self._contents_of,
            fixed,
            BYTES_ONLY if weight is None else weight,
            trainings=trainings(survey, alternatives or {}, self.numbers),
        )

    @cached_property
    def _bundles(self) -> Bundles | None:
        return Bundles(self._priced) if self._bytes_only else None

    @cached_property
    def solver(self) -> Solver:
        """The solver. Without ``weight``, contents that the same versions have are one node."""
        return Solver(self._priced if self._bundles is None else self._bundles.priced)

    @property
    def roots(self) -> Iterator[int]:
        """The contents to which no delta of the shape leads."""
        return (number for id_, number in self.numbers.items() if id_ not in self._shape)

    def _bytes(self, candidates: Iterable[Candidate]) -> int:
        factors = self._factors
        sizes = (o.stored * (factors.get(o.group, 1) if o.grouped else 1) for o in candidates)
        return round(sum(sizes))

    def _timed(self, version: Version, numbers: Iterable[int]) -> tuple[int, float]:
        """Returns a version's recovery time without decoding, in nanoseconds, and a ratio.

        The ratio is the elapsed time divided by the CPU time when several threads decode the large
        contents of the version.
        """
        records = [o for number in numbers for o in self._full[number]]
        large = [0.0 if self._is_serial(o) else o.seconds for o in records]
        idle, busy = (
            self._costs.rates.version(
                [(o.nbytes, ns) for o, ns in zip(records, seconds, strict=True)],
                version.files,
                version.nbytes,
            )
            for seconds in ([0.0] * len(records), large)
        )
        return round(idle * 1e9), (busy - idle) / sum(large) if any(large) else 1.0

    def _is_serial(self, coding: Candidate) -> bool:
        """Whether a payload is too small for several threads."""
        return self._costs.rates.decoding([(coding.nbytes, 1.0)]) >= 1

    def _ns(self, id_: bytes, candidates: Iterable[Candidate]) -> int:
        share = self._shares[self._costs.survey.first[id_]]
        seconds = (o.seconds * (1 if self._is_serial(o) else share) for o in candidates)
        return round(sum(seconds) * 1e9)

    def _edge(self, id_: bytes, base: bytes, candidates: Sequence[Candidate]) -> Edge:
        forward = any(o.forward_only for o in candidates)
        ns, stored = self._ns(id_, candidates), self._bytes(candidates)
        return Edge(self.numbers[base], self.numbers[id_], stored, ns=ns, forward=forward)

    def selection(self, layout: Selected) -> Selection:
        """The codings that the solver's result ``layout`` selects.

        The stored codings of blobs that no version has are added.
        """
        return self.codings(layout if self._bundles is None else self._bundles.contents(layout))

    def codings(self, layout: Selected) -> Selection:
        """As ``selection``, but the nodes of ``layout`` are single contents.

        Each delta is encoded in the direction in which recoveries decode it.
        """
        chosen = of_unversioned(self._costs)
        for number in sorted(layout.sources):
            chosen.add(self._costs.full_of(self._ids[number]))
        times = self.contents.recovery(layout)
        for number in sorted(layout.edges):
            edge, (id_, _, codings) = self.contents.edges[number], self._codings_of[number]
            forward = times.get(edge.a, 0) + edge.ns == times.get(edge.b)
            backward = times.get(edge.b, 0) + edge.ns == times.get(edge.a)
            for candidate in codings:
                is_wrong_way = backward if candidate.id == id_ else forward
                if candidate.base and is_wrong_way and candidate.is_one_way:
                    chosen.drop([candidate])
                    candidate = self._costs.reversed(candidate)
                chosen.add([candidate])
        return completed(chosen, self._costs)


def deltas(shape: Shape) -> Iterator[Candidate]:
    """All codings of the deltas in a shape."""
    return (candidate for _, codings in shape.values() for candidate in codings)


def trainings(
    survey: Survey, alternatives: Mapping[CommitId, Alternative], numbers: Mapping[bytes, int]
) -> dict[int, Training]:
    """Maps the positions of versions with stored weights to their recipes.

    ``numbers``: maps ids of contents to positions. If the weights of a recipe's base were dropped,
    the time of the base's recipe is added.
    """
    dropped, results = survey.graph.history.dropped, dict[int, Training]()
    for commit, recipe in alternatives.items():
        base_id, seconds = recipe.base, recipe.seconds
        while base_id in dropped and base_id in alternatives:
            base_id, seconds = alternatives[base_id].base, seconds + alternatives[base_id].seconds
        number, base = survey.numbers.get(commit), survey.numbers.get(base_id)
        if number is None or base is None or {commit, base_id} & dropped.keys():
            continue
        blobs = survey.versions[number].blobs
        prefix = f"{recipe.path}\0"
        remaining = [numbers[id_] for id_, line in blobs.items() if not line.startswith(prefix)]
        results[number] = Training(base, round(seconds * 1e9), remaining)
    return results


def by_rule(costs: Costs, goal: Goal) -> Selection:
    """The selection for a goal that is a rule."""
    if goal.add:
        return with_reset_points(costs, goal.add)
    if goal.layout is not None:
        return skipping(costs, goal.layout)
    assert goal.interval is not None
    return at_interval(costs, goal.interval)


def at_interval(costs: Costs, interval: int) -> Selection:
    """A reset point every ``interval`` versions, and deltas from parents.

    A version is recovered from the nearest reset point before or after the version (thesis VSOL,
    §3.2.8). If ``interval`` is 1 or 2, no reset point after the version is nearer than the one
    before it, so no delta leads to a reset point (``Layout.is_near``).
    """
    survey, plan = costs.survey, ContentPlan(costs, history(costs))
    sources = set(plan.roots)
    sources.update(
        plan.numbers[id_]
        for i, version in enumerate(survey.versions)
        if survey.generation(i) % interval == 0
        for id_ in version.blobs
    )
    edges = {
        n for n, edge in enumerate(plan.contents.edges) if interval > 2 or edge.b not in sources
    }
    return plan.codings(Selected(frozenset(sources), frozenset(edges)))


def skips(costs: Costs, step: int) -> Shape:
    """The shape with deltas from the versions that a layout with skip deltas chooses as bases.

    A content that is stored as an approximate step or as an optimizer's step has a delta from the
    parent version.
    """
    survey = costs.survey
    chains_ = chains(costs, SkipLayout(step=step))
    bases = [
        None if len(chain) == 1 else survey.numbers[CommitId(chain[-2].id)] for chain in chains_
    ]
    return dict(history(costs)) | {
        id_: codings
        for id_, codings in coded_from(costs, bases).items()
        if not costs.candidates.added(id_, survey.size(id_))
    }


def skipping(costs: Costs, layout: SkipLayout) -> Selection:
    """The codings that commits with this layout would have stored.

    The layout chooses a base version for each version. Each blob has one delta, from the blob with
    the same path and name in the base version. If this delta saves too little, the stored delta
    stays, unless its path of deltas is too long. Blobs of a reset point have a full record. If
    another reset point is near, they have no delta. Approximate and optimizer steps stay.
    """
    chosen, survey, chains_ = of_unversioned(costs), costs.survey, chains(costs, layout)
    depths: dict[bytes, int] = {}
    deepest = layout.deepest // 2
    for i, (version, chain) in enumerate(zip(survey.versions, chains_, strict=True)):
        base = version.parent if len(chain) == 1 else survey.numbers[CommitId(chain[-2].id)]
        if len(chain) == 1 and base is not None and layout.is_near(chains_[base], version.sequence):
            base = None
        for id_, candidates in ({} if base is None else costs.between(base, i)).items():
            size = survey.size(id_)
            if survey.first[id_] != i or costs.candidates.added(id_, size):
                continue
            if not any(candidate.base for candidate in candidates):
                stored = costs.candidates.delta(id_, size, survey.specs.keys()) or []
                depth = max((depths.get(c.base or b"", 0) for c in stored), default=0)
                candidates = stored if stored and depth <= deepest else candidates
            chosen.add(candidates)
            depths[id_] = max(depths.get(c.base, 0) + 1 if c.base else 0 for c in candidates)
        for id_ in version.blobs:
            chosen.add(costs.candidates.added(id_, survey.size(id_)))
            if len(chain) == 1:
                chosen.add(costs.full(i, id_))
                depths[id_] = 0
    return completed(chosen, costs)


def chains(costs: Costs, layout: SkipLayout) -> list[tuple[Link, ...]]:
    """For each version its chain: the versions to decode in order, from one that is stored in full
    to this version.
    """
    chains_: list[tuple[Link, ...]] = []
    for i, version in enumerate(costs.survey.versions):
        chain = () if version.parent is None else chains_[version.parent]
        predicted = bool(chain) and _is_predicted(costs, i)
        if not predicted:  # a predicted version is a delta from its parent
            ends = not chain or layout.ends(chain, version.sequence)
            at = -1 if ends else chain.index(layout.base(chain, version.sequence))
            chain = chain[: at + 1]
        link = Link(
            version.commit,
            version.sequence,
            depth=len(chain),
            stored=0,
            nbytes=0,
            predicted=predicted,
        )
        chains_.append((*chain, link))
    return chains_


def _is_predicted(costs: Costs, i: int) -> bool:
    """Whether a content of the version at position ``i`` is stored as an optimizer's step."""
    survey = costs.survey
    fresh = (id_ for id_ in survey.versions[i].blobs if survey.first[id_] == i)
    return any(o.predicted for id_ in fresh for o in costs.candidates.of((id_, 0)))


def with_reset_points(costs: Costs, ids: Sequence[CommitId]) -> Selection:
    """All stored codings plus full records of these versions."""
    chosen = Selection(costs.candidates)
    for i in numbers_of(costs.survey, ids):
        for id_ in costs.survey.versions[i].blobs:
            chosen.add(costs.full(i, id_))
    return chosen


def without_reset_points(costs: Costs, ids: Sequence[CommitId]) -> tuple[Selection, Selection]:
    """Returns two selections without the full records that only these versions need.

    The first selection has only stored codings. The second selection has new deltas, too, to
    contents that no stored delta leads to. Raises Unattainable if one of the versions is not a
    reset point, or could not be recovered.
    """
    survey, stored = costs.survey, Selection(costs.candidates)
    numbers, before = numbers_of(survey, ids), costs.sources
    for i in numbers:
        if i not in before:
            raise Unattainable(
                f"version {survey.versions[i].commit.short} is not a reset point",
                hint="run 'mvc show' to see whether a version is a reset point",
            )
    needed = {id_ for i in before.difference(numbers) for id_ in survey.versions[i].blobs}
    removed = {id_ for i in numbers for id_ in survey.versions[i].blobs} - needed
    connected = Selection(costs.candidates)
    for chosen in (stored, connected):
        drop_full(chosen, costs, removed)
    lost = _connect(costs, connected) & removed
    if 2 * sum(map(survey.size, lost)) > sum(map(survey.size, removed)):
        raise Unattainable(
            f"without its full records version {ids[0].short} could not be recovered: no "
            "delta leads to it from another reset point",
            hint="keep one of these reset points, or add another one first",
        )
    return completed(stored, costs), completed(connected, costs)


def drop_full(chosen: Selection, costs: Costs, removed: Set[bytes]) -> None:
    """Drops the full records of the blobs ``removed``.

    If such a record is a payload of several blobs, the other blobs are encoded again. If a blob of
    the payload belongs to no version, it cannot be encoded again, and the payload stays.
    """
    mates: set[bytes] = set()
    for group in costs.candidates.groups.values():
        ids = {candidate.id for candidate in group if candidate.base is None}
        if not ids.isdisjoint(removed) and ids <= costs.survey.first.keys():
            mates |= ids - removed
    dropped = removed | mates
    chosen.drop([o for o in chosen if o.base is None and o.id in dropped])
    for id_ in sorted(mates):
        chosen.add(costs.encoded_again(id_))


def _connect(costs: Costs, chosen: Selection) -> set[bytes]:
    """Adds the smallest deltas that lead to all contents. Returns the unreached contents."""
    edges: dict[bytes, list[tuple[int, bytes, bytes]]] = defaultdict(list)
    full, shape = {o.node for o in chosen if o.base is None}, history(costs)
    for coding in chosen:
        if coding.base is not None:
            edges[coding.base].append((0, coding.id, b""))
            if coding.reversible:
                edges[coding.id].append((0, coding.base, b""))
    for id_, (base, candidates) in shape.items():
        size = max(1, sum(o.stored for o in candidates))
        edges[base].append((size, id_, id_))
        if not any(o.forward_only for o in candidates):
            edges[id_].append((size, base, id_))
    starts = {id_: starts_of(costs.survey.size(id_)) for id_ in costs.survey.first}
    heap = [
        (0, i, b"") for i, offsets in starts.items() if all((i, start) in full for start in offsets)
    ]
    lost = set(starts)
    while heap:
        _, id_, via = heappop(heap)
        if id_ not in lost:
            continue
        lost.discard(id_)
        chosen.add(shape[via][1] if via else ())
        for edge in edges[id_]:
            heappush(heap, edge)
    return lost


def numbers_of(survey: Survey, ids: Sequence[CommitId]) -> list[int]:
    """The positions of versions. Raises Unattainable if the state of a version is not stored."""
    for id_ in ids:
        if id_ not in survey.numbers:
            availability.check_stored(survey.store, id_)
            raise Unattainable(f"the state of version {id_.short} is not stored any more")
    return [survey.numbers[id_] for id_ in ids]
