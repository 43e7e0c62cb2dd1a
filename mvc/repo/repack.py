"""repack: store the same versions with other reset points and deltas.

The plan says what it will cost; its execution moves what stays into new packs and adds
what is new, in one step. Identities do not change (``mvc.repo.relayout``).
"""

from __future__ import annotations

from dataclasses import dataclass

from mvc.errors import WrongUsage
from mvc.ids import CommitId
from mvc.repo.context import Context, Progress
from mvc.repo.relayout import execute, until_not_outrun
from mvc.repo.repacking.figures import Figures
from mvc.repo.repacking.plan import (
    CurvePoint,
    RepackCurve,
    RepackPlan,
    Wish,
    draw_curve,
    make_plan,
    present_figures,
)
from mvc.store.entries import Entry
from mvc.store.journal import Recorded

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
    """A plan that was carried out, and what is there now."""

    plan: RepackPlan
    now: Figures


def wish_of(
    context: Context,
    *,
    interval: int | None = None,
    max_recovery: float | None = None,
    max_size: int | None = None,
    add: tuple[CommitId, ...] = (),
    remove: tuple[CommitId, ...] = (),
    super_step: int | None = None,
) -> Wish:
    """One wish; without any, what the settings say. WrongUsage for several or nonsense."""
    given = [interval, max_recovery, max_size, add or None, remove or None, super_step]
    if sum(value is not None for value in given) > 1:
        raise WrongUsage(
            "interval, max-recovery, max-size, add, remove and super-step exclude each other"
        )
    if interval is not None and interval < 1:
        raise WrongUsage("an interval is at least 1 commit")
    if super_step is not None and super_step < 2:
        raise WrongUsage("a super-step spans at least 2 commits")
    if max_recovery is not None and not 0 < max_recovery < float("inf"):
        raise WrongUsage("a recovery bound is a number of seconds above 0")
    bound = context.config.get("store.max_recovery")
    if all(value is None for value in given):
        if bound is not None:
            return Wish(max_recovery=float(bound))
        return Wish(interval=int(context.config.get("store.reset_interval")))
    limit = None if bound is None else float(bound)
    return Wish(interval, max_recovery, max_size, add, remove, super_step, limit)


def repack(context: Context, wish: Wish, progress: Progress | None = None) -> Repacked:
    """Plans and carries out; where other operations come between, both anew.

    Raises Unattainable, DamagedData, Busy; then nothing has changed.
    """
    plans: list[RepackPlan] = []

    def attempt() -> Recorded | None:
        plan = make_plan(context, wish, progress)
        plans.append(plan)
        if not plan:
            return None

        def last() -> Entry:
            return Entry("repack", context.store.clock.now_ns(), str(wish))

        return execute(context, plan.costs.survey.found, plan.relayout, last, progress=progress)

    done = until_not_outrun(attempt)
    plan = plans[-1]
    return Repacked(plan, plan.after if done is None else present_figures(context))
