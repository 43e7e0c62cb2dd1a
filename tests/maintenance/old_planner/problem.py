"""The repack problem: as that of contents, with the planning graph of whole versions.

Sizes of codings that are not stored are estimated from stored ones of the same line of
tensors; some are measured by encoding them (a trial).
"""

from __future__ import annotations

from collections.abc import Mapping

from mvc.ids import CommitId
from mvc.maintenance.repack import plan
from mvc.maintenance.repack.goal import Goal
from mvc.maintenance.repack.plan import Selection, completed
from mvc.maintenance.repack.problem import Costs, Sizes
from mvc.maintenance.repack.solve import Selected
from mvc.repo.config import Config
from mvc.store.store import Store
from mvc.store.writing.layout import Layout as SkipLayout
from mvc.types import Progress
from tests.maintenance.old_planner.layout_codings import add_edges, of_layout, of_skips
from tests.maintenance.old_planner.model import Versions
from tests.maintenance.old_planner.trials import learn_stored, try_missing
from tests.maintenance.old_planner.version_graph import (
    stored_layout,
    stored_strides,
    version_graph,
)


class RepackProblem(plan.RepackProblem):
    """What is known of sizes at first is only what the planner of versions asked for."""

    def __init__(
        self,
        store: Store,
        config: Config,
        goal: Goal,
        progress: Progress | None = None,
        given_up: Mapping[CommitId, str] | None = None,
    ) -> None:
        super().__init__(store, config, goal, progress, given_up)
        known = self.costs
        self.costs = Costs(self.survey, known.candidates, Sizes(self.survey), known.rates)
        learn_stored(self.costs)
        self.long = stored_strides(self.costs)

    def versions(self, *, full: bool) -> tuple[Versions, Selected]:
        """The planner's graph and the stored layout, after some trials.

        ``full``: the goal may need full records that are not stored, so try some.
        """
        try_missing(self.costs, self.long, full=full)
        versions = version_graph(self.costs, self.long)
        return versions, stored_layout(self.costs, versions)

    def with_edges(self, versions: Versions, layout: Selected) -> Selection:
        """All stored codings plus the deltas of a layout; not completed."""

        def build() -> Selection:
            chosen = Selection(self.costs.candidates)
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
