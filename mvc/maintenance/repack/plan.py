"""The plan of a repack and the storage/recovery curve, as values that can be printed."""

from __future__ import annotations

from msgspec import Struct

from mvc.ids import CommitId
from mvc.maintenance.graph import StorageGraph
from mvc.maintenance.repack.goal import Goal
from mvc.maintenance.repack.metrics import LayoutMetrics
from mvc.maintenance.rewrite_plan import RewritePlan


class RepackPlan(Struct, frozen=True):
    """``rewrite``: what to do; a plan with nothing to do is false.

    ``full_*`` and ``deltas_*`` count codings of tensors. ``found``: what was stored.
    ``given_up``: versions that a recipe makes from then on, in place of their weights. ``prices``:
    before and after in seconds, if the goal is the lowest price. ``joined``: approximate steps of
    tensors that go into super-steps.
    """

    goal: Goal
    before: LayoutMetrics
    after: LayoutMetrics
    full_added: int
    full_removed: int
    deltas_added: int
    deltas_removed: int
    rewrite: RewritePlan
    found: StorageGraph
    given_up: tuple[CommitId, ...] = ()
    prices: tuple[float, float] | None = None
    joined: int = 0

    def __bool__(self) -> bool:
        return bool(self.rewrite or self.given_up)

    @property
    def added(self) -> tuple[CommitId, ...]:
        """Versions that become reset points."""
        known = set(self.before.reset_points)
        return tuple(id_ for id_ in self.after.reset_points if id_ not in known)

    @property
    def removed(self) -> tuple[CommitId, ...]:
        """Versions that are no longer reset points."""
        left = set(self.after.reset_points)
        return tuple(id_ for id_ in self.before.reset_points if id_ not in left)


class CurvePoint(Struct, frozen=True):
    """``bytes`` of all packs; estimated seconds to recover a version, worst and mean."""

    bytes: int
    worst_seconds: float
    mean_seconds: float


class RepackCurve(Struct, frozen=True):
    """Layouts from the fastest recovery to the fewest bytes, and the layout stored ``today``."""

    points: tuple[CurvePoint, ...]
    today: CurvePoint
