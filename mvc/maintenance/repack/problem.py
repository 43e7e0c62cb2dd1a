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
from mvc.maintenance.repack.costs import Costs
from mvc.maintenance.repack.goal import Goal
from mvc.maintenance.repack.metrics import layout_metrics
from mvc.maintenance.repack.plan import RepackPlan
from mvc.maintenance.repack.selection import Selection
from mvc.maintenance.repack.sizes import Sizes
from mvc.maintenance.repack.survey import Survey, survey
from mvc.maintenance.repack.trials import attempt, learn_stored
from mvc.maintenance.rewrite_plan import EncodeRequest, RewritePlan
from mvc.repo.context import Context
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
