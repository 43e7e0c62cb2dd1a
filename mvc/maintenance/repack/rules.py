"""Selections of codings: by a rule, or by what the solver chooses from.

A *shape* says from which earlier content each one may be made, and by which codings. The solver
decides which of these deltas are kept, and what is stored in full (``ContentPlan``). Some goals say
themselves what is stored: an interval, the layout of the settings, reset points to add or to
remove.
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
    BYTES_ALONE,
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
"""By content the earlier one that it may be made from, and the codings for that."""
Group: TypeAlias = tuple[int, int]
"""Pack and offset of a payload that several codings share."""


def of_others(costs: Costs) -> Selection:
    """The stored codings of blobs that no version has."""
    specs = costs.survey.specs
    return Selection(candidate for candidate in costs.candidates if candidate.id not in specs)


def coded_against(costs: Costs, bases: Iterable[int | None]) -> Shape:
    """Each content is made from its first version's base. ``bases``: a version for each version."""
    first, found = costs.survey.first, dict[bytes, tuple[bytes, list[Candidate]]]()
    for i, base in enumerate(bases):
        for id_, candidates in ({} if base is None else costs.between(base, i)).items():
            ends = {o.id for o in candidates} | {o.base for o in candidates if o.base}
            others = ends - {id_}
            if first[id_] == i and len(others) == 1:
                (other,) = others
                if first.get(other, i) < i:
                    found[id_] = other, candidates
    return found


def history(costs: Costs) -> Shape:
    """Each content is made from its version's parent, as in a chain."""
    return coded_against(costs, (version.parent for version in costs.survey.versions))


def as_stored(costs: Costs) -> Shape:
    """Each content is made by the smallest delta that is stored."""
    found: dict[bytes, tuple[bytes, list[Candidate]]] = {}
    numbers = {id_: number for number, id_ in enumerate(costs.survey.first)}
    for id_, base, candidates in costs.whole():
        if base is None:
            continue
        older, newer = sorted((id_, base), key=numbers.__getitem__)
        size = sum(o.stored for o in candidates)
        smaller = newer not in found or size < sum(o.stored for o in found[newer][1])
        if smaller and (newer == id_ or all(o.reversible for o in candidates)):
            found[newer] = older, candidates
    return found


class ContentPlan:
    """``contents``: those of the versions, in their order, and ``numbers``, their places by id."""

    def __init__(
        self,
        costs: Costs,
        shape: Shape,
        weight: float | None = None,
        alternatives: Mapping[CommitId, Alternative] | None = None,
        factors: Mapping[Group, float] | None = None,
    ) -> None:
        """``weight``: seconds that a gigabyte is worth. ``alternatives`` may be chosen.

        ``factors``: by group what its bytes count for.
        """
        self._costs, self._shape, self._factors = costs, shape, factors or {}
        survey = costs.survey
        self._ids = list(survey.first)
        self.numbers = {id_: number for number, id_ in enumerate(self._ids)}
        self._held = [[self.numbers[id_] for id_ in v.blobs] for v in survey.versions]
        self._full = [costs.alone(id_) for id_ in self._ids]
        self._made = [(id_, *shape[id_]) for id_ in self._ids if id_ in shape]
        timed = list(map(self._timed, survey.versions, self._held))
        fixed, self._shares = [ns for ns, _ in timed], [share for _, share in timed]
        self.contents = Nodes(
            list(map(self._bytes, self._full)),
            list(map(self._ns, self._ids, self._full)),
            [self._edge(*each) for each in self._made],
        )
        self._alone = weight is None
        self._priced = Priced(
            self.contents,
            self._held,
            fixed,
            BYTES_ALONE if weight is None else weight,
            trainings=trainings(survey, alternatives or {}, self.numbers),
        )

    @cached_property
    def _bundles(self) -> Bundles | None:
        return Bundles(self._priced) if self._alone else None

    @cached_property
    def solver(self) -> Solver:
        """Of the problem; where only bytes count (no ``weight``), of bundles of contents."""
        return Solver(self._priced if self._bundles is None else self._bundles.priced)

    @property
    def roots(self) -> Iterator[int]:
        """The contents that no delta leads to from an earlier one."""
        return (number for id_, number in self.numbers.items() if id_ not in self._shape)

    def _bytes(self, candidates: Iterable[Candidate]) -> int:
        known = self._factors
        each = (o.stored * (known.get(o.group, 1) if o.grouped else 1) for o in candidates)
        return round(sum(each))

    def _timed(self, version: Version, held: Iterable[int]) -> tuple[int, float]:
        """Nanoseconds of a version's recovery beside decoding, and the share of processor seconds
        that passes where its large contents are decoded by several threads.
        """
        every = [o for number in held for o in self._full[number]]
        large = [0.0 if self._is_serial(o) else o.seconds for o in every]
        idle, busy = (
            self._costs.rates.version(
                [(o.nbytes, ns) for o, ns in zip(every, seconds, strict=True)],
                version.files,
                version.nbytes,
            )
            for seconds in ([0.0] * len(every), large)
        )
        return round(idle * 1e9), (busy - idle) / sum(large) if any(large) else 1.0

    def _is_serial(self, coding: Candidate) -> bool:
        """Whether it is too small for several threads."""
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
        """The codings that a layout of the solver needs, and those of blobs that no version has."""
        return self.codings(layout if self._bundles is None else self._bundles.contents(layout))

    def codings(self, layout: Selected) -> Selection:
        """As ``selection``, of a layout of single contents.

        Each delta leads into the direction that recovery takes.
        """
        chosen = of_others(self._costs)
        for number in sorted(layout.sources):
            chosen.add(self._costs.alone(self._ids[number]))
        times = self.contents.recovery(layout)
        for number in sorted(layout.edges):
            edge, (id_, _, made) = self.contents.edges[number], self._made[number]
            forward = times.get(edge.a, 0) + edge.ns == times.get(edge.b)
            backward = times.get(edge.b, 0) + edge.ns == times.get(edge.a)
            for candidate in made:
                against = backward if candidate.id == id_ else forward
                if candidate.base and against and candidate.is_one_way:
                    chosen.drop([candidate])
                    candidate = self._costs.turned(candidate)
                chosen.add([candidate])
        return completed(chosen, self._costs)


def deltas(shape: Shape) -> Iterator[Candidate]:
    """All codings of a shape."""
    return (candidate for _, made in shape.values() for candidate in made)


def trainings(
    survey: Survey, alternatives: Mapping[CommitId, Alternative], numbers: Mapping[bytes, int]
) -> dict[int, Training]:
    """The recipes of versions that have their weights. A base that gave its up is trained, too,
    if it has an alternative. ``numbers``: of contents.
    """
    gone, found = survey.found.history.dropped, dict[int, Training]()
    for commit, recipe in alternatives.items():
        at, seconds = recipe.base, recipe.seconds
        while at in gone and at in alternatives:
            at, seconds = alternatives[at].base, seconds + alternatives[at].seconds
        number, base = survey.numbers.get(commit), survey.numbers.get(at)
        if number is None or base is None or {commit, at} & gone.keys():
            continue
        blobs = survey.versions[number].blobs
        made = f"{recipe.path}\0"
        kept = [numbers[id_] for id_, line in blobs.items() if not line.startswith(made)]
        found[number] = Training(base, round(seconds * 1e9), kept)
    return found


def by_rule(costs: Costs, goal: Goal) -> Selection:
    """What a goal itself says to store."""
    if goal.add:
        return with_reset_points(costs, goal.add)
    if goal.layout is not None:
        return skipping(costs, goal.layout)
    assert goal.interval is not None
    return at_interval(costs, goal.interval)


def at_interval(costs: Costs, interval: int) -> Selection:
    """A reset point every ``interval`` versions from the first on, and the deltas to parents.

    A version is recovered from the nearer reset point on either side (VSOL §3.2.8). Below three
    versions both are as near, and no delta leads to a reset point (``Layout.is_near``).
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
    """Each content is made from the one that a layout with skip deltas names (``skipping``).

    Those that approximate steps or an optimizer's lead to are made from their parent's.
    """
    survey = costs.survey
    ways = chains(costs, SkipLayout(step=step))
    bases = [None if len(way) == 1 else survey.numbers[CommitId(way[-2].id)] for way in ways]
    return dict(history(costs)) | {
        id_: made
        for id_, made in coded_against(costs, bases).items()
        if not costs.candidates.added(id_, survey.size(id_))
    }


def skipping(costs: Costs, layout: SkipLayout) -> Selection:
    """The codings of a layout as commits would have stored it.

    Each blob is coded once, against the blob in its place in the version that the layout names;
    those of a reset point also in full, or, near another one, only so. A delta that is stored
    already does where that one is not worth it, unless it makes a long chain. Approximate steps
    and those of an optimizer stay: another delta would be larger.
    """
    made, survey, ways = of_others(costs), costs.survey, chains(costs, layout)
    depths: dict[bytes, int] = {}
    most = layout.deepest // 2
    for i, (version, way) in enumerate(zip(survey.versions, ways, strict=True)):
        base = version.parent if len(way) == 1 else survey.numbers[CommitId(way[-2].id)]
        if len(way) == 1 and base is not None and layout.is_near(ways[base], version.sequence):
            base = None
        for id_, candidates in ({} if base is None else costs.between(base, i)).items():
            size = survey.size(id_)
            if survey.first[id_] != i or costs.candidates.added(id_, size):
                continue
            if not any(candidate.base for candidate in candidates):
                stored = costs.candidates.delta(id_, size, survey.specs.keys()) or []
                under = max((depths.get(c.base or b"", 0) for c in stored), default=0)
                candidates = stored if stored and under <= most else candidates
            made.add(candidates)
            depths[id_] = max(depths.get(c.base, 0) + 1 if c.base else 0 for c in candidates)
        for id_ in version.blobs:
            made.add(costs.candidates.added(id_, survey.size(id_)))
            if len(way) == 1:
                made.add(costs.full(i, id_))
                depths[id_] = 0
    return completed(made, costs)


def chains(costs: Costs, layout: SkipLayout) -> list[tuple[Link, ...]]:
    """For each version what leads to it, from a version in full on; it comes last itself."""
    made: list[tuple[Link, ...]] = []
    for i, version in enumerate(costs.survey.versions):
        under = () if version.parent is None else made[version.parent]
        predicted = bool(under) and _is_predicted(costs, i)
        if not predicted:  # else it is against the version before it
            ends = not under or layout.ends(under, version.sequence)
            at = -1 if ends else under.index(layout.base(under, version.sequence))
            under = under[: at + 1]
        link = Link(
            version.commit,
            version.sequence,
            depth=len(under),
            stored=0,
            nbytes=0,
            predicted=predicted,
        )
        made.append((*under, link))
    return made


def _is_predicted(costs: Costs, i: int) -> bool:
    """Whether an optimizer's step leads to some of a version."""
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
    """All stored codings without the full records that only these versions need: as they are, and
    with the smallest deltas that lead to what nothing led to.

    Raises Unattainable if one of the versions is no reset point, or could not be recovered.
    """
    survey, stored = costs.survey, Selection(costs.candidates)
    numbers, before = numbers_of(survey, ids), costs.sources
    for i in numbers:
        if i not in before:
            raise Unattainable(
                f"version {survey.versions[i].commit.short} is no reset point",
                hint="'mvc show' says of a version whether it is one",
            )
    needed = {id_ for i in before.difference(numbers) for id_ in survey.versions[i].blobs}
    gone = {id_ for i in numbers for id_ in survey.versions[i].blobs} - needed
    connected = Selection(costs.candidates)
    for chosen in (stored, connected):
        drop_full(chosen, costs, gone)
    lost = _connect(costs, connected) & gone
    if 2 * sum(map(survey.size, lost)) > sum(map(survey.size, gone)):
        raise Unattainable(
            f"version {ids[0].short} could not be recovered any more: "
            "no delta leads to it from another reset point",
            hint="keep one of them, or add another reset point first",
        )
    return completed(stored, costs), completed(connected, costs)


def drop_full(chosen: Selection, costs: Costs, gone: Set[bytes]) -> None:
    """Drops the full records of blobs. What shares a payload with one of them is encoded anew.

    A group stays if a blob in it is of no version, since nothing new can be made of that.
    """
    others: set[bytes] = set()
    for group in costs.candidates.groups.values():
        ids = {candidate.id for candidate in group if candidate.base is None}
        if not ids.isdisjoint(gone) and ids <= costs.survey.first.keys():
            others |= ids - gone
    dropped = gone | others
    chosen.drop([o for o in chosen if o.base is None and o.id in dropped])
    for id_ in sorted(others):
        chosen.add(costs.anew(id_))


def _connect(costs: Costs, chosen: Selection) -> set[bytes]:
    """Adds the smallest deltas that lead to all contents; returns those that none leads to."""
    ways: dict[bytes, list[tuple[int, bytes, bytes]]] = defaultdict(list)
    full, shape = {o.node for o in chosen if o.base is None}, history(costs)
    for coding in chosen:
        if coding.base is not None:
            ways[coding.base].append((0, coding.id, b""))
            if coding.reversible:
                ways[coding.id].append((0, coding.base, b""))
    for id_, (base, candidates) in shape.items():
        size = max(1, sum(o.stored for o in candidates))
        ways[base].append((size, id_, id_))
        if not any(o.forward_only for o in candidates):
            ways[id_].append((size, base, id_))
    starts = {id_: starts_of(costs.survey.size(id_)) for id_ in costs.survey.first}
    heap = [(0, i, b"") for i, each in starts.items() if all((i, start) in full for start in each)]
    lost = set(starts)
    while heap:
        _, id_, made = heappop(heap)
        if id_ not in lost:
            continue
        lost.discard(id_)
        chosen.add(shape[made][1] if made else ())
        for way in ways[id_]:
            heappush(heap, way)
    return lost


def numbers_of(survey: Survey, ids: Sequence[CommitId]) -> list[int]:
    """The places of versions. Raises Unattainable if the state of one is not there."""
    for id_ in ids:
        if id_ not in survey.numbers:
            availability.check_kept(survey.store, id_)
            raise Unattainable(f"the state of version {id_.short} is not there any more")
    return [survey.numbers[id_] for id_ in ids]
