"""Stamps of deployments: the next one, and deployments by theirs."""

from __future__ import annotations

from mvc.ids import DeploymentId
from mvc.store.journal.entries import Deployment
from mvc.store.journal.frames import Recorded
from mvc.store.journal.stamps import Stamp
from mvc.store.snapshot import Snapshot


def on(recorded: Recorded, target: str) -> Deployment | None:
    """The deployment on a target that an entry recorded."""
    return next((each for each in recorded.entry.deployments if each.target == target), None)


def next_stamp(snapshot: Snapshot, target: str, now_ns: int) -> Stamp:
    """The stamp of a deployment that is recorded here now. Valid only under the journal's lock."""
    stamp = Stamp(snapshot.node, now_ns, now_ns)
    newest = snapshot.newest_hybrid(target)
    return stamp if newest is None else stamp.after(newest)


def recorded_before(snapshot: Snapshot, target: str, hybrid_ns: int) -> int | None:
    """When the deployment before one with this hybrid time was recorded; of several the last."""

    def look() -> int | None:
        before = snapshot.newest_hybrid(target, hybrid_ns)
        if before is None:
            return None
        rows = snapshot.stamped_at(target, before)
        return max((stamp.recorded_ns for _, stamp in rows), default=None)

    return snapshot.retry_on_rewrite(look)


def newest(snapshot: Snapshot, target: str) -> DeploymentId | None:
    """The last deployment on a target, by stamps."""

    def look() -> DeploymentId | None:
        hybrid_ns = snapshot.newest_hybrid(target)
        if hybrid_ns is None:
            return None
        rows = snapshot.stamped_at(target, hybrid_ns)
        made = ((on(recorded, target), stamp) for recorded, stamp in rows)
        return max((each.id(stamp) for each, stamp in made if each is not None), default=None)

    return snapshot.retry_on_rewrite(look)


def with_id(snapshot: Snapshot, target: str, hybrid_ns: int, id_: DeploymentId) -> Recorded | None:
    """The entry that recorded a deployment with a stamp; None if it is not here."""

    def look() -> Recorded | None:
        for recorded, stamp in snapshot.stamped_at(target, hybrid_ns):
            made = on(recorded, target)
            if made is not None and made.id(stamp) == id_:
                return recorded
        return None

    return snapshot.retry_on_rewrite(look)
