"""The repack problem: versions, stored codings and their costs, completed by trials.

Sizes of codings that are not stored are estimated from stored ones of the same line of
tensors; some are measured by encoding them (a trial).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mvc.errors import DamagedData
from mvc.ids import CommitId
from mvc.maintenance.graph import read_records
from mvc.maintenance.repack.candidates import Candidates
from mvc.maintenance.repack.completion import completed
from mvc.maintenance.repack.costs import Costs
from mvc.maintenance.repack.goal import Goal
from mvc.maintenance.repack.metrics import layout_metrics
from mvc.maintenance.repack.plan import RepackPlan
from mvc.maintenance.repack.selection import Selection
from mvc.maintenance.repack.sizes import Sizes
from mvc.maintenance.repack.survey import Survey, survey
from mvc.maintenance.rewrite_plan import EncodeRequest, RewritePlan
from mvc.repo.context import Context
from mvc.store.writing.layout import Layout as SkipLayout
from mvc.types import Progress
from tests.maintenance.old_planner.layout_codings import add_edges, of_layout, of_skips, of_store
from tests.maintenance.old_planner.model import Selected, Versions
from tests.maintenance.old_planner.trials import learn_stored, try_missing, try_new
from tests.maintenance.old_planner.version_graph import (
    Stride,
    stored_layout,
    stored_strides,
    version_graph,
)


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
        found = read_records(context.store.snapshot)
        found.history.dropped.update(given_up or {})
        if found.damaged:
            raise DamagedData(
                f"the repository is damaged: {found.damaged[0].message}",
                hint="run 'mvc fsck --repair' first",
            )
        self.goal = goal
        self.progress = progress
        self.survey: Survey = survey(context, found, progress)
        candidates = Candidates(found, context.store.rates, self.survey.specs)
        self.costs = Costs(self.survey, candidates, Sizes(self.survey), context.store.rates)
        learn_stored(self.costs)
        self.long = sorted({*stored_strides(self.costs), *self.steps()})
        self.stored = of_store(self.costs)
        self.before = layout_metrics(self.costs, self.stored)

    def steps(self) -> list[Stride]:
        """Deltas from every M-th version of a line of descent to the next one, if asked for."""
        step = self.goal.super_step or 1
        if step == 1 or any(map(self._adds, range(len(self.survey.versions)))):
            return []  # deltas of what is exact beside the steps would only take more bytes
        found = []
        for i in range(len(self.survey.versions)):
            depth = self.survey.generation(i)
            if depth and depth % step == 0:
                start = self.survey.ancestor(i, step)
                assert start is not None
                found.append(Stride(start, i, step))
        return found

    def _adds(self, i: int) -> bool:
        """Whether a version is stored by approximate steps, which have super-steps of their own."""
        added, size = self.costs.candidates.added, self.survey.size
        blobs = self.survey.versions[i].blobs
        return any(added(id_, size(id_)) for id_ in blobs if self.survey.first[id_] == i)

    def versions(self, *, full: bool) -> tuple[Versions, Selected]:
        """The planner's graph and the stored layout, after some trials.

        ``full``: the goal may need full records that are not stored, so try some.
        """
        try_missing(self.costs, self.long, self.progress, full=full)
        versions = version_graph(self.costs, self.long)
        return versions, stored_layout(self.costs, versions)

    def selected(self, build: Callable[[], Selection]) -> Selection:
        """What ``build`` selects once the codings that are new in its first answer were tried.

        Their sizes are known then, and some may have turned out to be full records.
        """
        try_new(self.costs, build().new, self.progress)
        return build()

    def with_edges(self, versions: Versions, layout: Selected) -> Selection:
        """All stored codings plus the deltas of a layout; not completed."""

        def build() -> Selection:
            chosen = of_store(self.costs)
            add_edges(chosen, self.costs, versions, layout)
            return chosen

        return self.selected(build)

    def of_layout(self, versions: Versions, layout: Selected) -> Selection:
        return self.selected(lambda: of_layout(self.costs, versions, layout))

    def skipping(self, layout: SkipLayout) -> Selection:
        return self.selected(lambda: of_skips(self.costs, layout))

    def completed(self, selection: Selection) -> Selection:
        """The selection, and the codings without which a piece could not be recovered."""
        return completed(selection, self.costs)

    def plan_of(self, chosen: Selection) -> RepackPlan:
        """The plan to store these codings and no others."""
        gone, new = chosen.lacking(self.costs.candidates), chosen.new
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
            found=self.survey.found,
        )

    def unchanged(self) -> RepackPlan:
        return self.plan_of(self.stored)
