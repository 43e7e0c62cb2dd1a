"""The best plan for a goal: of a rule, or of the solver over several shapes.

The solver knows contents and their estimated prices. What it proposes is priced as a whole, with
headers and groups; where that misses the goal, it is asked again for a tighter one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import sqrt

from msgspec.structs import replace

from mvc.errors import DamagedData, Unattainable
from mvc.ids import CommitId
from mvc.maintenance.inventory import inventory
from mvc.maintenance.repack import rules
from mvc.maintenance.repack.candidates import Candidate
from mvc.maintenance.repack.codings import Codings
from mvc.maintenance.repack.contents import ContentGraph, Shape, as_stored, history
from mvc.maintenance.repack.goal import Goal, plain
from mvc.maintenance.repack.metrics import LayoutMetrics, layout_metrics
from mvc.maintenance.repack.plan import CurvePoint, RepackCurve, RepackPlan
from mvc.maintenance.repack.selection import Selection, of_store
from mvc.maintenance.repack.solve.graph import Layout
from mvc.maintenance.repack.solve.priced import ENDLESS
from mvc.maintenance.repack.super_steps import super_steps
from mvc.maintenance.repack.survey import Survey, survey
from mvc.maintenance.rewrite_plan import EncodeRequest, RewritePlan
from mvc.repo.commit.storage_policy import layout_of
from mvc.repo.context import Context
from mvc.store.writing.layout import ENDLESS as SKIP_ENDLESS
from mvc.store.writing.layout import Layout as SkipLayout
from mvc.types import Progress

__all__ = ["Planner", "front", "make_plan"]

_ROUNDS = 6  # of plans for a bound
_HALVINGS = 10  # of the range of bounds, for a size
_EXACT = 1.003  # ratio of bounds that count as one
_STEP = 4  # of skip deltas, where the settings have none
_ALIKE = 1.01  # ratio of estimates that count as equal
_SAME = 1.001  # ratio of sizes that count as equal


class Planner:
    """Raises DamagedData if a record is damaged.

    ``given_up``: by version a path whose weights count as given up already.
    """

    def __init__(
        self,
        context: Context,
        goal: Goal,
        progress: Progress | None = None,
        given_up: Mapping[CommitId, str] | None = None,
    ) -> None:
        found = inventory(context.store.snapshot)
        found.history.dropped.update(given_up or {})
        if found.damaged:
            raise DamagedData(
                f"the repository is damaged: {found.damaged[0].message}",
                hint="run 'mvc fsck --repair' first",
            )
        self.goal = goal
        self.progress = progress
        self.survey: Survey = survey(context, found, progress)
        self.codings = Codings(self.survey, context.store.timing)
        self._stored = of_store(self.codings)
        self.before = layout_metrics(self.codings, self._stored)

    def plan(self) -> RepackPlan:
        """Raises Unattainable if the goal cannot be met."""
        goal = self.goal
        if not self.survey.versions:
            return self.unchanged()
        if goal.weight is not None:
            return self._cheapest(goal.weight)
        if goal.max_recovery is not None:
            return self._within_time(goal.max_recovery)
        if goal.max_size is not None:
            return self._within_bytes(goal.max_size)
        self.codings.attempt(self._by_rule().new, self.progress)
        plan = self.plan_of(self._by_rule())
        if goal.remove:
            self._check_bound(plan.after)
        if goal.layout is None or self.before.bytes > plan.after.bytes:
            return plan
        slower = self.before.worst_seconds > plan.after.worst_seconds * _ALIKE
        return plan if slower else self.unchanged()

    def unchanged(self) -> RepackPlan:
        """The plan of doing nothing."""
        return self.plan_of(self._stored)

    def plan_of(self, chosen: Selection) -> RepackPlan:
        """The plan to store these codings and no others."""
        gone, new = chosen.left_out(), chosen.new
        places = {candidate.place for candidate in gone if candidate.place is not None}
        rewrite = RewritePlan(
            leave=places,
            add=[EncodeRequest(*pair) for pair in dict.fromkeys((o.id, o.base) for o in new)],
            packs={pack for pack, _, _ in places},
            specs=self.survey.specs,
        )
        return RepackPlan(
            self.goal,
            self.before,
            layout_metrics(self.codings, chosen) if rewrite else self.before,
            full_added=sum(o.base is None for o in new),
            full_removed=sum(o.base is None for o in gone),
            deltas_added=sum(o.base is not None for o in new),
            deltas_removed=sum(o.base is not None for o in gone),
            rewrite=rewrite,
            codings=self.codings,
        )

    # -- aims that are rules ---------------------------------------------------------------

    def _by_rule(self) -> Selection:
        goal, codings = self.goal, self.codings
        if goal.add:
            return rules.with_reset_points(codings, goal.add)
        if goal.remove:
            return rules.without_reset_points(codings, goal.remove)
        if goal.super_step is not None:
            return rules.with_steps(codings, goal.super_step)
        if goal.interval is not None:
            return rules.at_interval(codings, goal.interval)
        assert goal.layout is not None
        return rules.skipping(codings, goal.layout)

    def _check_bound(self, after: LayoutMetrics) -> None:
        bound = self.goal.bound
        if bound is not None and after.worst_seconds > bound:
            name = after.worst_commit.short if after.worst_commit else "?"
            raise Unattainable(
                f"version {name} would take {plain(after.worst_seconds, 3)} s; "
                f"store.max_recovery allows {plain(bound)} s",
                hint="raise store.max_recovery, or remove fewer reset points",
            )

    # -- aims for the solver ---------------------------------------------------------------

    def shapes(self) -> Iterator[Shape]:
        """What the solver chooses from: a chain, skip deltas, and what is stored."""
        codings = self.codings
        step = layout_of(self.survey.context.config).step or _STEP
        codings.attempt((o for id_ in codings.first for o in codings.full(id_)), self.progress)
        codings.attempt(_deltas(history(codings)), self.progress)
        chain, stored = history(codings), as_stored(codings)
        yield chain
        codings.attempt(_deltas(rules.skips(codings, step)), self.progress)
        yield rules.skips(codings, step)
        if any(base != chain.get(id_, (b"",))[0] for id_, (base, _) in stored.items()):
            yield stored

    def _graphs(self) -> Iterator[ContentGraph]:
        """Of every shape. Groups are decoded as a whole, so whole versions are planned as well."""
        for shape in self.shapes():
            yield ContentGraph(self.codings, shape)
            if self.codings.stored.groups:
                yield ContentGraph(self.codings, shape, whole=True)

    def _skipping(self) -> Iterator[RepackPlan]:
        """With groups, plans with skip deltas of fewer and fewer versions between reset points."""
        step = layout_of(self.survey.context.config).step or _STEP
        for interval in (
            (SKIP_ENDLESS, step**3, step**2, step) if self.codings.stored.groups else ()
        ):
            layout = SkipLayout(interval, step)
            self.codings.attempt(rules.skipping(self.codings, layout).new, self.progress)
            yield self.plan_of(rules.skipping(self.codings, layout))

    def _tried(self, graph: ContentGraph, layout: Layout) -> RepackPlan:
        """The plan for a layout, after trials of its new codings."""
        self.codings.attempt(graph.selection(layout).new, self.progress)
        return self.plan_of(graph.selection(layout))

    def _within_time(self, bound: float) -> RepackPlan:
        plans = [self.unchanged(), *self._skipping()]
        plans += [plan for graph in self._graphs() for plan in self._near(graph, bound)]
        fitting = [plan for plan in plans if plan.after.worst_seconds <= bound]
        if fitting:
            return min(fitting, key=lambda plan: plan.after.bytes)
        least = min(plan.after.worst_seconds for plan in plans)
        raise Unattainable(
            f"no layout recovers every version within {plain(bound)} s here",
            hint=f"the fastest takes about {plain(least, 2)} s: every version in full",
        )

    def _near(self, graph: ContentGraph, bound: float | None) -> Iterator[RepackPlan]:
        """Plans of low prices near a bound, and everything in full if they do not keep it."""
        solver, late, seen = graph.solver, True, set[Layout]()
        allowed = ENDLESS if bound is None else max(solver.shortest, round(1e9 * bound))
        for _ in range(_ROUNDS):
            found = solver.cheapest(allowed)
            if found is None or found.layout in seen:
                break
            seen.add(found.layout)
            plan = self._tried(graph, found.layout)
            yield plan
            if bound is None:
                return
            late = late and plan.after.worst_seconds > bound
            allowed = max(solver.shortest, round(allowed * bound / plan.after.worst_seconds))
        if late:
            yield self._tried(graph, solver.problem.contents.in_full)

    def _within_bytes(self, size: int) -> RepackPlan:
        """Bytes include manifests and headers, which no layout changes."""
        plans = [self.unchanged(), *self._skipping()]
        plans += [plan for graph in self._graphs() for plan in self._of_size(graph, size)]
        fitting = [plan for plan in plans if plan.after.bytes <= size]
        if fitting:
            return min(fitting, key=lambda plan: plan.after.worst_seconds)
        least = min(plan.after.bytes for plan in plans)
        raise Unattainable(
            f"no layout fits into {size} bytes",
            hint=f"the smallest possible takes about {least} bytes",
        )

    def _of_size(self, graph: ContentGraph, size: int) -> Iterator[RepackPlan]:
        """Plans of the smallest layout, and of fast ones near a size (by bisection)."""
        smallest = graph.solver.cheapest()
        assert smallest is not None, "everything in full is a layout"
        sizes, found = dict[Layout, int](), smallest
        low, bound, high = graph.solver.shortest, smallest.worst, smallest.worst
        for _ in range(_HALVINGS):
            if found.layout not in sizes:
                plan = self._tried(graph, found.layout)
                sizes[found.layout] = plan.after.bytes
                yield plan
            if sizes[found.layout] > size:
                low = bound
            else:
                high = found.worst
            if high <= low * _EXACT:
                return
            bound = round(sqrt(low * high))
            found = graph.solver.cheapest(bound) or smallest

    def _cheapest(self, weight: float) -> RepackPlan:
        """Weights to give up count as such in the layout of the rest."""
        goal, versions = self.goal, self.survey.versions
        old, rest, saved, gone = self._price(self.before, weight), self, 0.0, list[CommitId]()
        if goal.proven:
            graph = ContentGraph(self.codings, next(self.shapes()), weight, goal.proven)
            bound = ENDLESS if goal.bound is None else round(1e9 * goal.bound)
            best = graph.solver.cheapest(bound)
            numbers = [] if best is None else sorted(best.given_up)
            gone = [versions[i].commit for i in numbers]
            saved -= sum(best.ns[i] for i in numbers) / 1e9 if best is not None else 0
        if gone:
            paths = {commit: goal.proven[commit].path for commit in gone}
            without = replace(goal, proven={})
            rest = Planner(self.survey.context, without, self.progress, paths)
            lost = self.survey.specs.keys() - rest.survey.specs.keys()
            saved += sum(o.stored for o in self._stored if o.id in lost) * weight / 1e9
        plan = rest._cheapest_layout(weight)
        prices = old, rest._price(plan.after, weight) - saved
        return replace(plan, goal=goal, before=self.before, given_up=tuple(gone), prices=prices)

    def _cheapest_layout(self, weight: float) -> RepackPlan:
        bound = self.goal.bound
        graphs = (ContentGraph(self.codings, shape, weight) for shape in self.shapes())
        plans = [self.unchanged(), *(p for graph in graphs for p in self._near(graph, bound))]
        fitting = [p for p in plans if bound is None or p.after.worst_seconds <= bound]
        if bound is not None and not fitting:
            return self._within_time(bound)
        return min(fitting, key=lambda plan: self._price(plan.after, weight))

    def _price(self, metrics: LayoutMetrics, weight: float) -> float:
        """Seconds: of bytes in packs, and of one recovery of every version."""
        return metrics.bytes * weight / 1e9 + metrics.mean_seconds * len(self.survey.versions)

    def curve(self) -> RepackCurve:
        """The bytes of all packs that each recovery bound would take, and the stored layout."""
        found = [self.before]
        if self.survey.versions:
            found += [plan.after for plan in self._skipping()]
            for graph in self._graphs():
                layouts = (graph.selection(each.layout) for each in graph.solver.sweep())
                found += [layout_metrics(self.codings, layout) for layout in layouts]
        today, *points = [CurvePoint(a.bytes, a.worst_seconds, a.mean_seconds) for a in found]
        return RepackCurve(front([today, *points]) if points else (), today)


def _deltas(shape: Shape) -> Iterator[Candidate]:
    return (candidate for _, made in shape.values() for candidate in made)


def front(points: Iterable[CurvePoint]) -> tuple[CurvePoint, ...]:
    """The Pareto front of points, from the fastest recovery to the fewest bytes.

    Of points with nearly the same bytes the fastest stays.
    """
    found: list[CurvePoint] = []
    for point in sorted(points, key=lambda p: (p.worst_seconds, p.bytes, p.mean_seconds)):
        if not found or point.bytes * _SAME <= found[-1].bytes:
            found.append(point)
    return tuple(found)


def make_plan(context: Context, goal: Goal, progress: Progress | None = None) -> RepackPlan:
    """The best plan found for a goal.

    Raises Unattainable if the goal cannot be met, DamagedData in a damaged repository.
    """
    planner = Planner(context, goal, progress)
    plan = planner.plan()
    if not _is_worth(plan):
        prices = plan.prices and (plan.prices[0], plan.prices[0])
        plan = replace(planner.unchanged(), prices=prices)
    return plan if goal.super_step is None else _with_super_steps(planner.survey, plan)


def _with_super_steps(survey_: Survey, plan: RepackPlan) -> RepackPlan:
    """The plan, and super-steps of versions that are stored as approximate steps."""
    assert plan.goal.super_step is not None
    rewrite, made = plan.rewrite, super_steps(survey_, plan.goal.super_step)
    if not made:
        return plan
    left = {pack for pack, _, _ in made.leave}
    rewrite = replace(
        rewrite, leave=rewrite.leave | made.leave, add=[*rewrite.add, *made.shortcuts],
        packs=rewrite.packs | left, joint=list(made.joint),
    )  # fmt: skip
    after = replace(plan.after, bytes=plan.after.bytes - made.saved)
    joined = sum(len(each.chains) * len(each.chains[0]) for each in made.joint)
    return replace(plan, rewrite=rewrite, after=after, joined=joined)


def _is_worth(plan: RepackPlan) -> bool:
    """Whether a plan changes more than estimates can tell apart."""
    a, b = plan.before, plan.after
    if plan.prices is not None:
        bound = plan.goal.bound
        late = bound is not None and a.worst_seconds > bound
        return late or plan.prices[0] > plan.prices[1] * _ALIKE
    return a.reset_points != b.reset_points or any(
        not 1 / _ALIKE < (x + 1e-9) / (y + 1e-9) < _ALIKE
        for x, y in (
            (a.bytes, b.bytes),
            (a.worst_seconds, b.worst_seconds),
            (a.mean_seconds, b.mean_seconds),
        )
    )
