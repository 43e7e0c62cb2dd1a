"""The version that each node of a fleet reports, compared with the live version of its target."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from itertools import islice

from msgspec import Struct

from mvc.api.repository import Repository
from mvc.ids import CommitId
from mvc.repo.statements.live import check_target, deployment_with, live_among, succession
from mvc.times import datetime_of, nearest

CLOCK_MS = 10_000
"""A larger clock difference counts as a wrong clock; reports are in transit for some seconds."""
SILENT_NS = 600 * 10**9
"""A node that does not serve the live version is silent after this time without a report."""
_FARTHEST = 1000  # deployments searched for a node's version


class NodeStatus(Struct, frozen=True):
    """One node's last report for one target, as of ``now_ns``.

    ``since_ns``: start of serving ``commit``, by the node's clock. ``reported_ns``: arrival of the
    report, by the remote's clock. ``ahead_ms``: how far the node's clock was ahead (None: unknown).
    ``live``, ``live_ns``: the target's live version and its start, or None. ``behind``: deployments
    between both versions (None: ``commit`` is not among the last 1,000).
    """

    node: str
    target: str
    commit: CommitId
    since_ns: int
    reported_ns: int
    ahead_ms: int | None
    live: CommitId | None
    live_ns: int | None
    behind: int | None
    now_ns: int

    @property
    def since(self) -> datetime:
        return datetime_of(self.since_ns)

    @property
    def is_behind(self) -> bool:
        return self.live is not None and self.commit != self.live

    @property
    def behind_seconds(self) -> float:
        """Seconds for which another version has been live than the node serves."""
        if not self.is_behind or self.live_ns is None:
            return 0.0
        return max(0, self.now_ns - self.live_ns) / 1e9

    @property
    def is_clock_off(self) -> bool:
        return self.ahead_ms is not None and abs(self.ahead_ms) > CLOCK_MS

    @property
    def silent_since_ns(self) -> int | None:
        """Time of the last report if the node should have reported the live version by now, else
        None.
        """
        if not self.is_behind or self.live_ns is None:
            return None
        due = max(self.live_ns, self.reported_ns)
        return self.reported_ns if self.now_ns - due > SILENT_NS else None


def nodes(repo: Repository, target: str | None = None) -> tuple[NodeStatus, ...]:
    """The last report of each node, sorted by target and node; ``target`` selects one target.

    Raises UnknownTarget for a target without deployments or reports, DamagedData if lost journal
    entries may hold further reports.
    """
    store = repo.handle.store
    snapshot, now_ns = store.fresh(), nearest(store.clock.now_ns())
    snapshot.check_gaps(-1, "what nodes serve")

    @cache
    def behind(follows: str, commit: CommitId) -> int | None:
        recent = islice(succession(snapshot, follows, now_ns), _FARTHEST)
        return next((back for back, status in enumerate(recent) if status.commit == commit), None)

    statuses = []
    for name in snapshot.targets(reports=True):
        _, node, follows = name.split("/", 2)
        if target not in (None, follows):
            continue
        newest, live = (live_among(snapshot, status, now_ns) for status in (name, follows))
        if newest is None:
            continue
        report = deployment_with(snapshot, newest.id)
        statuses.append(
            NodeStatus(
                node,
                follows,
                newest.commit,
                newest.time_ns,
                reported_ns=newest.recorded_ns,
                ahead_ms=None if report is None else report[1].ahead_ms,
                live=None if live is None else live.commit,
                live_ns=None if live is None else live.time_ns,
                behind=behind(follows, newest.commit),
                now_ns=now_ns,
            )
        )
    if target is not None and not statuses:
        check_target(store.fresh(), target)
    return tuple(sorted(statuses, key=lambda status: (status.target, _natural(status.node))))


def _natural(name: str) -> tuple[int, str]:
    """Sort key: numeric names by value (node 9 before node 10), before all others."""
    return int(name) if name.isascii() and name.isdecimal() else -1, name
