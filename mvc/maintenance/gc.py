"""``mvc gc``: deletes forgotten states, and versions that no ref, HEAD or deployment reaches.

The module ``collect`` plans what to delete. The module ``rewrite_plan`` executes this plan.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from mvc.codecs.patch import encode_patch
from mvc.errors import InvalidTime, WrongUsage
from mvc.maintenance.collect import Collection, CollectionPlan, Reachable, Specs, reachable
from mvc.maintenance.collect import collect as collection
from mvc.maintenance.estimate import sampled
from mvc.maintenance.graph import StorageGraph, read
from mvc.maintenance.quarantine import bytes_of, delete_files, files_in, purged
from mvc.maintenance.rewrite_plan import encoding_policy, retry_on_rewrite, rewrite
from mvc.repo.config import Config
from mvc.repo.lookup.availability import all_in_use
from mvc.repo.queries import drop_rows
from mvc.store.journal.entries import Entry, StateMark
from mvc.store.recovery.recover import Recovery
from mvc.store.store import DiskUse, Store
from mvc.store.writing.full_or_delta import Policy
from mvc.times import parse_duration
from mvc.types import Progress

__all__ = ["Collection", "collect", "grace_of", "plan_collection"]

DEFAULT_GRACE = timedelta(days=14)
_LONGEST_GRACE = timedelta(days=36_500)


def grace_of(config: Config, grace: timedelta | str | None = None) -> timedelta:
    """The grace period, for example 14 days: gc retains versions used by operations in this period.

    ``grace``: ``14d``, ``36h``, ``0``, or a timedelta; None: the setting ``gc.grace_days``. Raises
    WrongUsage for any other value.
    """
    if grace is None:
        return timedelta(days=float(config.get("gc.grace_days")))
    if isinstance(grace, str):
        try:
            seconds = 0.0 if grace.strip() == "0" else parse_duration(grace)
        except InvalidTime as error:
            raise WrongUsage(error.message, hint=error.hint) from None
        grace = timedelta(seconds=min(seconds, 2 * _LONGEST_GRACE.total_seconds()))
    if not timedelta(0) <= grace <= _LONGEST_GRACE:
        raise WrongUsage("the grace period must be from 0 to 36500 days")
    return grace


def plan_collection(
    store: Store,
    config: Config,
    *,
    grace: timedelta = DEFAULT_GRACE,
    progress: Progress | None = None,
) -> Collection:
    """What ``collect`` would do now. Raises Busy, and DamagedData if the repository is damaged."""
    policy = encoding_policy(config)
    plan, _ = retry_on_rewrite(store.snapshot, lambda: _plan_now(store, policy, grace, progress))
    return plan.summary


def collect(
    store: Store,
    config: Config,
    *,
    grace: timedelta = DEFAULT_GRACE,
    reason: str = "",
    progress: Progress | None = None,
) -> Collection:
    """Deletes all versions that are unreachable and that no operation in the grace period names.

    Deletes forgotten states, too, without a grace period. Other processes may commit and read
    meanwhile. The caller completes interrupted checkouts first, because gc may delete the version
    of an interrupted checkout. Raises ReadOnly, Busy. Raises DamagedData, before anything is
    changed, if data that gc would retain is damaged.
    """
    policy, author = encoding_policy(config), config.author
    store.check_writable("collected")

    def attempt() -> tuple[CollectionPlan, int]:
        plan, quarantine = _plan_now(store, policy, grace, progress)

        def operation() -> Entry:
            # Delete the quarantined files before gc is recorded in the journal: a later gc looks
            # in the quarantine only for states that were forgotten after this record.
            delete_files(store.fs, quarantine)
            note = f"{len(plan.summary.commits)} versions, {plan.summary.objects} objects"
            return Entry("gc", store.clock.now_ns(), note, author=author, reason=reason)

        if plan.rewrite:
            rewrite(
                store, policy, plan.rewrite, operation=operation, allows=plan.allows,
                progress=progress,
            )  # fmt: skip
            return plan, plan.summary.before - store.disk_use().total
        delete_files(store.fs, quarantine)
        store.sweep()
        # If the repository is larger now, concurrent commits wrote the difference.
        return plan, max(0, plan.summary.before - store.disk_use().total)

    plan, freed = retry_on_rewrite(store.snapshot, attempt)
    deleted = plan.fully_deleted()
    if deleted and not store.unnamed_packs():
        note = f"forgotten states with no bytes left: {len(deleted)}"
        marks = tuple(StateMark(id_, "no residue") for id_ in deleted)
        store.publish(lambda: Entry("gc", store.clock.now_ns(), note, author, states=marks))
    drop_rows(store, {*plan.summary.commits, *plan.reach.forgotten})
    return replace(plan.summary, freed=freed)


def _plan_now(
    store: Store, policy: Policy, grace: timedelta, progress: Progress | None
) -> tuple[CollectionPlan, list[Path]]:
    """The plan, and the files in the quarantine (retained damaged data) to delete."""
    # Read the disk use before the graph. So bytes that other processes write meanwhile do not count
    # as garbage.
    disk = store.disk_use()
    graph = read(store, progress)
    graph.refuse_damage()
    reach = reachable(graph, cutoff_of(store.now_ns(), grace), in_use=all_in_use(store))
    return plan_deletion(store, policy, graph, reach, disk=disk)


def plan_deletion(
    store: Store, policy: Policy, graph: StorageGraph, reach: Reachable, *, disk: DiskUse
) -> tuple[CollectionPlan, list[Path]]:
    """The plan that deletes all that is not in ``reach``, and the quarantined files to delete."""
    fs, estimate = store.fs, partial(_estimated, store.recovery, policy, reach.blobs)
    plan = collection(graph, reach, disk, estimate)
    quarantine = purged(fs, store.folder, reach)
    remaining = bytes_of(fs, set(files_in(fs, store.folder)) - set(quarantine))
    plan.summary = replace(
        plan.summary, quarantined=remaining, unquarantined=bytes_of(fs, quarantine)
    )
    return plan, quarantine


def cutoff_of(now_ns: int, grace: timedelta) -> int:
    """The time at which the grace period starts, in ns since 1970."""
    return now_ns - round(grace.total_seconds() * 1e9)


def _estimated(
    recovery: Recovery, policy: Policy, specs: Specs, id_: bytes, base: bytes | None
) -> int:
    """The estimated number of bytes that an object needs as a delta from ``base``.

    If a commit would store the object in full instead, estimates the bytes of the full object. The
    size of a blob (a tensor's bytes) is estimated from its first piece of at most 32 MiB.
    ``specs``: dtype and shape of each blob that stays.
    """
    if id_ not in specs:
        old = recovery.manifest(base) if base is not None else b""
        return len(encode_patch(memoryview(recovery.manifest(id_)), memoryview(old)))
    base_blob = (base, specs[base]) if base is not None and base in specs else None
    return round(sampled(recovery, policy, (id_, specs[id_]), base_blob).share * specs[id_].nbytes)
