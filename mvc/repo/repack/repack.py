"""repack: store the same versions with other reset points and deltas.

The plan says what it will cost; its execution moves what stays into new packs and adds
what is new, in one step. Identities do not change (``mvc.repo.maintenance.rewrite_plan``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from mvc.errors import Unattainable
from mvc.ids import CommitId
from mvc.repo.context import Context, Progress
from mvc.repo.lookup import manifests
from mvc.repo.maintenance.rewrite_plan import check_writable, execute, until_not_outrun
from mvc.repo.repack.goal import Wish, plain, wish_of
from mvc.repo.repack.metrics import Figures, figures
from mvc.repo.repack.plan import CurvePoint, RepackCurve, RepackPlan
from mvc.repo.repack.problem import Ground
from mvc.repo.repack.selection import Selection, of_store
from mvc.repo.repack.solve import layouts
from mvc.repo.repack.solve.bounded import fastest, smallest, within_bytes, within_time
from mvc.repo.repack.solve.model import Layout, Price, Versions
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import Recorded

__all__ = [
    "CurvePoint",
    "Figures",
    "RepackCurve",
    "RepackPlan",
    "Repacked",
    "Wish",
    "added",
    "curve",
    "draw_curve",
    "front",
    "make_plan",
    "present_figures",
    "removed",
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


_SAME = 1.001  # sizes that differ by less are the same to who reads them


def curve(versions: Versions, count: int = 24) -> list[Price]:
    """Up to ``count`` layouts from the fastest to the smallest, each smaller than the one before.

    Their bounds on recovery lie at equal ratios.
    """
    low = max(1, fastest(versions))
    high = max(low, versions.worst(smallest(versions)) or low)
    ratio = (high / low) ** (1 / max(1, count - 1))
    bounds = sorted({low, high} | {round(low * ratio**i) for i in range(1, count - 1)})
    found: list[Price] = []
    for bound in bounds:
        layout = within_time(versions, bound)
        if layout is None:
            continue
        price = versions.price(layout)
        if not found or price.bytes < found[-1].bytes:
            found.append(price)
    return found


def front(points: Iterable[CurvePoint]) -> tuple[CurvePoint, ...]:
    """Those that no other point beats, from the fastest recovery to the least bytes.

    Of points that take the same bytes, or all but the same, the fastest stays.
    """
    found: list[CurvePoint] = []
    for point in sorted(points, key=lambda p: (p.worst_seconds, p.bytes, p.mean_seconds)):
        if not found or point.bytes * _SAME <= found[-1].bytes:
            found.append(point)
    return tuple(found)


def added(ground: Ground) -> Selection:
    """Everything stored, and all of these versions in full."""
    costs = ground.costs

    def build() -> Selection:
        chosen = of_store(costs)
        for i in _numbers(ground, ground.wish.add):
            for id_ in _blobs(ground, i):
                chosen.add(costs.full(i, id_))
        return chosen

    ground.attempt(build())
    return build()


def removed(ground: Ground) -> Selection:
    """Everything stored, less the full records of these versions that no other needs.

    Deltas that are missing then are added. Raises Unattainable where none can be, or where
    a version would take longer than the settings allow.
    """
    numbers = _numbers(ground, ground.wish.remove)
    versions, today = ground.versions(full=False)
    for i in numbers:
        if i not in today.sources:
            raise Unattainable(
                f"version {_name(ground, i)} is no reset point",
                hint="'mvc show' says of a version whether it is one",
            )
    layout = layouts.without(versions, today, numbers)
    lost = [i for i, ns in enumerate(versions.recovery(layout)) if ns is None]
    if lost:
        raise Unattainable(
            f"version {_name(ground, lost[0])} could not be recovered any more: "
            "no delta leads to it from another reset point",
            hint="keep one of them, or add another reset point first",
        )
    chosen = ground.with_edges(versions, layout, complete=False)
    needed = {id_ for i in layout.sources for id_ in _blobs(ground, i)}
    gone = {id_ for i in numbers for id_ in _blobs(ground, i)} - needed
    chosen.drop([o for o in chosen if o.base is None and o.id in gone])
    chosen.complete()
    _check_bound(ground, figures(ground.costs, chosen))
    return chosen


def _check_bound(ground: Ground, after: Figures) -> None:
    bound = ground.wish.bound
    if bound is None or after.worst_seconds <= bound:
        return
    name = after.worst_commit.short if after.worst_commit else "?"
    raise Unattainable(
        f"version {name} would take {plain(after.worst_seconds, 3)} s; "
        f"store.max_recovery allows {plain(bound)} s",
        hint="raise store.max_recovery, or remove fewer reset points",
    )


def _numbers(ground: Ground, ids: Sequence[CommitId]) -> list[int]:
    numbers = ground.survey.numbers
    for id_ in ids:
        if id_ not in numbers:
            manifests.check_kept(ground.survey.context, id_)
            raise Unattainable(f"the state of version {id_.short} is not there any more")
    return [numbers[id_] for id_ in ids]


def _blobs(ground: Ground, i: int) -> Collection[bytes]:
    return ground.survey.versions[i].blobs.keys()


def _name(ground: Ground, i: int) -> str:
    return ground.survey.versions[i].commit.short
