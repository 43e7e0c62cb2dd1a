"""repack: store the same versions with other reset points and deltas.

The plan says what it will cost; its execution moves what stays into new packs and adds
what is new, in one step. Identities do not change (``mvc.repo.maintenance.rewrite_plan``).
"""

from __future__ import annotations

from dataclasses import dataclass

from mvc.repo.context import Context, Progress
from mvc.repo.maintenance.rewrite_plan import check_writable, execute, until_not_outrun
from mvc.repo.repack.goal import Wish, wish_of
from mvc.repo.repack.metrics import Figures
from mvc.repo.repack.plan import CurvePoint, RepackCurve, RepackPlan
from mvc.repo.repack.planner import draw_curve, make_plan, present_figures
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import Recorded

__all__ = [
    "CurvePoint",
    "Figures",
    "RepackCurve",
    "RepackPlan",
    "Repacked",
    "Wish",
    "draw_curve",
    "make_plan",
    "repack",
    "wish_of",
]


@dataclass(frozen=True)
class Repacked:
    """A plan, and what is stored now; None where nothing was done."""

    plan: RepackPlan
    now: Figures | None


def repack(
    context: Context, wish: Wish, *, dry_run: bool = False, progress: Progress | None = None
) -> Repacked:
    """Plans and carries out; where other operations come between, both anew.

    Raises Unattainable, DamagedData, ReadOnly, Busy; then nothing has changed.
    """
    if not dry_run:
        check_writable(context, "repacked")
    plans: list[RepackPlan] = []

    def attempt() -> Recorded | None:
        plan = make_plan(context, wish, progress)
        plans.append(plan)
        if dry_run or not plan:
            return None
        return execute(
            context,
            plan.costs.survey.found,
            plan.relayout,
            lambda: Entry("repack", context.store.clock.now_ns(), str(wish)),
            progress=progress,
        )

    done = until_not_outrun(context, attempt)
    return Repacked(plans[-1], None if done is None else present_figures(context))
