"""repack: store the same versions with other reset points and deltas.

A ``RepackProblem`` holds what is stored, and estimates what other codings would take. A plan is a
``Selection`` of codings of single tensors from which everything can be recovered. Most goals are
met in two steps. A solver (``solve``) chooses among whole versions: which are in full, and which
delta leads to each of the others (``Selected``). The codings of their tensors follow from that.
What recovery then takes, tensor by tensor, can differ from the solver's figure, so a bound is
tightened for the solver until the plan keeps it. The lowest price is searched for over tensors
themselves (``ContentGraph``).

Execution moves the codings that stay into new packs and adds the new ones, in one step
(``mvc.maintenance.rewrite_plan``). Ids do not change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

from msgspec.structs import replace

from mvc.errors import Unattainable
from mvc.maintenance.repack.goal import plain
from mvc.maintenance.repack.plan import LayoutMetrics, RepackPlan, Selection, layout_metrics
from mvc.maintenance.repack.planner import price
from mvc.maintenance.repack.rules import drop_full, numbers_of
from mvc.maintenance.repack.solve import Selected
from mvc.repo.commit.storage_policy import layout_of
from mvc.store.writing.layout import ENDLESS
from mvc.store.writing.layout import Layout as SkipLayout
from tests.maintenance.old_planner import layouts
from tests.maintenance.old_planner.bounded import fastest, smallest, within_bytes, within_time
from tests.maintenance.old_planner.contents import ContentGraph
from tests.maintenance.old_planner.model import Versions
from tests.maintenance.old_planner.priced import cheapest
from tests.maintenance.old_planner.problem import RepackProblem

_ROUNDS = 6
_STEP = 4  # of skip deltas, where the settings have none
_ALIKE = 1.01  # ratio of estimates that count as equal


def chosen(problem: RepackProblem) -> RepackPlan:
    goal = problem.goal
    if goal.weight is not None:
        return _cheapest(problem, goal.weight)
    if goal.add:
        return problem.plan_of(added(problem))
    if goal.remove:
        return problem.plan_of(removed(problem))
    if goal.interval is not None:
        versions, _ = problem.versions(full=True)
        return problem.plan_of(
            problem.of_layout(versions, layouts.at_interval(versions, goal.interval))
        )
    if goal.layout is not None:
        plan = problem.plan_of(problem.skipping(goal.layout))
        a, b = plan.before, plan.after
        kept = a.bytes <= b.bytes and a.worst_seconds <= b.worst_seconds * _ALIKE
        return problem.unchanged() if kept else plan
    if goal.max_recovery is not None:
        return _within_time(problem, goal.max_recovery)
    assert goal.max_size is not None
    return _within_bytes(problem, goal.max_size)


def _within_time(problem: RepackProblem, bound: float) -> RepackPlan:
    """Tightens the planner's bound until the selection meets the real one, blob by blob."""
    (versions, today), before = problem.versions(full=True), problem.before
    allowed, least = round(bound * 1e9), fastest(versions)
    best = next((p for p in _skipping(problem) if p.after.worst_seconds <= bound), None)
    for last in (*[False] * (_ROUNDS - 1), True):
        layout = within_time(versions, least if last else allowed, today)
        if layout is None:
            break
        plan = problem.plan_of(problem.of_layout(versions, layout))
        if plan.after.worst_seconds <= bound:
            best = plan if best is None or plan.after.bytes <= best.after.bytes else best
            break
        # The planner knows no groups: what it must be asked for can lie far below the bound, but
        # not below what every version in full takes.
        planned = versions.worst(layout) or allowed
        allowed = max(least, min(allowed - 1, int(planned * bound / plan.after.worst_seconds)))
    if before.worst_seconds <= bound and (best is None or before.bytes <= best.after.bytes):
        return problem.unchanged()
    if best is not None:
        return best
    raise Unattainable(
        f"no layout allows mvc to recover every version within {plain(bound)} s here",
        hint=f"the fastest takes about {plain(least / 1e9, 2)} s: every version in full",
    )


def _cheapest(problem: RepackProblem, weight: float) -> RepackPlan:
    """The plan of the lowest price; weights to give up count as such in the layout of the rest."""
    goal, versions = problem.goal, problem.survey.versions
    old, rest, saved = price(problem, problem.before, weight), problem, 0.0
    best = cheapest(ContentGraph(problem, weight, goal.bound).priced)
    numbers = [] if best is None else sorted(best.dropped)
    gone = [versions[i].commit for i in numbers]
    if best is not None and gone:
        paths = {commit: goal.alternatives[commit].path for commit in gone}
        without = replace(goal, proven={})
        rest = RepackProblem(
            problem.survey.store, problem.survey.config, without, problem.progress, paths
        )
        lost = problem.survey.specs.keys() - rest.survey.specs.keys()
        saved = sum(o.stored for o in rest.stored if o.id in lost) * weight / 1e9
        saved -= sum(best.ns[i] for i in numbers) / 1e9
    plan = _cheapest_layout(rest, weight)
    prices = old, price(rest, plan.after, weight) - saved
    return replace(plan, goal=goal, before=problem.before, dropped=tuple(gone), prices=prices)


def _cheapest_layout(problem: RepackProblem, weight: float) -> RepackPlan:
    """As ``_within_time`` for the price: the present layout, or a better one that was found."""
    bound = allowed = problem.goal.bound
    plans = [problem.unchanged()]
    for _ in range(_ROUNDS):
        graph = ContentGraph(problem, weight, allowed)
        best = cheapest(graph.priced)
        if best is None:
            break
        plan = problem.plan_of(problem.selected(partial(graph.selection, best.layout)))
        plans.append(plan)
        if bound is None or allowed is None or plan.after.worst_seconds <= bound:
            break
        allowed *= 0.99 * bound / plan.after.worst_seconds
    fitting = [p for p in plans if bound is None or p.after.worst_seconds <= bound]
    if bound is not None and not fitting:
        return _within_time(problem, bound)
    return min(fitting, key=lambda p: price(problem, p.after, weight))


def _skipping(problem: RepackProblem) -> Iterator[RepackPlan]:
    """Plans with skip deltas, of fewer and fewer versions between reset points."""
    step = layout_of(problem.survey.config).step or _STEP
    for interval in (ENDLESS, step**3, step**2, step):
        yield problem.plan_of(problem.skipping(SkipLayout(interval, step)))


def _within_bytes(problem: RepackProblem, size: int) -> RepackPlan:
    """As ``_within_time`` for bytes, including manifests and headers, which no layout changes."""
    (versions, today), before = problem.versions(full=True), problem.before
    least = problem.plan_of(problem.of_layout(versions, smallest(versions, today)))
    if min(least.after.bytes, before.bytes) > size:
        raise Unattainable(
            f"no layout fits into {size} bytes",
            hint=f"the smallest possible takes about {least.after.bytes} bytes",
        )
    fitting = [p for p in (least, *_skipping(problem)) if p.after.bytes <= size]
    best = min(fitting, key=lambda p: p.after.worst_seconds, default=None)
    room = size - (least.after.bytes - versions.stored(smallest(versions, today)))
    for _ in range(_ROUNDS):
        try:
            layout = within_bytes(versions, room, today)
        except Unattainable:
            break
        layout = _cheaper(versions, layout, today)
        plan = problem.plan_of(problem.of_layout(versions, layout))
        if plan.after.bytes <= size:
            if best is None or plan.after.worst_seconds < best.after.worst_seconds:
                best = plan
            break
        room -= plan.after.bytes - size
    worst = before.worst_seconds
    if best is None or (before.bytes <= size and worst <= best.after.worst_seconds):
        return problem.unchanged()
    return best


def _cheaper(versions: Versions, layout: Selected, today: Selected) -> Selected:
    """The smallest layout with about the same worst recovery."""
    worst = versions.worst(layout) or 0
    return within_time(versions, round(worst * _ALIKE), today) or layout


def added(problem: RepackProblem) -> Selection:
    """All stored codings plus full records of the versions to add."""
    costs = problem.costs

    def build() -> Selection:
        chosen = Selection(costs.candidates)
        for i in numbers_of(problem.survey, problem.goal.add):
            for id_ in _blobs(problem, i):
                chosen.add(costs.full(i, id_))
        return chosen

    return problem.selected(build)


def removed(problem: RepackProblem) -> Selection:
    """All stored codings without the full records that only the versions to remove need.

    Missing deltas are added only if the stored ones do not do. Raises Unattainable if a version
    cannot be recovered then, or if its recovery would take longer than the settings allow.
    """
    numbers = numbers_of(problem.survey, problem.goal.remove)
    versions, today = problem.versions(full=False)
    for i in numbers:
        if i not in today.sources:
            raise Unattainable(
                f"version {_name(problem, i)} is no reset point",
                hint="'mvc show' says of a version whether it is one",
            )
    layout = layouts.without(versions, today, numbers)
    lost = [i for i in range(len(versions)) if i not in versions.recovery(layout)]
    if lost:
        raise Unattainable(
            f"version {_name(problem, lost[0])} could not be recovered any more: "
            "no delta leads to it from another reset point",
            hint="keep one of them, or add another reset point first",
        )
    needed = {id_ for i in layout.sources for id_ in _blobs(problem, i)}
    gone = {id_ for i in numbers for id_ in _blobs(problem, i)} - needed
    asked, bound = {problem.survey.versions[i].commit for i in numbers}, problem.goal.bound

    def rest(chosen: Selection) -> tuple[LayoutMetrics, Selection]:
        drop_full(chosen, problem.costs, gone)
        chosen = problem.completed(chosen)
        return layout_metrics(problem.costs, chosen), chosen

    def fails(after: LayoutMetrics) -> tuple[bool, int]:
        late = bound is not None and after.worst_seconds > bound
        return late, len(asked.intersection(after.reset_points))

    # The layout's edges are of whole versions. Where deltas of single tensors have other bases
    # (skips, groups), the stored ones may lead everywhere though no edge is stored as a whole.
    after, chosen = rest(Selection(problem.costs.candidates))
    if any(fails(after)):
        edged = rest(problem.with_edges(versions, layout))
        if fails(edged[0]) < fails(after):
            after, chosen = edged
    _check_bound(problem, after)
    for id_ in after.reset_points:
        if id_ in asked:
            raise Unattainable(
                f"version {id_.short} stays a reset point: what it has is needed in full by others",
                hint="remove the reset points with the same tensors as well, or run 'mvc gc' first",
            )
    return chosen


def _check_bound(problem: RepackProblem, after: LayoutMetrics) -> None:
    bound = problem.goal.bound
    if bound is None or after.worst_seconds <= bound:
        return
    name = after.worst_commit.short if after.worst_commit else "?"
    raise Unattainable(
        f"version {name} would take {plain(after.worst_seconds, 3)} s; "
        f"store.max_recovery allows {plain(bound)} s",
        hint="raise store.max_recovery, or remove fewer reset points",
    )


def _blobs(problem: RepackProblem, i: int) -> Collection[bytes]:
    return problem.survey.versions[i].blobs.keys()


def _name(problem: RepackProblem, i: int) -> str:
    return problem.survey.versions[i].commit.short
