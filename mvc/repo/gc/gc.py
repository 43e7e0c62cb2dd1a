"""gc: delete what is unreachable and free its space.

The plan is a value; executing it is a separate step. It says what stays (``reachable``),
which codings that needs (``storage``), which journal entries can be shortened, and which
packs hold enough garbage to be rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from mvc.errors import DamagedData, InvalidTime
from mvc.ids import CommitId
from mvc.repo.context import Context, Progress
from mvc.repo.gc.storage import Sampler, decide
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import BRANCH
from mvc.repo.maintenance.inventory import CodingPlace, Inventory, inventory
from mvc.repo.maintenance.quarantine import delete, files_in, purged, total
from mvc.repo.maintenance.reachable import Reachable, names_of, reachable, tail_needs
from mvc.repo.maintenance.rewrite_plan import (
    RewritePlan,
    check_writable,
    execute,
    retry_on_rewrite,
)
from mvc.repo.times import parse_duration
from mvc.store.journal.entries import Entry, RefChange
from mvc.store.journal.frames import Recorded
from mvc.store.packs.reader import PACK_HEADER, pack_numbers, pack_path
from mvc.store.publishing.publish import ConcurrentRewrite
from mvc.store.snapshot import JOURNAL, PACKS

__all__ = ["DEFAULT_GRACE", "Collection", "collect", "grace_of", "plan_collection", "shortened"]


DEFAULT_GRACE = timedelta(days=14)
_WORTH = 0.05  # a pack is rewritten if at least this share of it is garbage
_BLOCK = 4096  # a journal is not rewritten to save fewer bytes


@dataclass(frozen=True)
class Collection:
    """What a collection deletes, or would delete. Sizes are bytes on disk.

    ``commits`` are unreachable versions, ``objects`` tensors and manifests that no version
    needs, ``operations`` the journal entries to drop. ``phantoms`` are unneeded objects that
    stay because deltas start from them; ``recoded`` are objects that get a new coding
    instead. ``freed`` is an estimate in a plan and measured in a result. ``quarantined``
    bytes of the quarantine stay; ``unquarantined`` ones are deleted, because they may belong
    to states forgotten by name.
    """

    commits: tuple[CommitId, ...]
    forgotten: int
    objects: int
    phantoms: int
    recoded: int
    operations: int
    packs: int
    before: int
    freed: int
    quarantined: int
    unquarantined: int


@dataclass
class _Plan:
    reach: Reachable
    found: Inventory
    rewrite: RewritePlan
    quarantine: list[Path]  # files to delete
    summary: Collection


def plan_collection(
    context: Context,
    *,
    grace: timedelta = DEFAULT_GRACE,
    forget: Mapping[CommitId, bool] | None = None,
    progress: Progress | None = None,
) -> Collection:
    """What ``collect`` would do now if the states in ``forget`` were forgotten (by name: True).

    Raises DamagedData if the repository is damaged.
    """
    return _plan(context, grace, forget, progress).summary


def collect(
    context: Context, *, grace: timedelta = DEFAULT_GRACE, progress: Progress | None = None
) -> Collection:
    """Deletes what is unreachable and not named by an operation within ``grace``.

    Commits and readers may run meanwhile. Raises ReadOnly, Busy, and DamagedData if something
    that stays is damaged; then nothing is changed.
    """
    check_writable(context, "collected")
    before = _size(context)
    done: list[_Plan] = []

    def attempt() -> Recorded | None:
        plan = _plan(context, grace, None, progress)
        done[:] = [plan]
        if not plan.rewrite:
            delete(context.store.fs, plan.quarantine)
            context.store.sweep()
            return None
        note = f"{len(plan.summary.commits)} versions, {plan.summary.objects} objects"

        def last() -> Entry:
            # Delete before the journal records the collection: later ones do not look again.
            delete(context.store.fs, plan.quarantine)
            return Entry("gc", context.store.clock.now_ns(), note)

        return execute(
            context,
            plan.found,
            plan.rewrite,
            last,
            admit=lambda recorded: _admit(plan, recorded, context),
            progress=progress,
        )

    retry_on_rewrite(context, attempt)
    return replace(done[0].summary, before=before, freed=before - _size(context))


def _plan(
    context: Context,
    grace: timedelta,
    forget: Mapping[CommitId, bool] | None,
    progress: Progress | None,
) -> _Plan:
    found = inventory(context.store.snapshot)
    if found.damaged:
        raise DamagedData(
            f"nothing is collected from a damaged repository: {found.damaged[0].message}",
            hint="run 'mvc fsck --repair' first",
        )
    cutoff = context.store.now_ns() - round(grace.total_seconds() * 1e9)
    reach = reachable(context, found, cutoff, forget=forget, progress=progress)
    kept = decide(found, reach, Sampler(context, reach.blobs))
    leave = {c.place for c in found.all_codings() if c.place not in kept.places}
    leave |= set(_dangling(found, reach))
    packs = _packs(context, found, leave)
    moved = {n for n, p in packs.items() if p.goes >= _WORTH * p.size}
    moved |= {c.record.pack for id_ in reach.banned for c in found.codings.get(id_, ())}
    if reach.purge:
        moved |= {n for n, p in packs.items() if p.goes}
    edits, shorter = shortened(found, reach, cutoff)
    gone = tuple(
        commit.id
        for recorded in found.entries
        for commit in recorded.entry.commits
        if commit.id not in reach.commits
    )
    worth = max(_BLOCK, _WORTH * _journal_size(context))
    saved = shorter if gone or shorter >= worth else 0
    # No object of a forgotten state may stay named, except as a base of others.
    split = {
        c.place[:2]
        for id_ in reach.given_up - kept.phantoms
        for c in found.codings.get(id_, ())
        if c.record.pack not in moved
    }
    rewrite = RewritePlan(
        leave, kept.add, moved, edits if saved else {}, reach.blobs, records=split
    )
    if not (moved or split or saved or kept.add):
        rewrite = RewritePlan()
    freed = saved + sum(packs[n].goes for n in moved if n in packs) - kept.added_bytes
    stays = {place[:2] for place in kept.places} - split  # records
    lost = {
        id_
        for id_, codings in found.codings.items()
        if not reach.needs(id_)
        and not any(c.record.pack not in moved and c.place[:2] in stays for c in codings)
    }
    fs, folder = context.store.fs, context.store.folder
    quarantine = purged(fs, folder, reach)
    unquarantined = total(fs, quarantine)
    summary = Collection(
        gone,
        sum(id_ not in reach.states for id_ in reach.commits),
        len(lost - kept.phantoms) if rewrite else 0,
        len(kept.phantoms),
        len(kept.add),
        sum(made is None for made in rewrite.edits.values()),
        len(moved),
        _size(context),
        max(0, freed),
        total(fs, [path for path in files_in(fs, folder) if path not in quarantine]),
        unquarantined,
    )
    return _Plan(reach, found, rewrite, quarantine, summary)


def _dangling(found: Inventory, reach: Reachable) -> Iterator[CodingPlace]:
    """Deltas whose base is no longer stored, of objects with another coding or without use.

    They cannot be decoded, and the ids of their bases may belong to forgotten states.
    """
    for records in found.records:
        for record in records:
            for i, member in enumerate(record.header.members):
                lost = member.base and found.resolve_prefix(member.base) is None
                if lost and (member.id in found.codings or not reach.needs(member.id)):
                    yield record.pack, record.offset, i


@dataclass
class _Pack:
    """Bytes of the file, and how many of them are garbage."""

    size: int
    goes: int


def _packs(context: Context, found: Inventory, leave: set[CodingPlace]) -> dict[int, _Pack]:
    """Every pack that an entry names. Bytes between its records count as garbage."""
    stays: dict[int, int] = {}
    for records in found.records:
        for record in records:
            members = record.header.members
            kept = [i for i in range(len(members)) if (record.pack, record.offset, i) not in leave]
            size = record.header.size
            if not record.header.group and kept:
                size -= sum(m.stored for m in members) - sum(members[i].stored for i in kept)
            stays[record.pack] = stays.get(record.pack, 0) + (size if kept else 0)
    packs = {}
    for number, bytes_ in stays.items():
        path = pack_path(context.store.folder / PACKS, number)
        identity = context.store.fs.stat(path)
        size = 0 if identity is None else identity.size
        packs[number] = _Pack(size, max(0, size - bytes_ - len(PACK_HEADER)))
    return packs


def _admit(plan: _Plan, recorded: Recorded, context: Context) -> None:
    """Raises Outrun if an operation published meanwhile needs what the plan deletes."""
    if recorded.entry.forgotten:
        raise ConcurrentRewrite("states were forgotten that were to stay")
    if tail_needs(plan.reach, recorded):
        raise ConcurrentRewrite("an operation came to need a version that was to be collected")

    def goes(id_: bytes | None) -> bool:
        return id_ in plan.found.codings and not plan.reach.needs(id_ or b"")

    for commit in recorded.entry.commits:
        manifest = manifests.load(context, commit.manifest)
        if any(map(goes, (*manifests.objects(manifest), commit.manifest))):
            raise ConcurrentRewrite("a commit came to need an object that was to be collected")
    for _, _, header in context.store.snapshot.records(recorded.offset):
        if any(goes(plan.found.resolve_prefix(m.base)) for m in header.members if m.base):
            raise ConcurrentRewrite("a commit came to build on an object that was to be collected")


def _journal_size(context: Context) -> int:
    identity = context.store.fs.stat(context.store.folder / JOURNAL)
    return 0 if identity is None else identity.size


def _size(context: Context) -> int:
    """Bytes of journal and packs, without the index, which is derived."""
    fs, folder = context.store.fs, context.store.folder / PACKS
    sizes = [fs.stat(pack_path(folder, number)) for number in pack_numbers(fs, folder)]
    return _journal_size(context) + sum(each.size for each in sizes if each is not None)


_MOST = timedelta(days=36_500)


def grace_of(context: Context, given: timedelta | str | None = None) -> timedelta:
    """How long operations still count for gc. ``given``: ``14d``, ``36h``, ``0``, or a timedelta.

    None takes the setting ``gc.grace_days``. Raises InvalidTime for anything else.
    """
    if given is None:
        return timedelta(days=float(context.config.get("gc.grace_days")))
    if isinstance(given, str):
        seconds = 0.0 if given.strip() == "0" else parse_duration(given)
        given = timedelta(seconds=min(seconds, 2 * _MOST.total_seconds()))
    if not timedelta(0) <= given <= _MOST:
        raise InvalidTime("a grace is a span from 0 to 36500 days")
    return given


def shortened(
    found: Inventory, reach: Reachable, cutoff_ns: int
) -> tuple[dict[int, Entry | None], int]:
    """What the journal need not say any more: the entries that change, and the bytes saved.

    Keys are positions of entries in the inventory; None drops the entry. Regions are ignored.

    Entries within the grace (from ``cutoff_ns`` on) stay as they are. Of older ones stay:
    reachable versions, every deployment, retraction and corrected predecessor, what was
    forgotten, each ref's present value, and the moves of branches between versions that are
    still there. If all versions of an entry are there, it keeps all of its moves and can be
    undone. Otherwise only the new values stay, without the old ones, so that no operation can be
    undone in part or twice.
    """
    newest: dict[str, int] = {}
    for entry_index, recorded in enumerate(found.entries):
        newest.update((change.name, entry_index) for change in recorded.entry.refs)
    lists = _lists_of_removed(found, cutoff_ns)
    edits: dict[int, Entry | None] = {}
    moving: set[int] = set()
    saved = 0
    for entry_index, recorded in enumerate(found.entries):
        entry = recorded.entry
        if entry_index == 0 or entry.time_ns >= cutoff_ns:
            continue
        commits = tuple(commit for commit in entry.commits if commit.id in reach.commits)
        refs = tuple(
            change
            for change in entry.refs
            if newest[change.name] == entry_index or (commits and _still(change, reach))
        )
        whole = (refs or entry.undoes in moving) and names_of(entry) <= reach.commits.keys()
        if whole:
            moving.add(recorded.sequence)
            refs = entry.refs
        made = replace(
            entry,
            commits=commits,
            refs=refs if whole else tuple(replace(c, old=c.new) for c in refs),
            removed=entry.removed if entry_index in lists else None,
            marks=entry.marks if commits else (),
            forgotten=tuple(each for each in entry.forgotten if each.commit in reach.commits),
            undoes=entry.undoes if whole else None,
        )
        empty = not (
            made.commits
            or made.refs
            or made.deployments
            or made.retractions
            or made.relinks
            or made.forgotten
        )
        if empty and made.removed is None:
            edits[entry_index] = None
            saved += recorded.after.offset - recorded.offset
        elif made != entry:
            edits[entry_index] = made
            saved += 2 * (len(entry.encoded) - len(made.encoded))
    return edits, saved


def _lists_of_removed(found: Inventory, cutoff_ns: int) -> set[int]:
    """Entries with the present list of removed paths, and with lists that an undo restores."""
    before: int | None = None
    kept = set()
    for entry_index, recorded in enumerate(found.entries):
        if recorded.entry.removed is None:
            continue
        if before is not None and recorded.entry.time_ns >= cutoff_ns:
            kept.add(before)
        before = entry_index
    return kept if before is None else kept | {before}


def _still(change: RefChange, reach: Reachable) -> bool:
    """Whether a branch's move can stay: both of its versions are reachable."""
    values = [v for v in (change.old, change.new) if isinstance(v, CommitId)]
    return change.name.startswith(BRANCH) and all(value in reach.commits for value in values)
