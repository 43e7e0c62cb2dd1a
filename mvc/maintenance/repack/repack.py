"""repack: store the same versions with other reset points and deltas.

A plan states its price. Its execution moves the codings that stay into new packs and adds
the new ones, in one step (``mvc.maintenance.rewrite_plan``). Ids do not change.
"""

from __future__ import annotations

from msgspec import Struct

from mvc.maintenance.inventory import inventory
from mvc.maintenance.repack.goal import Goal, goal_of
from mvc.maintenance.repack.metrics import LayoutMetrics
from mvc.maintenance.repack.plan import CurvePoint, RepackCurve, RepackPlan
from mvc.maintenance.repack.planner import Planner, make_plan
from mvc.maintenance.repack.super_steps import STEP, super_steps
from mvc.maintenance.repack.survey import survey
from mvc.maintenance.rewrite_plan import RewritePlan, check_writable, execute, retry_on_rewrite
from mvc.repo.context import Context
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import Recorded
from mvc.types import Progress

__all__ = [
    "CurvePoint",
    "Goal",
    "LayoutMetrics",
    "RepackCurve",
    "RepackPlan",
    "Repacked",
    "draw_curve",
    "goal_of",
    "join",
    "make_plan",
    "present_metrics",
    "repack",
    "unchanged",
]


class Repacked(Struct, frozen=True):
    """The plan, and the metrics after its execution; None if nothing was done."""

    plan: RepackPlan
    now: LayoutMetrics | None


def repack(
    context: Context, goal: Goal, *, dry_run: bool = False, progress: Progress | None = None
) -> Repacked:
    """Plans and executes; does both again if another operation rewrites the store meanwhile.

    Raises Unattainable, DamagedData, ReadOnly, Busy; then nothing has changed.
    """
    if not dry_run:
        check_writable(context, "repacked")
    plans: list[RepackPlan] = []

    def attempt() -> Recorded | None:
        plan = make_plan(context, goal, progress)
        plans.append(plan)
        if dry_run or not plan:
            return None
        return execute(
            context,
            plan.codings.survey.found,
            plan.rewrite,
            lambda: Entry("repack", context.store.clock.now_ns(), str(goal)),
            progress=progress,
        )

    done = retry_on_rewrite(context, attempt)
    return Repacked(plans[-1], None if done is None else present_metrics(context))


def unchanged(context: Context) -> Repacked:
    """The present layout as a plan that does nothing."""
    plan = retry_on_rewrite(context, lambda: Planner(context, Goal()).unchanged())
    return Repacked(plan, None)


def draw_curve(context: Context, progress: Progress | None = None) -> RepackCurve:
    """The bytes of all packs that each recovery bound would take, and the stored layout."""
    return retry_on_rewrite(context, lambda: Planner(context, Goal(), progress).curve())


def present_metrics(context: Context) -> LayoutMetrics:
    """The metrics of the stored layout."""
    return retry_on_rewrite(context, lambda: Planner(context, Goal()).before)


def join(context: Context, step: int = STEP, *, since: int = 0) -> bool:
    """Makes the super-steps that are due, and changes nothing else; returns whether there were any.

    Only runs are considered that end in a version which operation ``since`` or a later one
    published. Raises as ``repack``.
    """

    def attempt() -> Recorded | None:
        found = survey(context, inventory(context.store.snapshot))
        made = super_steps(found, step, since)
        if not made:
            return None
        plan = RewritePlan(
            made.leave, made.shortcuts, {pack for pack, _, _ in made.leave}, specs=found.specs,
            joint=list(made.joint),
        )  # fmt: skip
        note = f"super-step {step}"
        return execute(
            context, found.found, plan, lambda: Entry("repack", context.store.clock.now_ns(), note)
        )

    return retry_on_rewrite(context, attempt) is not None
