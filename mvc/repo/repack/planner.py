"""Making a plan: for each aim, the codings to keep and to make."""

from __future__ import annotations

from mvc.errors import Unattainable
from mvc.repo.context import Context, Progress
from mvc.repo.repack import layouts
from mvc.repo.repack.curve import curve, front
from mvc.repo.repack.goal import Wish, plain
from mvc.repo.repack.metrics import Figures
from mvc.repo.repack.plan import CurvePoint, RepackCurve, RepackPlan
from mvc.repo.repack.problem import Ground
from mvc.repo.repack.reset_points import added, removed
from mvc.repo.repack.solve.bounded import fastest, smallest, within_bytes, within_time
from mvc.repo.repack.solve.model import Layout, Versions

__all__ = ["draw_curve", "make_plan", "present_figures"]

_ROUNDS = 6
_ALIKE = 1.01  # estimates that differ by less are the same


def make_plan(context: Context, wish: Wish, progress: Progress | None = None) -> RepackPlan:
    """Looks at what is stored, tries what is not, and chooses.

    Raises Unattainable where the wish cannot be met, DamagedData in a damaged repository.
    """
    ground = Ground(context, wish, progress)
    plan = _chosen(ground) if ground.survey.versions else ground.unchanged()
    return plan if _is_worth(plan) else ground.unchanged()


def _chosen(ground: Ground) -> RepackPlan:
    wish = ground.wish
    if wish.add:
        return ground.plan_of(added(ground))
    if wish.remove:
        return ground.plan_of(removed(ground))
    if wish.super_step is not None:
        versions, today = ground.versions(full=False)
        pairs = [(a, b) for a, b, _ in ground.steps()]
        layout = layouts.with_steps(versions, today, pairs)
        return ground.plan_of(ground.with_edges(versions, layout))
    if wish.interval is not None:
        versions, _ = ground.versions(full=True)
        return ground.plan_of(ground.mapped(versions, layouts.at_interval(versions, wish.interval)))
    if wish.max_recovery is not None:
        return _within_time(ground, wish.max_recovery)
    assert wish.max_size is not None
    return _within_bytes(ground, wish.max_size)


def _within_time(ground: Ground, bound: float) -> RepackPlan:
    """Tightens the planner's bound until what it chose keeps the real one, blob by blob."""
    (versions, today), before = ground.versions(full=True), ground.before
    wanted = round(bound * 1e9)
    for _ in range(_ROUNDS):
        layout = within_time(versions, wanted, today)
        if layout is None:
            break
        plan = ground.plan_of(ground.mapped(versions, layout))
        if plan.after.worst_seconds <= bound:
            kept = before.worst_seconds <= bound and before.bytes <= plan.after.bytes
            return ground.unchanged() if kept else plan
        wanted = min(wanted - 1, int(wanted * bound / plan.after.worst_seconds))
    if before.worst_seconds <= bound:
        return ground.unchanged()
    least = fastest(versions) / 1e9
    raise Unattainable(
        f"no layout recovers every version within {plain(bound)} s here",
        hint=f"the fastest takes about {plain(least, 2)} s: every version in full",
    )


def _within_bytes(ground: Ground, size: int) -> RepackPlan:
    """As above for bytes; what no layout changes (manifests, headers) counts as well."""
    (versions, today), before = ground.versions(full=True), ground.before
    least = ground.plan_of(ground.mapped(versions, smallest(versions, today)))
    if min(least.after.bytes, before.bytes) > size:
        raise Unattainable(
            f"no layout fits into {size} bytes",
            hint=f"the smallest possible takes about {least.after.bytes} bytes",
        )
    best = least if least.after.bytes <= size else None
    room = size - (least.after.bytes - versions.stored(smallest(versions, today)))
    for _ in range(_ROUNDS):
        try:
            layout = within_bytes(versions, room, today)
        except Unattainable:
            break
        layout = _cheaper(versions, layout, today)
        plan = ground.plan_of(ground.mapped(versions, layout))
        if plan.after.bytes <= size:
            if best is None or plan.after.worst_seconds < best.after.worst_seconds:
                best = plan
            break
        room -= plan.after.bytes - size
    worst = before.worst_seconds
    if best is None or (before.bytes <= size and worst <= best.after.worst_seconds):
        return ground.unchanged()
    return best


def _cheaper(versions: Versions, layout: Layout, today: Layout) -> Layout:
    """The least bytes that take as long, as far as such estimates can tell."""
    worst = versions.worst(layout) or 0
    return within_time(versions, round(worst * _ALIKE), today) or layout


def _is_worth(plan: RepackPlan) -> bool:
    """Whether a plan changes anything that can be told from what is stored."""
    a, b = plan.before, plan.after
    return a.reset_points != b.reset_points or any(
        not 1 / _ALIKE < (x + 1e-9) / (y + 1e-9) < _ALIKE
        for x, y in (
            (a.bytes, b.bytes),
            (a.worst_seconds, b.worst_seconds),
            (a.mean_seconds, b.mean_seconds),
        )
    )


def draw_curve(context: Context, progress: Progress | None = None) -> RepackCurve:
    """What each recovery bound would cost in bytes of all packs, and what is stored now."""
    ground = Ground(context, Wish(), progress)
    before, versions = ground.before, ground.versions(full=True)[0]
    tensors = sum(o.stored for o in ground.stored if o.id in ground.survey.specs)
    today = CurvePoint(before.bytes, before.worst_seconds, before.mean_seconds)
    if not len(versions):
        return RepackCurve((), today)
    points = [
        CurvePoint(before.bytes - tensors + p.bytes, p.worst / 1e9, p.mean / 1e9)
        for p in curve(versions)
    ]
    return RepackCurve(front([*points, today]), today)


def present_figures(context: Context) -> Figures:
    """What is stored now costs."""
    return Ground(context, Wish()).before
