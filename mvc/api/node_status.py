"""Which version each node of a fleet serves, by its reports, beside what is live on its target."""

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
"""A clock that differs by more is off: a report is on its way for some seconds."""
SILENT_NS = 600 * 10**9
"""After this time without a report a node that does not serve the live version is silent."""
_FARTHEST = 1000  # deployments back in which a version is looked for


class NodeStatus(Struct, frozen=True):
    """``commit`` is what ``node`` serves for ``target`` since ``since_ns``, by its own clock.

    ``reported_ns``: when the report came, by the clock of the remote that took it; ``ahead_ms``:
    how far the node's clock was ahead then, None where that is not known. ``live`` is what is live
    on the target since ``live_ns``; None if nothing is. ``behind``: how many deployments the node
    is behind that, None for a version that is not among the last ones that count. All as of
    ``now_ns``.
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
        """For how long another version is live than the one that it serves."""
        if not self.is_behind or self.live_ns is None:
            return 0.0
        return max(0, self.now_ns - self.live_ns) / 1e9

    @property
    def is_clock_off(self) -> bool:
        return self.ahead_ms is not None and abs(self.ahead_ms) > CLOCK_MS

    @property
    def silent_since_ns(self) -> int | None:
        """When it reported last, if by now it should have reported the version that is live."""
        if not self.is_behind or self.live_ns is None:
            return None
        due = max(self.live_ns, self.reported_ns)
        return self.reported_ns if self.now_ns - due > SILENT_NS else None


def nodes(repo: Repository, target: str | None = None) -> tuple[NodeStatus, ...]:
    """What each node serves, by its last report, and how far it is behind what is live.

    By target and name, or of the nodes that follow one target.

    A few look-ups for each. Raises UnknownTarget for one of which nothing is on record, DamagedData
    where lost entries may have said more.
    """
    store = repo.handle.store
    snapshot, now_ns = store.fresh(), nearest(store.clock.now_ns())
    snapshot.check_gaps(-1, "what nodes serve")

    @cache
    def behind(follows: str, commit: CommitId) -> int | None:
        recent = islice(succession(snapshot, follows, now_ns), _FARTHEST)
        return next((back for back, each in enumerate(recent) if each.commit == commit), None)

    found = []
    for name in snapshot.targets(reports=True):
        _, node, follows = name.split("/", 2)
        if target not in (None, follows):
            continue
        newest, live = (live_among(snapshot, each, now_ns) for each in (name, follows))
        if newest is None:
            continue
        report = deployment_with(snapshot, newest.id)
        found.append(
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
    if target is not None and not found:
        check_target(store.fresh(), target)
    return tuple(sorted(found, key=lambda each: (each.target, _natural(each.node))))


def _natural(name: str) -> tuple[int, str]:
    """Numbers in their order: node 9 stands before node 10."""
    return int(name) if name.isascii() and name.isdecimal() else -1, name
