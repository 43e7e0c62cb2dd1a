"""gc: delete what is unreachable and free its space.

The plan is a value; executing it is a separate step. It says what stays (``reachable``),
which codings that needs, which journal entries can be shortened, and which packs hold enough
garbage to be rewritten.

If the path to a needed object leads through unneeded ones, there are three choices: encode
it against the next needed object (the deltas between become one), store it in full, or
keep the unneeded objects as *phantoms*, which belong to no version. The cheapest is taken.
An object of a state forgotten by name is never kept as a phantom.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from mvc.codecs.patch import encode_patch
from mvc.errors import DamagedData, InvalidTime
from mvc.ids import CommitId
from mvc.limits import PIECE
from mvc.maintenance.history import names_of
from mvc.maintenance.inventory import Contents, Inventory, StoredCoding, inventory
from mvc.maintenance.leftovers import clear_leftovers
from mvc.maintenance.quarantine import bytes_of, delete, files_in, purged
from mvc.maintenance.reachable import Reachable, reachable
from mvc.maintenance.rewrite_plan import (
    EncodeRequest,
    RewritePlan,
    check_writable,
    encoding_policy,
    execute,
    retry_on_rewrite,
)
from mvc.maintenance.storage_graph import Flags, Piece, Reachability, column
from mvc.model.tensor import TensorSpec
from mvc.repo.context import Context
from mvc.repo.interrupted import finish_checkouts
from mvc.repo.lookup import manifests
from mvc.repo.lookup.manifest_stream import ManifestStream
from mvc.repo.lookup.refs import BRANCH
from mvc.repo.queries import drop
from mvc.repo.times import parse_duration
from mvc.store.journal.entries import Entry, RefChange, Weights
from mvc.store.journal.frames import Recorded
from mvc.store.packs.reader import PACK_HEADER, pack_numbers, pack_path
from mvc.store.publishing.publish import ConcurrentRewrite
from mvc.store.snapshot import JOURNAL, PACKS
from mvc.store.writing.full_or_delta import BasePiece, choose
from mvc.types import Progress

__all__ = ["DEFAULT_GRACE", "Collection", "collect", "grace_of", "plan_collection", "shortened"]

DEFAULT_GRACE = timedelta(days=14)
_WORTH = 0.05  # a pack is rewritten if at least this share of it is garbage, or weights given up
_BLOCK = 4096  # a journal is not rewritten to save fewer bytes


class Collection(Struct, frozen=True):
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


class _Plan(Struct):
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

    Raises Busy, and DamagedData if the repository is damaged.
    """
    return retry_on_rewrite(context, lambda: _plan(context, grace, forget, progress).summary)


def collect(
    context: Context, *, grace: timedelta = DEFAULT_GRACE, progress: Progress | None = None
) -> Collection:
    """Deletes what is unreachable and not named by an operation within ``grace``.

    Commits and readers may run meanwhile. Raises ReadOnly, Busy, and DamagedData if something
    that stays is damaged; then nothing is changed.
    """
    check_writable(context, "collected")
    finish_checkouts(context)
    clear_leftovers(context)
    before = _size(context)

    def attempt() -> Collection:
        plan = _plan(context, grace, None, progress)
        gone = {*plan.summary.commits, *plan.reach.forgotten}
        if not plan.rewrite:
            delete(context.store.fs, plan.quarantine)
            context.store.sweep()
            drop(context, gone)
            return plan.summary
        note = f"{len(plan.summary.commits)} versions, {plan.summary.objects} objects"

        def last() -> Entry:
            # Delete before the journal records the collection: later ones do not look again.
            delete(context.store.fs, plan.quarantine)
            return Entry("gc", context.store.clock.now_ns(), note)

        execute(
            context,
            plan.found,
            plan.rewrite,
            last,
            admit=lambda recorded: _admit(plan, recorded, context),
            progress=progress,
        )
        drop(context, gone)
        return plan.summary

    summary = retry_on_rewrite(context, attempt)
    return replace(summary, before=before, freed=before - _size(context))


def _plan(
    context: Context,
    grace: timedelta,
    forget: Mapping[CommitId, bool] | None,
    progress: Progress | None,
) -> _Plan:
    contents = Contents(ManifestStream(context.store))
    found = inventory(context.store.snapshot, contents, progress=progress)
    if found.damaged:
        raise DamagedData(
            f"nothing is collected from a damaged repository: {found.damaged[0].message}",
            hint="run 'mvc fsck --repair' first",
        )
    cutoff = context.store.now_ns() - round(grace.total_seconds() * 1e9)
    reach = reachable(context, found, contents, cutoff, forget=forget)
    kept = _KeptCodings(context, found, reach)
    graph = found.graph
    leaves = graph.sound & ~kept.rows
    # Deltas whose base is lost cannot be decoded, and the ids of their bases may belong to
    # forgotten states: they go if the object has another coding, or no use.
    leaves |= ~graph.sound & (kept.coded | ~kept.needed)[graph.object]
    garbage = _Garbage(context, found, leaves)
    moved = {n for n, (size, goes) in garbage.packs.items() if goes >= _WORTH * size}
    moved |= {c.record.pack for id_ in reach.banned for c in found.codings.get(id_, ())}
    moved |= {
        coding.record.pack
        for id_ in reach.dropped
        for coding in found.codings.get(id_, ())
        if leaves[coding.row]
    }
    if reach.purge:
        moved |= {n for n, (_, goes) in garbage.packs.items() if goes}
    edits, shorter = shortened(found, reach, cutoff)
    ids = list(found.history.numbers)
    gone = tuple(ids[n] for n in found.history.published if n not in reach.numbers)
    fs, folder = context.store.fs, context.store.folder
    worth = max(_BLOCK, _WORTH * bytes_of(fs, [folder / JOURNAL]))
    saved = shorter if gone or shorter >= worth else 0
    # No object of a forgotten state may stay named, except as a base of others.
    split = {
        c.place[:2]
        for id_ in reach.given_up - kept.phantoms
        for c in found.codings.get(id_, ())
        if c.record.pack not in moved
    }
    leave = set(found.places(np.flatnonzero(leaves).tolist()))
    rewrite = RewritePlan(
        leave, kept.add, moved, edits if saved else {}, reach.blobs, records=split
    )
    if not (moved or split or saved or kept.add):
        rewrite = RewritePlan()
    freed = saved + sum(garbage.packs[n][1] for n in moved if n in garbage.packs)
    freed -= kept.added_bytes
    lost = kept.coded & ~kept.needed & ~garbage.holding(kept.rows, moved, split)
    lost[list(map(graph.number, kept.phantoms))] = False
    quarantine = purged(fs, folder, reach)
    summary = Collection(
        commits=gone,
        forgotten=len(reach.commits) - len(reach.states),
        objects=int(lost.sum()) if rewrite else 0,
        phantoms=len(kept.phantoms),
        recoded=len(kept.add),
        operations=sum(made is None for made in rewrite.edits.values()),
        packs=len(moved),
        before=_size(context),
        freed=max(0, freed),
        quarantined=bytes_of(fs, set(files_in(fs, folder)) - set(quarantine)),
        unquarantined=bytes_of(fs, quarantine),
    )
    return _Plan(reach, found, rewrite, quarantine, summary)


class _Garbage:
    """What becomes garbage in every record, if some rows are left out.

    ``packs``: by pack that an entry names its bytes, and how many of them are garbage. Bytes
    between records count as garbage.
    """

    def __init__(self, context: Context, found: Inventory, leaves: Flags) -> None:
        self._found = found
        self._record_of, count = found.records_by_row, len(found.packs)
        stay = np.bincount(self._record_of, ~leaves, count)
        going = np.bincount(self._record_of, column(found.payloads) * leaves, count)
        going[column(found.groups) > 0] = 0  # its members share one payload
        sizes = np.where(stay > 0, column(found.sizes) - going, 0)
        self._packs = column(found.packs)
        self.packs: dict[int, tuple[int, int]] = {}
        for pack in np.unique(self._packs).tolist():
            used = int(sizes[self._packs == pack].sum())
            size = bytes_of(context.store.fs, [pack_path(context.store.folder / PACKS, pack)])
            self.packs[pack] = size, max(0, size - used - len(PACK_HEADER))

    def holding(self, kept: Flags, moved: set[int], split: set[tuple[int, int]]) -> Flags:
        """By object: whether bytes of it stay, in a record that is neither moved nor taken apart.

        ``kept``: rows to keep; ``moved``: packs; ``split``: records by pack and offset.
        """
        found = self._found
        stays = np.bincount(self._record_of, kept, len(self._packs)) > 0
        stays &= ~np.isin(self._packs, list(moved))
        for record in np.flatnonzero(stays).tolist() if split else ():
            stays[record] = (found.packs[record], found.offsets[record]) not in split
        there = np.zeros(len(found.graph), np.bool_)
        there[found.graph.object[found.graph.sound & stays[self._record_of]]] = True
        return there


def _admit(plan: _Plan, recorded: Recorded, context: Context) -> None:
    """Raises ConcurrentRewrite if an operation published meanwhile needs what the plan deletes."""
    if recorded.entry.forgotten:
        raise ConcurrentRewrite("states were forgotten that were to stay")
    if any(each.kind == "restored" for each in recorded.entry.weights):
        raise ConcurrentRewrite("weights that were to be collected are needed again")
    reach = plan.reach
    reach.commits.update(commit.id for commit in recorded.entry.commits)
    named = names_of(recorded.entry) | {d.commit for d in recorded.entry.deployments}
    for commit in recorded.entry.commits:
        named |= {*commit.parents, *commit.needs}
    if not named <= reach.commits:
        raise ConcurrentRewrite("an operation came to need a version that was to be collected")

    def goes(id_: bytes | None) -> bool:
        return id_ in plan.found.codings and not reach.needs(id_ or b"")

    for commit in recorded.entry.commits:
        manifest = manifests.load(context, commit.manifest)
        if any(map(goes, (*manifests.objects(manifest), commit.manifest))):
            raise ConcurrentRewrite("a commit came to need an object that was to be collected")
    for _, _, header in context.store.snapshot.records(recorded.offset):
        if any(goes(plan.found.base_of(member)) for member in header.members):
            raise ConcurrentRewrite("a commit came to build on an object that was to be collected")


def _size(context: Context) -> int:
    """Bytes of journal and packs, without the index, which is derived."""
    fs, folder = context.store.fs, context.store.folder
    packs = [pack_path(folder / PACKS, number) for number in pack_numbers(fs, folder / PACKS)]
    return bytes_of(fs, [folder / JOURNAL, *packs])


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

    Entries within the grace (from ``cutoff_ns`` on) stay, less what they say of the weights of
    versions that go. Of older ones stay:
    reachable versions, every deployment, retraction and corrected predecessor, what was
    forgotten, each ref's present value, and the moves of branches between versions that are
    still there. If all versions of an entry are there, it keeps all of its moves and can be
    undone. Otherwise only the new values stay, without the old ones, so that no operation can be
    undone in part or twice.
    """
    history = found.history
    lists = _lists_of_removed(found, cutoff_ns)
    edits: dict[int, Entry | None] = {}
    moving: set[int] = set()
    saved = 0
    for entry_index in range(1, len(found.entries)):
        if history.time_of(entry_index) >= cutoff_ns:
            entry = found.entries[entry_index].entry if history.has_marks(entry_index) else None
            if entry is not None and (marks := _there(entry, reach)) != entry.weights:
                edits[entry_index] = made = replace(entry, weights=marks)
                saved += 2 * (len(entry.encoded) - len(made.encoded))
            continue
        if history.is_plain(entry_index, reach.numbers):
            moving.add(history.sequence_of(entry_index))
            continue
        recorded = found.entries[entry_index]
        entry = recorded.entry
        commits = tuple(commit for commit in entry.commits if commit.id in reach.commits)
        refs = tuple(
            change
            for change in entry.refs
            if history.is_newest(change.name, entry_index) or (commits and _still(change, reach))
        )
        whole = (refs or entry.undoes in moving) and names_of(entry) <= reach.commits
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
            weights=_there(entry, reach),
            undoes=entry.undoes if whole else None,
        )
        said = (made.commits, made.refs, made.deployments, made.retractions, made.relinks)
        if not (any(said) or made.forgotten or made.weights or made.removed is not None):
            edits[entry_index] = None
            saved += recorded.after.offset - recorded.offset
        elif made != entry:
            edits[entry_index] = made
            saved += 2 * (len(entry.encoded) - len(made.encoded))
    return edits, saved


def _there(entry: Entry, reach: Reachable) -> tuple[Weights, ...]:
    """What an entry says of the weights of versions that stay."""
    return tuple(each for each in entry.weights if each.commit in reach.commits)


def _lists_of_removed(found: Inventory, cutoff_ns: int) -> set[int]:
    """Entries with the present list of removed paths, and with lists that an undo restores."""
    before: int | None = None
    kept = set()
    for entry_index in found.history.removals:
        if before is not None and found.history.time_of(entry_index) >= cutoff_ns:
            kept.add(before)
        before = entry_index
    return kept if before is None else kept | {before}


def _still(change: RefChange, reach: Reachable) -> bool:
    """Whether a branch's move can stay: both of its versions are reachable."""
    values = [v for v in (change.old, change.new) if isinstance(v, CommitId)]
    return change.name.startswith(BRANCH) and all(value in reach.commits for value in values)


class _KeptCodings:
    """The codings to keep, so that everything in ``reach`` can be recovered.

    ``rows``: of the graph, those that stay. ``add``: codings to make, of ``added_bytes`` as
    estimated. ``phantoms``: unneeded objects that stay. By object: ``needed``, and ``coded``: it
    has a coding whose base is stored.
    """

    def __init__(self, context: Context, found: Inventory, reach: Reachable) -> None:
        self.add: list[EncodeRequest] = []
        self.phantoms: set[bytes] = set()
        self.added_bytes = 0
        self._recovery = context.store.recovery
        self._policy = encoding_policy(context)
        self._found = found
        self._reach = reach
        graph = found.graph
        self.needed = reach.blobs.objects.copy()
        manifests = graph.numbers(b"".join(reach.manifests))
        self.needed[manifests[manifests >= 0]] = True
        self._stays = self.needed | graph.ambiguous
        self.coded = np.zeros(len(graph), np.bool_)
        self.coded[graph.object[graph.sound]] = True
        self.rows = graph.sound & self._stays[graph.object]
        self.rows &= ~graph.delta | self._stays[graph.base]
        self._named = np.zeros(len(graph), np.bool_)  # objects with a coding of their own
        self._named[graph.object[self.rows]] = True
        nodes = graph.reached(self.rows)
        self._reached = Reachability(lambda piece: graph.has(nodes, piece))
        cut_off = self.rows & graph.delta & ~nodes[graph.node] & ~nodes[graph.base_node]
        for row in np.flatnonzero(cut_off).tolist():
            self._lead(found.coding(row))
        # Find a path for every needed object that lost its own, oldest first. An object that is
        # only the base of a kept delta needs a coding as well: a delta names its base by 8 bytes,
        # and only a coding gives the full id.
        astray = graph.sound & self._stays[graph.object]
        astray &= ~nodes[graph.node] | ~self._named[graph.object]
        for number in np.unique(graph.object[astray]).tolist():
            id_ = graph.id_of(number)
            pieces = {(id_, coding.member.start) for coding in found.codings[id_]}
            if not self._named[number] or not self._reached.has_all(pieces):
                self._reconnect(id_, pieces)

    def _take(self, coding: StoredCoding) -> None:
        self.rows[coding.row] = True
        self._named[self._found.graph.object[coding.row]] = True
        self._lead(coding)

    def _lead(self, coding: StoredCoding) -> None:
        member = coding.member
        self._reached.add(member.id, member.start, coding.base, reversible=coding.reversible)

    def _reconnect(self, id_: bytes, pieces: set[Piece]) -> None:
        base, steps = self._way(id_) or (self._neighbour(id_), [])
        size = self._estimate(id_, base)
        if steps and sum(step.stored for step in steps) < size and self._are_fit(id_, steps):
            for step in steps:
                self.phantoms |= {step.member.id, step.base or b""} - {id_, base}
                self._take(step)
            if self._reached.has_all(pieces):
                return
        self.added_bytes += size
        self.add.append(EncodeRequest(id_, base))
        self._named[self._found.graph.number(id_)] = True
        self._reached.reach(pieces)

    def _are_fit(self, id_: bytes, steps: list[StoredCoding]) -> bool:
        """Whether codings can stay as they are: both ends have codings, none is banned."""
        ends = {end for step in steps for end in (step.member.id, step.base) if end is not None}
        made = {step.member.id for step in steps}
        others = map(self._found.graph.number, {*ends, id_} - made)
        shared = any(step.record.header.group for step in steps)
        named = all(number >= 0 and self._named[number] for number in others)
        return not shared and named and not ends & self._reach.banned

    def _neighbour(self, id_: bytes) -> bytes | None:
        """A needed object that has a kept delta from this one."""
        deltas = self._found.codings_from(id_)
        kept = (coding.member.id for coding in deltas if self.rows[coding.row])
        return next(filter(self._is_base, kept), None)

    def _is_base(self, id_: bytes) -> bool:
        return (id_, 0) in self._reached and self._reach.needs(id_)

    def _way(self, id_: bytes) -> tuple[bytes, list[StoredCoding]] | None:
        """The nearest needed object behind unneeded ones, and the codings that lead from it."""
        seen = {id_}
        waiting: deque[tuple[bytes, list[StoredCoding]]] = deque([(id_, [])])
        while waiting:
            at, steps = waiting.popleft()
            for coding in (*self._found.codings.get(at, ()), *self._found.codings_from(at)):
                other = coding.base if coding.member.id == at else coding.member.id
                if other is None or other in seen or self.rows[coding.row]:
                    continue
                seen.add(other)
                if not self._stays[self._found.graph.number(other)]:
                    waiting.append((other, [coding, *steps]))
                elif self._is_base(other):
                    return other, [coding, *steps]
        return None

    def _estimate(self, id_: bytes, base: bytes | None) -> int:
        """Bytes of a delta from ``base``, or of a full record if that is what would be stored.

        A blob's size is estimated from its first piece (at most 32 MiB).
        """
        specs = self._reach.blobs
        if id_ not in specs:
            old = self._recovery.manifest(base) if base is not None else b""
            return len(encode_patch(memoryview(self._recovery.manifest(id_)), memoryview(old)))
        spec, base_spec = specs[id_], specs.get(base or b"")
        piece = None
        if base is not None and base_spec is not None and base_spec.dtype == spec.dtype:
            piece = BasePiece(base, self._piece(base, base_spec))
        new = self._piece(id_, spec)
        choice = choose(spec, new, base_spec if piece else None, piece, self._policy)[0]
        return round(choice.share * spec.nbytes)

    def _piece(self, id_: bytes, spec: TensorSpec) -> memoryview:
        out = memoryview(bytearray(min(PIECE, spec.nbytes)))
        self._recovery.piece(id_, 0, out)
        return out
