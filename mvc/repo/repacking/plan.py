"""The plan of a repack: what is asked for, what it takes, and what it costs before and after."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from mvc.errors import DamagedData, Unattainable
from mvc.ids import CommitId
from mvc.repo.context import Context, Progress
from mvc.repo.inventory import inventory
from mvc.repo.recode import Wanted
from mvc.repo.relayout import Relayout
from mvc.repo.repacking import shapes
from mvc.repo.repacking.bounded import fastest, smallest, within_bytes, within_time
from mvc.repo.repacking.costs import Costs
from mvc.repo.repacking.curve import curve
from mvc.repo.repacking.figures import Figures, figures
from mvc.repo.repacking.model import Layout, Versions
from mvc.repo.repacking.options import Options
from mvc.repo.repacking.selection import Selection, of_layout, of_store
from mvc.repo.repacking.sizes import Sizes
from mvc.repo.repacking.survey import Survey, survey
from mvc.repo.repacking.trials import learn_stored, try_missing, try_new
from mvc.store.calibrate import measure

__all__ = [
    "CurvePoint",
    "RepackCurve",
    "RepackPlan",
    "Wish",
    "draw_curve",
    "make_plan",
    "present_figures",
]

_ROUNDS = 6
_ALIKE = 1.01  # estimated times that differ by less are the same


@dataclass(frozen=True, slots=True)
class Wish:
    """What a repack is to reach; exactly one of these is set.

    ``interval``: a reset point every so many commits. ``max_recovery``: seconds.
    ``max_size``: bytes of all packs. ``add``, ``remove``: reset points. ``super_step``:
    commits that the longer deltas span. ``bound``: seconds that removing may not pass.
    """

    interval: int | None = None
    max_recovery: float | None = None
    max_size: int | None = None
    add: tuple[CommitId, ...] = ()
    remove: tuple[CommitId, ...] = ()
    super_step: int | None = None
    bound: float | None = None

    def __str__(self) -> str:
        if self.interval is not None:
            return f"interval {self.interval}"
        if self.max_recovery is not None:
            return f"max-recovery {self.max_recovery:g}"
        if self.max_size is not None:
            return f"max-size {self.max_size}"
        if self.super_step is not None:
            return f"super-step {self.super_step}"
        verb, ids = ("add", self.add) if self.add else ("remove", self.remove)
        return " ".join([verb, *(id_.short for id_ in ids)])


@dataclass(frozen=True)
class RepackPlan:
    """``relayout`` is what is to be done; a plan with nothing to do is false.

    ``full_*`` and ``delta_*`` count codings of tensors. ``costs`` is what the plan was made from.
    """

    wish: Wish
    before: Figures
    after: Figures
    full_added: int
    full_removed: int
    deltas_added: int
    deltas_removed: int
    relayout: Relayout = field(repr=False)
    costs: Costs = field(repr=False)

    def __bool__(self) -> bool:
        return bool(self.relayout)

    @property
    def added(self) -> tuple[CommitId, ...]:
        """Versions that become reset points."""
        return tuple(i for i in self.after.reset_points if i not in self.before.reset_points)

    @property
    def removed(self) -> tuple[CommitId, ...]:
        """Versions that are reset points no more."""
        return tuple(i for i in self.before.reset_points if i not in self.after.reset_points)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Bytes of all packs; estimated seconds until a version is back."""

    bytes: int
    worst_seconds: float
    mean_seconds: float


@dataclass(frozen=True, slots=True)
class RepackCurve:
    """Layouts from the fastest recovery to the least bytes, and what is stored now."""

    points: tuple[CurvePoint, ...]
    today: CurvePoint


def make_plan(context: Context, wish: Wish, progress: Progress | None = None) -> RepackPlan:
    """Looks at what is stored, tries what is not, and chooses.

    Raises Unattainable where the wish cannot be met, DamagedData in a damaged repository.
    """
    return _Planner(context, wish, progress).plan()


def draw_curve(context: Context, progress: Progress | None = None) -> RepackCurve:
    """What each recovery bound would cost in bytes of all packs, and what is stored now."""
    return _Planner(context, Wish(), progress).curve()


class _Planner:
    def __init__(self, context: Context, wish: Wish, progress: Progress | None) -> None:
        found = inventory(context.store.view)
        if found.damaged:
            raise DamagedData(
                f"the repository is damaged: {found.damaged[0].message}",
                hint="repack moves sound data only; 'mvc fsck --repair' comes first",
            )
        self.wish = wish
        self.progress = progress
        self.survey: Survey = survey(context, found, progress)
        options = Options(found)
        self.costs = Costs(self.survey, options, Sizes(self.survey), measure())
        learn_stored(self.costs)
        self.long = self._long_pairs()
        self.stored = of_store(self.costs)
        self.before = figures(self.costs, self.stored)

    def _long_pairs(self) -> list[tuple[int, int, int]]:
        """Deltas over several generations: those that are stored, and those asked for."""
        pairs = self.costs.stored_long()
        if self.wish.super_step is not None:
            pairs |= set(self.steps())
        return sorted(pairs)

    def steps(self) -> list[tuple[int, int, int]]:
        """From every M-th version of a line of descent to the next one."""
        step = self.wish.super_step or 1
        depth: list[int] = []
        found = []
        for i, version in enumerate(self.survey.versions):
            depth.append(0 if version.parent is None else depth[version.parent] + 1)
            if depth[i] and depth[i] % step == 0 and step > 1:
                start = self.survey.ancestor(i, step)
                assert start is not None
                found.append((start, i, step))
        return found

    # -- choosing ------------------------------------------------------------------------

    def plan(self) -> RepackPlan:
        wish = self.wish
        if not self.survey.versions:
            return self._unchanged()
        if wish.add:
            return self._plan_of(self._added())
        try_missing(self.costs, self.long, self.progress, full=not (wish.remove or wish.super_step))
        versions = self.costs.versions(self.long)
        today = self.costs.today(versions)
        if wish.remove:
            return self._plan_of(self._removed(versions, today))
        if wish.super_step is not None:
            pairs = [(a, b) for a, b, _ in self.steps()]
            return self._plan_of(
                self._with_edges(versions, shapes.with_steps(versions, today, pairs))
            )
        if wish.interval is not None:
            return self._plan_of(
                self._mapped(versions, shapes.at_interval(versions, wish.interval))
            )
        if wish.max_recovery is not None:
            return self._within_time(versions, today, wish.max_recovery)
        assert wish.max_size is not None
        return self._within_bytes(versions, today, wish.max_size)

    def _within_time(self, versions: Versions, today: Layout, bound: float) -> RepackPlan:
        """Tightens the planner's bound until what it chose keeps the real one, blob by blob."""
        wanted = round(bound * 1e9)
        for _ in range(_ROUNDS):
            layout = within_time(versions, wanted, today)
            if layout is None:
                break
            plan = self._plan_of(self._mapped(versions, layout))
            if plan.after.worst_seconds <= bound:
                kept = self.before.worst_seconds <= bound and self.before.bytes <= plan.after.bytes
                return self._unchanged() if kept else plan
            wanted = min(wanted - 1, int(wanted * bound / plan.after.worst_seconds))
        if self.before.worst_seconds <= bound:
            return self._unchanged()
        least = fastest(versions) / 1e9
        raise Unattainable(
            f"no layout recovers every version within {bound:g} s here",
            hint=f"the fastest takes about {least:.2g} s: every version in full",
        )

    def _within_bytes(self, versions: Versions, today: Layout, size: int) -> RepackPlan:
        """As above for bytes; what no layout changes (manifests, headers) counts as well."""
        least = self._plan_of(self._mapped(versions, smallest(versions, today)))
        if min(least.after.bytes, self.before.bytes) > size:
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
            layout = self._cheaper(versions, layout, today)
            plan = self._plan_of(self._mapped(versions, layout))
            if plan.after.bytes <= size:
                if best is None or plan.after.worst_seconds < best.after.worst_seconds:
                    best = plan
                break
            room -= plan.after.bytes - size
        worst = self.before.worst_seconds
        if best is None or (self.before.bytes <= size and worst <= best.after.worst_seconds):
            return self._unchanged()
        return best

    def _cheaper(self, versions: Versions, layout: Layout, today: Layout) -> Layout:
        """The least bytes that take as long, as far as such estimates can tell."""
        worst = versions.worst(layout) or 0
        return within_time(versions, round(worst * _ALIKE), today) or layout

    def _added(self) -> Selection:
        chosen = of_store(self.costs)
        numbers = [self._number(id_) for id_ in self.wish.add]
        full = [o for i in numbers for id_ in self._blobs(i) for o in self.costs.full(i, id_)]
        try_new(self.costs, [option for option in full if option.place is None], self.progress)
        for i in numbers:
            for id_ in self._blobs(i):
                chosen.add(self.costs.full(i, id_))
        return chosen

    def _removed(self, versions: Versions, today: Layout) -> Selection:
        """Everything stored, less the full records of these versions that no other needs."""
        numbers = [self._number(id_) for id_ in self.wish.remove]
        for i in numbers:
            if i not in today.sources:
                raise Unattainable(
                    f"version {self._name(i)} is no reset point",
                    hint="'mvc log' marks reset points; 'mvc stats' counts them",
                )
        layout = shapes.without(versions, today, numbers)
        lost = [i for i, ns in enumerate(versions.recovery(layout)) if ns is None]
        if lost:
            raise Unattainable(
                f"version {self._name(lost[0])} could not be recovered any more: "
                "no delta leads to it from another reset point",
                hint="keep one of them, or add another reset point first",
            )
        chosen = self._with_edges(versions, layout, complete=False)
        needed = {id_ for i in layout.sources for id_ in self._blobs(i)}
        gone = {id_ for i in numbers for id_ in self._blobs(i)} - needed
        chosen.drop([o for o in chosen if o.base is None and o.id in gone])
        chosen.complete()
        self._check_bound(figures(self.costs, chosen))
        return chosen

    def _check_bound(self, after: Figures) -> None:
        bound = self.wish.bound
        if bound is None or after.worst_seconds <= bound:
            return
        name = after.worst_commit.short if after.worst_commit else "?"
        raise Unattainable(
            f"version {name} would take {after.worst_seconds:.3g} s; "
            f"store.max_recovery allows {bound:g} s",
            hint="raise store.max_recovery, or remove fewer reset points",
        )

    def _with_edges(
        self, versions: Versions, layout: Layout, *, complete: bool = True
    ) -> Selection:
        """Everything stored, and the deltas of a layout."""

        def build() -> Selection:
            chosen = of_store(self.costs)
            chosen.add_edges(versions, layout)
            return chosen

        self._try(build())
        chosen = build()
        if complete:
            chosen.complete()
        return chosen

    def _mapped(self, versions: Versions, layout: Layout) -> Selection:
        """What a layout needs, with what is new in it tried."""
        self._try(of_layout(self.costs, versions, layout))
        return of_layout(self.costs, versions, layout)

    def _try(self, chosen: Selection) -> None:
        try_new(self.costs, chosen.new, self.progress)

    def _blobs(self, i: int) -> Collection[bytes]:
        return self.survey.versions[i].blobs.keys()

    def _number(self, id_: CommitId) -> int:
        found = self.survey.numbers.get(id_)
        if found is None:
            raise Unattainable(f"the state of version {id_.short} is not there any more")
        return found

    def _name(self, i: int) -> str:
        return self.survey.versions[i].commit.short

    # -- the plan -------------------------------------------------------------------------

    def _plan_of(self, chosen: Selection) -> RepackPlan:
        gone, new = chosen.left_out(), chosen.new
        places = {option.place for option in gone if option.place is not None}
        relayout = Relayout(
            leave=places,
            add=[Wanted(*pair) for pair in dict.fromkeys((o.id, o.base) for o in new)],
            packs={pack for pack, _, _ in places},
            specs=self.survey.specs,
        )
        return RepackPlan(
            self.wish,
            self.before,
            figures(self.costs, chosen) if relayout else self.before,
            sum(o.base is None for o in new),
            sum(o.base is None for o in gone),
            sum(o.base is not None for o in new),
            sum(o.base is not None for o in gone),
            relayout,
            self.costs,
        )

    def _unchanged(self) -> RepackPlan:
        return self._plan_of(self.stored)

    def curve(self) -> RepackCurve:
        try_missing(self.costs, self.long, self.progress, full=True)
        versions = self.costs.versions(self.long)
        tensors = sum(o.stored for o in self.stored if o.id in self.survey.specs)
        return RepackCurve(
            tuple(
                CurvePoint(self.before.bytes - tensors + p.bytes, p.worst / 1e9, p.mean / 1e9)
                for p in curve(versions)
            ),
            CurvePoint(self.before.bytes, self.before.worst_seconds, self.before.mean_seconds),
        )


def present_figures(context: Context) -> Figures:
    """What is stored now costs."""
    return _Planner(context, Wish(), None).before
