"""The repack problem: versions, stored codings and their costs, completed by trials.

Sizes of codings that are not stored are estimated from stored ones of the same line of
tensors; some are measured by encoding them (a trial).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from mvc.errors import DamagedData
from mvc.ids import CommitId
from mvc.maintenance.inventory import inventory
from mvc.maintenance.repack.candidates import Candidate, Candidates
from mvc.maintenance.repack.costs import Costs
from mvc.maintenance.repack.goal import Goal
from mvc.maintenance.repack.metrics import layout_metrics
from mvc.maintenance.repack.plan import RepackPlan
from mvc.maintenance.repack.selection import Selection, of_layout, of_skips, of_store
from mvc.maintenance.repack.sizes import Sizes
from mvc.maintenance.repack.solve.model import Selected, Versions
from mvc.maintenance.repack.survey import Survey, survey
from mvc.maintenance.rewrite_plan import EncodeRequest, RewritePlan
from mvc.repo.context import Context
from mvc.store.writing.layout import Layout as SkipLayout
from mvc.types import Progress


class RepackProblem:
    """The inputs of the planner. Raises DamagedData if a record is damaged.

    ``given_up``: by version a path whose weights count as given up already.
    """

    def __init__(
        self,
        context: Context,
        goal: Goal,
        progress: Progress | None = None,
        given_up: Mapping[CommitId, str] | None = None,
    ) -> None:
        found = inventory(context.store.snapshot)
        found.history.dropped.update(given_up or {})
        if found.damaged:
            raise DamagedData(
                f"the repository is damaged: {found.damaged[0].message}",
                hint="run 'mvc fsck --repair' first",
            )
        self.goal = goal
        self.progress = progress
        self.survey: Survey = survey(context, found, progress)
        timing = context.store.timing
        candidates = Candidates(found, timing, self.survey.specs)
        self.costs = Costs(self.survey, candidates, Sizes(self.survey), timing)
        learn_stored(self.costs)
        self.long = self._long_pairs()
        self.stored = of_store(self.costs)
        self.before = layout_metrics(self.costs, self.stored)

    def _long_pairs(self) -> list[tuple[int, int, int]]:
        """Deltas over several generations, stored or asked for."""
        pairs = self.costs.stored_long()
        if self.goal.super_step is not None:
            pairs |= set(self.steps())
        return sorted(pairs)

    def steps(self) -> list[tuple[int, int, int]]:
        """Deltas from every M-th version of a line of descent to the next one (super-steps)."""
        step = self.goal.super_step or 1
        if any(map(self._adds, range(len(self.survey.versions)))):
            return []  # deltas of what is exact beside the steps would only take more bytes
        found = []
        for i in range(len(self.survey.versions)):
            depth = self.survey.generation(i)
            if depth and depth % step == 0 and step > 1:
                start = self.survey.ancestor(i, step)
                assert start is not None
                found.append((start, i, step))
        return found

    def _adds(self, i: int) -> bool:
        """Whether a version is stored by approximate steps, which have super-steps of their own."""
        added, size = self.costs.candidates.added, self.survey.size
        blobs = self.survey.versions[i].blobs
        return any(added(id_, size(id_)) for id_ in blobs if self.costs.first[id_] == i)

    def versions(self, *, full: bool) -> tuple[Versions, Selected]:
        """The planner's graph and the stored layout, after some trials.

        ``full``: the goal may need full records that are not stored, so try some.
        """
        try_missing(self.costs, self.long, self.progress, full=full)
        versions = self.costs.versions(self.long)
        return versions, self.costs.today(versions)

    def with_edges(
        self, versions: Versions, layout: Selected, *, complete: bool = True
    ) -> Selection:
        """All stored codings plus the deltas of a layout."""

        def build() -> Selection:
            chosen = of_store(self.costs)
            chosen.add_edges(versions, layout)
            return chosen

        self.attempt(build())
        chosen = build()
        if complete:
            chosen.complete()
        return chosen

    def mapped(self, versions: Versions, layout: Selected) -> Selection:
        """The codings that a layout needs, after trials of the new ones."""
        self.attempt(of_layout(self.costs, versions, layout))
        return of_layout(self.costs, versions, layout)

    def skipping(self, layout: SkipLayout) -> Selection:
        """The codings of a layout with skip deltas, after trials of the new ones."""
        self.attempt(of_skips(self.costs, layout))
        return of_skips(self.costs, layout)

    def attempt(self, chosen: Selection) -> None:
        """Tries the new codings of a selection."""
        try_new(self.costs, chosen.new, self.progress)

    def plan_of(self, chosen: Selection) -> RepackPlan:
        """The plan to store these codings and no others."""
        gone, new = chosen.left_out(), chosen.new
        places = {candidate.place for candidate in gone if candidate.place is not None}
        rewrite = RewritePlan(
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
            costs=self.costs,
        )

    def unchanged(self) -> RepackPlan:
        """The plan of doing nothing."""
        return self.plan_of(self.stored)


_TRIALS = 32  # versions, or deltas between two
_FEWEST = 4
_RAW = 4 << 30  # bytes that trials may recover, unless there are fewer than that many

_T = TypeVar("_T")


def learn_stored(costs: Costs) -> None:
    """Records the share of raw bytes that every stored coding takes."""
    survey = costs.survey
    for i, version in enumerate(survey.versions):
        parent = {} if version.parent is None else survey.versions[version.parent].blobs
        for id_, line in version.blobs.items():
            raw = survey.size(id_)
            if costs.first[id_] != i or not raw:
                continue
            if full := costs.candidates.full(id_, raw):
                costs.sizes.learn(line, i, 0, _stored(full) / raw)
            if parent and (delta := costs.candidates.delta(id_, raw, parent.keys())):
                costs.sizes.learn(line, i, 1, _stored(delta) / raw)
    for a, b, span in costs.stored_long():
        there = survey.versions[a].blobs.keys()
        for id_, line in survey.versions[b].blobs.items():
            raw = survey.size(id_)
            if costs.first[id_] == b and raw and (d := costs.candidates.delta(id_, raw, there)):
                costs.sizes.learn(line, b, span, _stored(d) / raw)


def try_missing(
    costs: Costs,
    long: Iterable[tuple[int, int, int]],
    progress: Progress | None = None,
    *,
    full: bool,
) -> None:
    """Tries full records and deltas that are not stored, for some versions."""
    survey = costs.survey
    todo: list[Candidate] = []
    if full:
        numbers = [i for i in range(len(survey.versions)) if i not in costs.sources]
        for i in _spread(numbers, _count(costs, numbers)):
            todo += [o for id_ in survey.versions[i].blobs for o in costs.full(i, id_)]
    short = [(v.parent, i, 1) for i, v in enumerate(survey.versions) if v.parent is not None]
    for pairs in (short, list(long)):
        missing = [pair for pair in pairs if any(o.place is None for o in _made(costs, *pair))]
        for pair in _spread(missing, _count(costs, [b for _, b, _ in missing])):
            todo += _made(costs, *pair)
    _attempt(costs, todo, progress)


def try_new(costs: Costs, new: Sequence[Candidate], progress: Progress | None = None) -> None:
    """Tries codings that a plan would make: all of them if it concerns few versions."""
    unsure = [candidate for candidate in new if not candidate.sure]
    numbers = sorted({costs.first[candidate.id] for candidate in unsure})
    chosen = set(_spread(numbers, _count(costs, numbers)))
    _attempt(
        costs, [candidate for candidate in unsure if costs.first[candidate.id] in chosen], progress
    )


def _attempt(costs: Costs, candidates: Iterable[Candidate], progress: Progress | None) -> None:
    pairs = dict.fromkeys((o.id, o.base) for o in candidates if o.place is None)
    for done, (id_, base) in enumerate(pairs):
        costs.attempt(id_, base)
        if progress is not None:
            progress(done + 1, len(pairs), "trials")


def _made(costs: Costs, a: int, b: int, span: int) -> list[Candidate]:
    return [
        candidate for candidates in costs.between(a, b, span).values() for candidate in candidates
    ]


def _count(costs: Costs, numbers: Sequence[int]) -> int:
    """How many of these versions to try."""
    survey = costs.survey
    raw = max(
        (sum(map(survey.size, survey.versions[i].blobs)) for i in numbers[:_TRIALS]), default=0
    )
    return max(_FEWEST, min(_TRIALS, _RAW // max(1, raw)))


def _spread(items: Sequence[_T], count: int) -> list[_T]:
    """Up to ``count`` items at equal distances, including the first and the last."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _stored(candidates: Iterable[Candidate]) -> int:
    return sum(candidate.stored for candidate in candidates)
