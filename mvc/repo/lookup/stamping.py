"""Stamps of deployments: which ones have them, which ones the others would get.

A repository stamps its deployments before the first one of another repository comes in: those of a
target in the order in which they were recorded. So a target's newest deployment has a stamp if, and
only if, all have. What a stamp will be follows from the journal, whoever asks and whenever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

from mvc.ids import DeploymentId
from mvc.store.journal.entries import Deployment, Entry
from mvc.store.journal.frames import Recorded
from mvc.store.journal.stamps import LateStamp, Stamp, node_of
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store

_AT_ONCE = 256  # stamps in one entry
_LONG = 1000  # deployments on one target


def node(snapshot: Snapshot) -> bytes:
    """Names this repository in stamps. Its copies have the same one."""
    return node_of(snapshot.entry(0).entry.note)


def on(recorded: Recorded, target: str) -> Deployment | None:
    """The deployment on a target that an entry recorded."""
    return next((each for each in recorded.entry.deployments if each.target == target), None)


def is_stamped(snapshot: Snapshot, target: str) -> bool:
    """Whether the deployments of a target have stamps; two look-ups at most."""
    if not snapshot.has_stamps(target):
        return False

    def look() -> bool:
        offset = snapshot.deployment_before(target)
        if offset is None:
            return False
        newest = snapshot.entry(offset)
        made = on(newest, target)
        return made is not None and stamp_of(snapshot, newest, made) is not None

    return snapshot.retry_on_rewrite(look)


def stamp_of(snapshot: Snapshot, recorded: Recorded, made: Deployment) -> Stamp | None:
    """The stamp of a deployment, in its own entry or in a later one."""
    return made.stamp or snapshot.late_stamp(made.target, recorded.sequence)


def next_stamp(
    snapshot: Snapshot, target: str, now_ns: int, *, first: bool = False
) -> Stamp | None:
    """The stamp of a deployment that is recorded here now; None while none has one.

    ``first``: it may be the first in the repository that has one, as no other lacks one. Valid only
    under the journal's lock.
    """
    there = snapshot.deployment_before(target) is not None
    if not (is_stamped(snapshot, target) if there else first or snapshot.has_stamps()):
        return None
    stamp = Stamp(node(snapshot), now_ns, now_ns)
    newest = snapshot.newest_hybrid(target)
    return stamp if newest is None else stamp.after(newest)


def every(snapshot: Snapshot, target: str) -> list[tuple[int, Stamp, bool]]:
    """By number of its entry the stamp of each deployment on a target, and whether it has it.

    Oldest record first. Those that have none get these.
    """
    return snapshot.retry_on_rewrite(lambda: list(_every(snapshot, target)))


def _every(snapshot: Snapshot, target: str) -> Iterator[tuple[int, Stamp, bool]]:
    own, newest, late = node(snapshot), None, snapshot.late_stamps(target)
    for offset in snapshot.deployments_on(target):
        recorded = snapshot.entry(offset)
        made = on(recorded, target)
        has = (made and made.stamp) or late.get(recorded.sequence)
        time_ns = recorded.entry.time_ns
        stamp = has or Stamp(own, time_ns, time_ns)
        if has is None and newest is not None:
            stamp = stamp.after(newest)
        yield recorded.sequence, stamp, has is not None
        newest = stamp.hybrid_ns


def missing(snapshot: Snapshot) -> list[LateStamp]:
    """The stamps that deployments lack, in the order in which an entry gives them."""
    found: list[LateStamp] = []
    for target in snapshot.targets():
        if not is_stamped(snapshot, target):
            found += [
                LateStamp(target, number, stamp)
                for number, stamp, has in every(snapshot, target)
                if not has
            ]
    return found


def stamp_all(store: Store) -> None:
    """Stamps the deployments that have none."""
    while late := missing(store.snapshot):
        for begin in range(0, len(late), _AT_ONCE):
            with suppress(_AllStamped):
                store.publish(partial(_stamping, store, late[begin : begin + _AT_ONCE]))
        store.snapshot.refresh()


def stamp_long(store: Store) -> None:
    """Stamps a long history: who sends a deployment of it would read all before it each time."""
    snapshot = store.snapshot
    if not store.writable or snapshot.has_stamps():
        return
    if any(len(snapshot.deployments_on(target)) > _LONG for target in snapshot.targets()):
        stamp_all(store)


class _AllStamped(Exception):
    """Another process did it meanwhile."""


def _stamping(store: Store, late: Sequence[LateStamp]) -> Entry:
    known = store.snapshot.late_stamp
    stamps = tuple(each for each in late if known(each.target, each.sequence) is None)
    if not stamps:
        raise _AllStamped
    return Entry("stamp", store.now_ns(), stamps=stamps)


def recorded_before(snapshot: Snapshot, target: str, hybrid_ns: int) -> int | None:
    """When the deployment before one with this hybrid time was recorded; of several the last."""

    def look() -> int | None:
        before = snapshot.newest_hybrid(target, hybrid_ns)
        if before is None:
            return None
        return max(stamp.recorded_ns for _, stamp in snapshot.stamped_at(target, before))

    return snapshot.retry_on_rewrite(look)


def newest(snapshot: Snapshot, target: str) -> DeploymentId | None:
    """The last deployment on a target by stamps; None if none has one."""

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
