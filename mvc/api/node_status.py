"""Compares the version that each node uses with the version that it should use.

A *target* is a name for a place where models are in use, such as ``prod``. The *live* version of a
target is the version that was deployed to the target. A *node* is a machine that should use the
live version of a target, and that reports to the remote which version it uses.
"""

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
"""A node's clock counts as wrong if the difference is larger than this number of milliseconds."""
SILENT_NS = 600 * 10**9
"""A node without the live version is silent if this time has passed since its newest report, and
since this version went live.
"""
_FARTHEST = 1000  # how many deployments of a target are searched for a node's version


class NodeStatus(Struct, frozen=True):
    """The newest report of one node for one target, compared with the live version at ``now_ns``.

    ``commit``: the version that the node has used since ``since_ns`` (by the node's clock).
    ``reported_ns``: when the report arrived (by the remote's clock). ``ahead_ms``: how far the
    node's clock was ahead of the remote's clock; None if unknown. ``live``: the live version of the
    target, or None. ``live_ns``: when ``live`` went live, or None. ``behind``: how many deployments
    of the target followed that of ``commit``; None if that is not among the newest 1,000.
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
        """Seconds since the live version went live. 0 if the node serves the live version."""
        if not self.is_behind or self.live_ns is None:
            return 0.0
        return max(0, self.now_ns - self.live_ns) / 1e9

    @property
    def is_clock_off(self) -> bool:
        return self.ahead_ms is not None and abs(self.ahead_ms) > CLOCK_MS

    @property
    def silent_since_ns(self) -> int | None:
        """When the newest report of a silent node arrived. None if the node is not silent."""
        if not self.is_behind or self.live_ns is None:
            return None
        due = max(self.live_ns, self.reported_ns)
        return self.reported_ns if self.now_ns - due > SILENT_NS else None


def nodes(repo: Repository, target: str | None = None) -> tuple[NodeStatus, ...]:
    """The newest report of each node, sorted by target and node.

    ``target``: if not None, only nodes of this target. Raises UnknownTarget if ``target`` has no
    deployments and no reports. Raises DamagedData if the journal (the file with all operations) has
    lost entries, because these may contain reports.
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
    """Sort key: numeric names by value (9 before 10), after all other names."""
    return int(name) if name.isascii() and name.isdecimal() else -1, name
