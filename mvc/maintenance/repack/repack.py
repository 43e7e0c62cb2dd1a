"""repack: store the same versions with other reset points and deltas.

A *coding* is a stored form of a tensor: a full record, or a delta. ``RepackProblem`` reads the
existing codings, and estimates the sizes of codings that do not exist yet. The module ``planner``
selects codings from which all versions can be recovered. ``rewrite`` writes the selected codings to
new packs (files), which replace the old packs in one step. The ids of versions do not change.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from mvc.maintenance.repack.goal import Goal
from mvc.maintenance.repack.plan import LayoutMetrics, RepackCurve, RepackPlan, RepackProblem
from mvc.maintenance.repack.planner import ALIKE, curve, planned
from mvc.maintenance.rewrite_plan import encoding_policy, retry_on_rewrite, rewrite
from mvc.maintenance.weights import drop, is_proven
from mvc.repo.config import Config
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import Recorded
from mvc.store.store import Store
from mvc.types import Progress


class Repacked(Struct, frozen=True):
    """``plan``: the plan. ``now``: the metrics after its execution; None if nothing changed."""

    plan: RepackPlan
    now: LayoutMetrics | None


def repack(
    store: Store,
    config: Config,
    goal: Goal,
    *,
    dry_run: bool = False,
    reason: str = "",
    progress: Progress | None = None,
) -> Repacked:
    """Plans and executes. Starts again if another operation rewrites the repository meanwhile.

    If the plan drops weights, drops them first. Then it makes and executes a second plan for the
    other data. A recipe in ``goal.alternatives`` is ignored unless a replay has proven it. Raises
    Unattainable, DamagedData, ReadOnly, Busy. After these errors the packs have not changed.
    """
    goal = replace(
        goal,
        alternatives={
            id_: alternative
            for id_, alternative in goal.alternatives.items()
            if is_proven(store.snapshot, id_, alternative)
        },
    )
    if goal.alternatives and not dry_run:
        plan = repack(store, config, goal, dry_run=True, progress=progress).plan
        drop(store, config, {id_: goal.alternatives[id_] for id_ in plan.dropped}, reason=reason)
        rest = repack(
            store, config, replace(goal, alternatives={}), reason=reason, progress=progress
        )
        return replace(rest, plan=replace(rest.plan, dropped=plan.dropped, prices=plan.prices))
    if not dry_run:
        store.check_writable("repacked")

    def attempt() -> tuple[RepackPlan, Recorded | None]:
        plan = make_plan(store, config, goal, progress)
        if dry_run or not plan:
            return plan, None
        policy, author = encoding_policy(config), config.author
        return plan, rewrite(
            store, policy, plan.rewrite,
            operation=lambda: Entry(
                "repack", store.clock.now_ns(), str(goal), author=author, reason=reason
            ),
            progress=progress,
        )  # fmt: skip

    plan, done = retry_on_rewrite(store.snapshot, attempt)
    return Repacked(plan, None if done is None else present_metrics(store, config))


def make_plan(
    store: Store, config: Config, goal: Goal, progress: Progress | None = None
) -> RepackPlan:
    """The best plan found for a goal.

    Raises Unattainable if the goal cannot be met; DamagedData if the repository is damaged.
    """
    problem = RepackProblem(store, config, goal, progress)
    plan = planned(problem) if problem.survey.versions else problem.unchanged()
    if not _is_worth(plan):
        prices = plan.prices and (plan.prices[0], plan.prices[0])
        plan = replace(problem.unchanged(), prices=prices)
    return plan


def _is_worth(plan: RepackPlan) -> bool:
    """Whether the plan improves the layout by more than the error of the estimates."""
    a, b = plan.before, plan.after
    if plan.prices is not None:
        bound = plan.goal.bound
        late = bound is not None and a.worst_seconds > bound
        return late or plan.prices[0] > plan.prices[1] * ALIKE
    return a.reset_points != b.reset_points or any(
        not 1 / ALIKE < (x + 1e-9) / (y + 1e-9) < ALIKE
        for x, y in (
            (a.bytes, b.bytes),
            (a.worst_seconds, b.worst_seconds),
            (a.mean_seconds, b.mean_seconds),
        )
    )


def draw_curve(store: Store, config: Config, progress: Progress | None = None) -> RepackCurve:
    """For several bounds on the recovery time, the smallest size of all packs.

    The result has the size and the times of the stored layout, too.
    """
    return retry_on_rewrite(
        store.snapshot, lambda: curve(RepackProblem(store, config, Goal(), progress))
    )


def present_metrics(store: Store, config: Config) -> LayoutMetrics:
    """The metrics of the stored layout."""
    return retry_on_rewrite(store.snapshot, lambda: RepackProblem(store, config, Goal()).before)
