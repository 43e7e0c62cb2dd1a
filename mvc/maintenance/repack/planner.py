"""Plans ``mvc repack``: decides which tensors are stored in full, and which as deltas.

A *layout* is such a decision for all tensors. A *goal* says what the user wants, for example the
smallest size, or a limit on the recovery time. For some goals a rule (``rules``) makes the layout.
For other goals, this module tries several layouts and chooses the best. A solver proposes layouts
from a *shape*, a set of possible deltas with estimated sizes and decoding times. Each proposed
layout is then measured. If the layout exceeds the limit of the goal, the solver runs again with a
tighter limit. A *group* is several tensors that are compressed together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import sqrt
from typing import TypeAlias

from msgspec.structs import replace

from mvc.errors import Unattainable
from mvc.ids import CommitId
from mvc.maintenance.repack import rules
from mvc.maintenance.repack.goal import plain
from mvc.maintenance.repack.plan import (
    CurvePoint,
    LayoutMetrics,
    RepackCurve,
    RepackPlan,
    RepackProblem,
    Selection,
    layout_metrics,
)
from mvc.maintenance.repack.problem import attempt
from mvc.maintenance.repack.rules import (
    ContentPlan,
    Group,
    Shape,
    as_stored,
    deltas,
    history,
)
from mvc.maintenance.repack.solve import ENDLESS, Selected
from mvc.repo.commit.storage_policy import layout_of
from mvc.store.writing.layout import ENDLESS as SKIP_ENDLESS
from mvc.store.writing.layout import Layout as SkipLayout

_ROUNDS = 10  # the largest number of steps of a bisection
_AGAIN = 2  # additional searches if there are groups
_EXACT = 1.003  # two bounds with a smaller ratio count as equal
_STEP = 4  # default of b in the layout skip:b (docs/decisions.md, "Skip deltas")
_INTERVALS = (2, 4, 8, 16, 1)  # commits per reset point in simple plans; 1: everything in full
ALIKE = 1.01
"""Two estimates (of times, sizes or prices) with a smaller ratio count as equal."""
_SAME = 1.001  # two sizes with a smaller ratio count as equal

_Tried: TypeAlias = Iterator[tuple[RepackPlan, Selection]]
_Rank: TypeAlias = Callable[[LayoutMetrics], float | None]
"""Rates a plan. The plan with the lowest number is the best. None: the plan misses the goal."""


def planned(problem: RepackProblem) -> RepackPlan:
    """The best plan found for the problem's goal. Raises Unattainable."""
    goal, costs = problem.goal, problem.costs
    if goal.weight is not None:
        return _cheapest(problem, goal.weight)
    if goal.max_recovery is not None:
        return _within_time(problem, goal.max_recovery)
    if goal.max_size is not None:
        return _within_bytes(problem, goal.max_size)
    if goal.remove:
        return _removed(problem)
    plan = problem.plan_of(problem.selected(lambda: rules.by_rule(costs, goal)))
    if goal.layout is not None:
        a, b = plan.before, plan.after
        is_good = a.bytes <= b.bytes and a.worst_seconds <= b.worst_seconds * ALIKE
        return problem.unchanged() if is_good else plan
    return plan


def _removed(problem: RepackProblem) -> RepackPlan:
    """The plan that removes ``goal.remove`` from the reset points (the versions stored in full).

    Adds new deltas only if the stored deltas do not suffice.
    """
    goal, to_remove = problem.goal, set(problem.goal.remove)
    selections = rules.without_reset_points(problem.costs, goal.remove)
    plans = list(map(problem.plan_of, selections))

    def fails(plan: RepackPlan) -> tuple[bool, int]:
        late = goal.bound is not None and plan.after.worst_seconds > goal.bound
        return late, len(to_remove.intersection(plan.after.reset_points))

    plan = min(plans, key=fails)
    late, after = fails(plan)[0], plan.after
    if late and goal.bound is not None:
        name = after.worst_commit.short if after.worst_commit else "?"
        raise Unattainable(
            f"version {name} would take {plain(after.worst_seconds, 3)} s; store.max_recovery "
            f"allows {plain(goal.bound)} s",
            hint="raise store.max_recovery, or remove fewer reset points",
        )
    for id_ in (point for point in after.reset_points if point in to_remove):
        raise Unattainable(
            f"version {id_.short} stays a reset point: other versions need its tensors in full",
            hint="remove all reset points with the same tensors, or run 'mvc gc' first",
        )
    return plan


# -- proposals ---------------------------------------------------------------------------------


def _shapes(problem: RepackProblem) -> list[Shape]:
    """The shapes for the solver: deltas from parents, skip deltas, and the stored deltas.

    First encodes some tensors in each of these ways, because the solver needs the sizes.
    """
    costs, progress = problem.costs, problem.progress
    step = layout_of(problem.survey.config).step or _STEP
    attempt(costs, (o for id_ in problem.survey.first for o in costs.full_of(id_)), progress)
    attempt(costs, deltas(history(costs)), progress)
    attempt(costs, deltas(rules.skips(costs, step)), progress)
    chain, stored = history(costs), as_stored(costs)
    differs = any(base != chain.get(id_, (b"",))[0] for id_, (base, _) in stored.items())
    return [chain, rules.skips(costs, step), *([stored] if differs else [])]


def _skips(problem: RepackProblem) -> Iterator[RepackPlan]:
    """Plans with skip deltas, with fewer and fewer versions between reset points."""
    step = layout_of(problem.survey.config).step or _STEP
    for interval in (SKIP_ENDLESS, step**3, step**2, step):
        yield problem.plan_of(rules.skipping(problem.costs, SkipLayout(interval, step)))


def _proposals(
    problem: RepackProblem,
    search: Callable[[ContentPlan], _Tried],
    rank: _Rank,
    weight: float | None = None,
) -> Iterator[RepackPlan]:
    """Yields simple plans, then plans that ``search`` finds in each shape.

    If there are groups, each shape is searched three times. A group is stored as a whole, even if
    a plan uses only some of its tensors. In the second search, the groups of the best plan so far
    cost nothing. In the third search, the used tensors of a group cost as much as the whole group.
    """
    shapes = _shapes(problem)
    yield problem.unchanged()
    yield from _skips(problem)
    yield from (
        problem.plan_of(rules.at_interval(problem.costs, interval)) for interval in _INTERVALS
    )
    for shape in shapes:
        factors, groups = dict[Group, float](), problem.costs.candidates.groups
        best: tuple[float, Selection] | None = None
        for round_ in range(_AGAIN + 1 if groups else 1):
            for plan, chosen in search(ContentPlan(problem.costs, shape, weight, factors=factors)):
                yield plan
                ranked = rank(plan.after)
                if ranked is not None and (best is None or ranked < best[0]):
                    best = ranked, chosen
            if best is None:
                break
            weights = _paid(problem, best[1])
            factors = weights if round_ else dict.fromkeys(weights, 0.0)


def _paid(problem: RepackProblem, chosen: Selection) -> dict[Group, float]:
    """Maps each selected group to the ratio of its bytes to the bytes that recoveries use."""
    used_places = {path.step.place for path in chosen.cheapest().values()}
    factors: dict[Group, float] = {}
    for group, members in problem.costs.candidates.groups.items():
        used = sum(o.stored for o in members if o.place in used_places)
        if used or any(o in chosen for o in members):
            factors[group] = sum(o.stored for o in members) / max(1, used)
    return factors


def _best(plans: Iterable[RepackPlan], rank: _Rank) -> RepackPlan | None:
    """The best of the plans that meet the goal. If several are best, the first of these."""
    ranked = [(value, plan) for plan in plans if (value := rank(plan.after)) is not None]
    return min(ranked, key=lambda value_and_plan: value_and_plan[0])[1] if ranked else None


# -- goals for the solver ----------------------------------------------------------------------


def _within_time(problem: RepackProblem, bound: float) -> RepackPlan:
    def rank(after: LayoutMetrics) -> float | None:
        return after.bytes if after.worst_seconds <= bound else None

    plans = list(_proposals(problem, lambda graph: _near(problem, graph, bound), rank))
    if (best := _best(plans, rank)) is not None:
        return best
    least = min(plan.after.worst_seconds for plan in plans)
    raise Unattainable(
        f"no layout allows mvc to recover every version within {plain(bound)} s here",
        hint=f"the fastest layout takes about {plain(least, 2)} s: every version in full",
    )


def _near(problem: RepackProblem, graph: ContentPlan, bound: float | None) -> _Tried:
    """Plans with a longest recovery time of about ``bound`` seconds.

    If ``bound`` is None, only the plan with the lowest cost.
    """
    if bound is not None:
        return _searched(problem, graph, lambda after: after.worst_seconds > bound, 1e9 * bound)
    best_ = graph.solver.cheapest()
    assert best_ is not None, "everything in full is a layout"
    chosen = graph.selection(best_.layout)
    return iter([(problem.plan_of(chosen), chosen)])


def _searched(
    problem: RepackProblem,
    graph: ContentPlan,
    is_above: Callable[[LayoutMetrics], bool],
    first: float | None = None,
) -> _Tried:
    """Yields the plans of a bisection over the solver's limit on the recovery time.

    The bisection approaches the limit at which ``is_above`` of the plan changes. The bisection is
    necessary, because the solver's times and sizes are a little lower than those of the whole plan.
    ``first``: the first limit to try; None: the limit that allows the smallest layout.
    """
    solver, known = graph.solver, dict[Selected, bool]()
    smallest = solver.cheapest()
    assert smallest is not None, "everything in full is a layout"
    low, high = solver.shortest, smallest.worst
    bound = high if first is None else max(low, min(high, round(first)))
    for _ in range(_ROUNDS):
        layout_ = solver.cheapest(bound) or smallest
        if layout_.layout not in known:
            chosen = graph.selection(layout_.layout)
            plan = problem.plan_of(chosen)
            known[layout_.layout] = is_above(plan.after)
            yield plan, chosen
        if known[layout_.layout]:
            high = layout_.worst
        else:
            low = bound
        if high <= low * _EXACT:
            return
        bound = round(sqrt(low * high))


def _within_bytes(problem: RepackProblem, size: int) -> RepackPlan:
    """The fastest plan whose packs have at most ``size`` bytes, including manifests and headers."""

    def rank(after: LayoutMetrics) -> float | None:
        return after.worst_seconds if after.bytes <= size else None

    plans = list(
        _proposals(
            problem,
            lambda graph: _searched(problem, graph, lambda after: after.bytes <= size),
            rank,
        )
    )
    if (best := _best(plans, rank)) is not None:
        # Of the plans that are about as fast as ``best``, choose the smallest.
        limit = best.after.worst_seconds * ALIKE
        return min((p for p in plans if p.after.worst_seconds <= limit), key=_size)
    least = min(map(_size, plans))
    raise Unattainable(
        f"no layout fits into {size} bytes",
        hint=f"the smallest needs about {least} bytes",
    )


def _size(plan: RepackPlan) -> int:
    return plan.after.bytes


def _cheapest(problem: RepackProblem, weight: float) -> RepackPlan:
    """The plan with the lowest ``price``.

    If the goal has ``alternatives`` (versions whose weights a training can compute again), first
    chooses the versions whose weights are deleted.
    """
    goal, versions = problem.goal, problem.survey.versions
    old, remaining, saved, dropped = (
        price(problem, problem.before, weight),
        problem,
        0.0,
        list[CommitId](),
    )
    if goal.alternatives:
        graph = ContentPlan(problem.costs, _shapes(problem)[0], weight, goal.alternatives)
        best = graph.solver.cheapest(ENDLESS if goal.bound is None else round(1e9 * goal.bound))
        numbers = [] if best is None else sorted(best.dropped)
        dropped = [versions[i].commit for i in numbers]
        saved = 0.0 if best is None else -sum(best.ns[i] for i in numbers) / 1e9
    if dropped:
        paths = {commit: goal.alternatives[commit].path for commit in dropped}
        goal_ = replace(goal, alternatives={})
        remaining = RepackProblem(
            problem.survey.store, problem.survey.config, goal_, problem.progress, dropped=paths
        )
        lost = problem.survey.specs.keys() - remaining.survey.specs.keys()
        saved += sum(o.stored for o in problem.stored if o.id in lost) * weight / 1e9
    plan = _cheapest_layout(remaining, weight)
    prices = old, price(remaining, plan.after, weight) - saved
    return replace(plan, goal=goal, before=problem.before, dropped=tuple(dropped), prices=prices)


def _cheapest_layout(problem: RepackProblem, weight: float) -> RepackPlan:
    bound = problem.goal.bound

    def rank(after: LayoutMetrics) -> float | None:
        late = bound is not None and after.worst_seconds > bound
        return None if late else price(problem, after, weight)

    plans = _proposals(problem, lambda graph: _near(problem, graph, bound), rank, weight)
    best = _best(plans, rank)
    if best is None:
        assert bound is not None, "without a bound every plan will do"
        return _within_time(problem, bound)
    return best


def price(problem: RepackProblem, metrics: LayoutMetrics, weight: float) -> float:
    """The time to recover every version once, plus ``weight`` seconds per stored gigabyte."""
    return metrics.bytes * weight / 1e9 + metrics.mean_seconds * len(problem.survey.versions)


# -- the curve ---------------------------------------------------------------------------------


def curve(problem: RepackProblem) -> RepackCurve:
    """For each bound on the recovery time, the smallest size of all packs.

    The result also has the size and the times of the present layout.
    """
    before, costs = problem.before, problem.costs
    today, points = _point(before), list[CurvePoint]()
    tensors = sum(o.stored for o in problem.stored if o.id in problem.survey.specs)
    for shape in _shapes(problem) if problem.survey.versions else ():
        graph = ContentPlan(costs, shape)
        stored = graph.solver.problem.contents.stored
        for priced in graph.solver.sweep():
            if costs.candidates.groups:  # the solver only estimates groups, so measure the layout
                points.append(_point(layout_metrics(costs, graph.selection(priced.layout))))
                continue
            size, mean = (
                before.bytes - tensors + stored(priced.layout),
                sum(priced.ns) / len(priced.ns),
            )
            points.append(CurvePoint(size, priced.worst / 1e9, mean / 1e9))
    if points:
        points += (_point(plan.after) for plan in _skips(problem))
    return RepackCurve(front([*points, today]) if points else (), today)


def _point(metrics: LayoutMetrics) -> CurvePoint:
    return CurvePoint(metrics.bytes, metrics.worst_seconds, metrics.mean_seconds)


def front(points: Iterable[CurvePoint]) -> tuple[CurvePoint, ...]:
    """The Pareto front of points, from the fastest recovery to the fewest bytes.

    Of points with nearly the same number of bytes, only the fastest stays.
    """
    front_: list[CurvePoint] = []
    for point in sorted(points, key=lambda p: (p.worst_seconds, p.bytes, p.mean_seconds)):
        if not front_ or point.bytes * _SAME <= front_[-1].bytes:
            front_.append(point)
    return tuple(front_)
