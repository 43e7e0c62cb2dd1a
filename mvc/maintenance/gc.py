"""gc: delete what is unreachable and free its space.

The plan is a value; executing it is a separate step. It says what stays (``reachable``,
from the roots of ``VersionHistory.reachable``), which codings that needs (``keep_codings``), which
journal entries can be shortened (``VersionHistory.shortened``), and which packs hold enough garbage
to be rewritten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from mvc.codecs.patch import encode_patch
from mvc.errors import DamagedData, InvalidTime
from mvc.ids import CommitId
from mvc.limits import MIB, PIECE
from mvc.maintenance.history import names_of
from mvc.maintenance.inventory import Inventory, StoredCoding, inventory_and_contents
from mvc.maintenance.quarantine import bytes_of, delete, files_in, purged
from mvc.maintenance.reachable import Reachable, Specs, reachable
from mvc.maintenance.rewrite_plan import (
    EncodeRequest,
    RewritePlan,
    encoding_policy,
    executing,
    retry_on_rewrite,
)
from mvc.maintenance.storage_graph import Flags, Integers, Piece, Reachability, column
from mvc.model.tensor import TensorSpec
from mvc.repo.context import Context
from mvc.repo.lookup.manifest_stream import ManifestStream
from mvc.repo.lookup.manifests import objects
from mvc.repo.queries import drop_rows
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import Recorded
from mvc.store.packs.reader import PACK_HEADER
from mvc.store.packs.records import RecordHeader
from mvc.store.publishing.publish import ConcurrentRewrite
from mvc.store.recovery.recover import Recovery
from mvc.store.store import Store
from mvc.store.writing.full_or_delta import BasePiece, Policy, choose
from mvc.times import parse_duration
from mvc.types import Progress

DEFAULT_GRACE = timedelta(days=14)
_LONGEST_GRACE = timedelta(days=36_500)
_WORTH = 0.05  # share of a pack, or of the journal, that must be garbage for it to be rewritten
_SMALL = 8 * MIB  # bytes of a pack that is joined with others once more than _SCATTERED are smaller
_SCATTERED = 64
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


def grace_of(context: Context, given: timedelta | str | None = None) -> timedelta:
    """How long operations still count for gc. ``given``: ``14d``, ``36h``, ``0``, or a timedelta.

    None takes the setting ``gc.grace_days``. Raises InvalidTime for anything else.
    """
    if given is None:
        return timedelta(days=float(context.config.get("gc.grace_days")))
    if isinstance(given, str):
        seconds = 0.0 if given.strip() == "0" else parse_duration(given)
        given = timedelta(seconds=min(seconds, 2 * _LONGEST_GRACE.total_seconds()))
    if not timedelta(0) <= given <= _LONGEST_GRACE:
        raise InvalidTime("a grace is a span from 0 to 36500 days")
    return given


# -- the plan, and its execution -----------------------------------------------------------


class CollectionPlan(Struct, kw_only=True):
    """``quarantine``: files to delete. ``summary``: what that does. ``traces``: objects that only
    forgotten states have stay in a pack, as steps on the way to others or in a hole.
    """

    found: Inventory
    reach: Reachable
    rewrite: RewritePlan
    quarantine: list[Path]
    summary: Collection
    traces: bool

    def gone(self) -> tuple[CommitId, ...]:
        """Forgotten states of which no byte is left once it is executed; without those known.

        Of states forgotten by rule, objects may stay as steps on the way to others, or in packs
        that are not worth writing anew: while one does, it is not so for any of them.
        """
        forgotten = self.reach.forgotten.items()
        fresh = (id_ for id_, named in forgotten if named or not self.traces)
        return tuple(sorted(id_ for id_ in fresh if id_ not in self.found.history.gone))


def plan_collection(
    context: Context, *, grace: timedelta = DEFAULT_GRACE, progress: Progress | None = None
) -> Collection:
    """What ``collect`` would do now. Raises Busy, and DamagedData if the repository is damaged."""
    store, policy = context.store, encoding_policy(context.config)
    plan = retry_on_rewrite(store.snapshot, lambda: _plan_now(store, policy, grace, progress)[0])
    return plan.summary


def collect(
    context: Context,
    *,
    grace: timedelta = DEFAULT_GRACE,
    reason: str = "",
    progress: Progress | None = None,
) -> Collection:
    """Deletes what is unreachable and not named by an operation within ``grace``.

    Commits and readers may run meanwhile. The caller has completed killed checkouts, whose plans
    may lead to versions that nothing else names. Files of the quarantine go before the journal is
    replaced: what fails then brings none back. Raises ReadOnly, Busy, and DamagedData if something
    that stays is damaged; then nothing is changed.
    """
    store, policy, author = context.store, encoding_policy(context.config), context.author
    store.check_writable("collected")
    before = store.disk_use().total

    def attempt() -> CollectionPlan:
        plan, manifests = _plan_now(store, policy, grace, progress)
        if not plan.rewrite:
            delete(store.fs, plan.quarantine)
            store.sweep()
            return plan
        with executing(store, policy, plan.found, plan.rewrite, progress=progress) as work:
            for recorded in work.meanwhile():
                _admit(plan, recorded, work.headers_of(recorded), manifests)
            # Before the entry: later collections do not look for what was forgotten before it.
            delete(store.fs, plan.quarantine)
            note = f"{len(plan.summary.commits)} versions, {plan.summary.objects} objects"
            now_ns = store.clock.now_ns()
            work.publish(Entry("gc", now_ns, note, author=author, reason=reason))
        return plan

    plan = retry_on_rewrite(store.snapshot, attempt)
    gone = plan.gone()
    if gone and not store.unnamed_packs():
        note = f"of {len(gone)} forgotten states no byte is left"
        store.publish(lambda: Entry("gc", store.clock.now_ns(), note, author=author, gone=gone))
    drop_rows(context, {*plan.summary.commits, *plan.reach.forgotten})
    return replace(plan.summary, before=before, freed=before - store.disk_use().total)


def _admit(
    plan: CollectionPlan,
    recorded: Recorded,
    headers: Iterable[RecordHeader],
    manifests: ManifestStream,
) -> None:
    """Raises ConcurrentRewrite if an operation published meanwhile needs what the plan deletes.

    ``headers``: of its records.
    """
    entry, reach, found = recorded.entry, plan.reach, plan.found
    if entry.forgotten:
        raise ConcurrentRewrite("states were forgotten that were to stay")
    if entry.here_again:
        raise ConcurrentRewrite("states that were to be collected are here again")
    if any(each.kind == "restored" for each in entry.weights):
        raise ConcurrentRewrite("weights that were to be collected are needed again")
    if entry.undoes is not None and not entry.refs:
        raise ConcurrentRewrite("an annotation was undone, or done again")
    reach.commits.update(commit.id for commit in entry.commits)
    named = names_of(entry) | {d.commit for d in entry.deployments}
    named |= entry.told_of
    for commit in entry.commits:
        named |= {*commit.parents, *commit.needs}
    if not named <= reach.commits:
        raise ConcurrentRewrite("an operation came to need a version that was to be collected")

    def goes(id_: bytes) -> bool:
        return id_ in found.codings and not reach.needs(id_)

    for commit in entry.commits:
        if any(map(goes, (*objects(manifests.load(commit.manifest)), commit.manifest))):
            raise ConcurrentRewrite("a commit came to need an object that was to be collected")
    for header in headers:
        if any(goes(id_) for member in header.members for id_ in found.needs_of(member)):
            raise ConcurrentRewrite("a commit came to build on an object that was to be collected")


def _plan_now(
    store: Store, policy: Policy, grace: timedelta, progress: Progress | None
) -> tuple[CollectionPlan, ManifestStream]:
    """The plan, and what reads the manifests of versions that are published meanwhile."""
    found, contents = inventory_and_contents(store, progress)
    refuse_damaged(found)
    reach = reachable(found, contents, cutoff_of(store.now_ns(), grace))
    return plan_deletion(store, policy, found, reach), contents.stream


def refuse_damaged(found: Inventory) -> None:
    """Raises DamagedData if records were left out of an inventory."""
    if found.damaged:
        raise DamagedData(
            f"nothing is collected from a damaged repository: {found.damaged[0].message}",
            hint="run 'mvc fsck --repair' first",
        )


def cutoff_of(now_ns: int, grace: timedelta) -> int:
    """From when on operations count, in ns since 1970."""
    return now_ns - round(grace.total_seconds() * 1e9)


def plan_deletion(
    store: Store, policy: Policy, found: Inventory, reach: Reachable
) -> CollectionPlan:
    """How to delete what is not in ``reach``."""
    fs, folder, disk = store.fs, store.folder, store.disk_use()
    kept = keep_codings(found, reach, _Estimate(store.recovery, policy, reach.blobs))
    leaves = _leaving(found, kept)
    packs = _pack_uses(found, leaves, {n: disk.packs.get(n, 0) for n in set(found.packs)})
    moved = _packs_to_move(found, reach, leaves, packs)
    split = _records_to_split(found, reach, kept, moved)
    ids = list(found.history.numbers)
    gone = tuple(ids[n] for n in found.history.published if ids[n] not in reach.commits)
    edits, shorter = found.history.shortened(found.entries, reach.commits, reach.cutoff_ns)
    worth_it = gone or shorter >= max(_BLOCK, _WORTH * disk.journal)
    saved = shorter if worth_it else 0
    rewrite = RewritePlan()
    if moved or split or saved or kept.add:
        rewrite = RewritePlan(
            leave=set(found.places(np.flatnonzero(leaves).tolist())),
            add=kept.add,
            packs=moved,
            edits=edits if saved else {},
            specs=reach.blobs,
            records=split,
        )
    quarantine = purged(fs, folder, reach)
    summary = Collection(
        commits=gone,
        forgotten=len(reach.commits) - len(reach.states),
        objects=_count_deleted(found, kept, moved, split) if rewrite else 0,
        phantoms=len(kept.phantoms),
        recoded=len(kept.add),
        operations=sum(made is None for made in rewrite.edits.values()),
        packs=len(moved),
        before=disk.total,
        freed=max(0, saved + sum(packs[n].garbage for n in moved) - kept.added_bytes),
        quarantined=bytes_of(fs, set(files_in(fs, folder)) - set(quarantine)),
        unquarantined=bytes_of(fs, quarantine),
    )
    forgotten = (coding for id_ in reach.only_forgotten for coding in found.codings.get(id_, ()))
    traces = bool(kept.phantoms) or any(coding.record.pack not in moved for coding in forgotten)
    return CollectionPlan(
        found=found,
        reach=reach,
        rewrite=rewrite,
        quarantine=quarantine,
        summary=summary,
        traces=traces,
    )


def _leaving(found: Inventory, kept: KeptCodings) -> Flags:
    """The rows to drop.

    Deltas whose base is lost cannot be decoded, and the ids of their bases may belong to
    forgotten states: they go if the object has another coding, or no use.
    """
    graph = found.graph
    useless = ~graph.sound & (kept.coded | ~kept.needed)[graph.object]
    return (graph.sound & ~kept.rows) | useless


class _PackUse(Struct, frozen=True):
    """Bytes of a pack, and how many of them would be garbage."""

    size: int
    garbage: int


def _pack_uses(found: Inventory, leaves: Flags, sizes: Mapping[int, int]) -> dict[int, _PackUse]:
    """By pack, of those in ``sizes``, what becomes garbage if rows are left out.

    Bytes between records count as garbage.
    """
    record_of, count = found.records_by_row, len(found.packs)
    stays = np.bincount(record_of, ~leaves, count)
    going = np.bincount(record_of, column(found.payloads) * leaves, count)
    going[column(found.groups) > 0] = 0  # its members share one payload
    used = np.where(stays > 0, column(found.sizes) - going, 0)
    pack_of = column(found.packs)
    return {
        pack: _PackUse(size, max(0, size - int(used[pack_of == pack].sum()) - len(PACK_HEADER)))
        for pack, size in sizes.items()
    }


def _packs_to_move(
    found: Inventory, reach: Reachable, leaves: Flags, packs: Mapping[int, _PackUse]
) -> set[int]:
    """Packs of which much is garbage, and any that has what must leave no trace, or weights to
    give up. Also small ones, where there are many.
    """
    moved = {n for n, use in packs.items() if use.garbage >= _WORTH * use.size}
    small = {n for n, use in packs.items() if use.size < _SMALL}
    moved |= small if len(small) > _SCATTERED else set()
    if reach.purge:
        moved |= {n for n, use in packs.items() if use.garbage}
    moved |= {c.record.pack for id_ in reach.banned for c in found.codings.get(id_, ())}
    given_up = (coding for id_ in reach.dropped for coding in found.codings.get(id_, ()))
    return moved | {coding.record.pack for coding in given_up if leaves[coding.row]}


def _records_to_split(
    found: Inventory, reach: Reachable, kept: KeptCodings, moved: set[int]
) -> set[tuple[int, int]]:
    """Records in packs that stay, which name an object of a forgotten state that is no base."""
    return {
        coding.place[:2]
        for id_ in reach.only_forgotten - kept.phantoms
        for coding in found.codings.get(id_, ())
        if coding.record.pack not in moved
    }


def _count_deleted(
    found: Inventory, kept: KeptCodings, moved: set[int], split: set[tuple[int, int]]
) -> int:
    """Unneeded objects of which no bytes stay, in a record that is neither moved nor split."""
    graph, packs, record_of = found.graph, column(found.packs), found.records_by_row
    stays = np.bincount(record_of, kept.rows, len(packs)) > 0
    stays &= ~np.isin(packs, list(moved))
    for record in np.flatnonzero(stays).tolist() if split else ():
        stays[record] = (found.packs[record], found.offsets[record]) not in split
    deleted = kept.coded & ~kept.needed
    deleted[graph.object[graph.sound & stays[record_of]]] = False
    deleted[[graph.number(id_) for id_ in kept.phantoms]] = False
    return int(deleted.sum())


# -- which codings stay --------------------------------------------------------------------


class KeptCodings(Struct):
    """``rows``: of the graph, those that stay. By object: ``needed``, and ``coded``: it has a
    coding whose base is stored.

    ``add``: codings to make, of ``added_bytes`` as estimated. ``phantoms``: unneeded objects that
    stay.
    """

    rows: Flags
    needed: Flags
    coded: Flags
    add: list[EncodeRequest]
    added_bytes: int
    phantoms: set[bytes]


def keep_codings(found: Inventory, reach: Reachable, estimate: _Estimate) -> KeptCodings:
    """The codings to keep and to make, so that everything in ``reach`` can be recovered.

    If the path to a needed object leads through unneeded ones, there are three choices: encode
    it against the next needed object (the deltas between become one), store it in full, or
    keep the unneeded objects as *phantoms*, which belong to no version. The cheapest is taken, for
    objects that are predicted from each other together.
    An object of a state forgotten by name is never kept as a phantom.
    """
    graph = found.graph
    needed = reach.blobs.objects.copy()
    manifests = graph.numbers(b"".join(reach.manifests))
    needed[manifests[manifests >= 0]] = True
    coded = np.zeros(len(graph), np.bool_)
    coded[graph.object[graph.sound]] = True
    stays = needed | graph.ambiguous
    rows = graph.with_all(graph.sound & stays[graph.object], stays)
    kept = KeptCodings(rows, needed, coded, add=[], added_bytes=0, phantoms=set())
    work = _Reconnecting(found, reach, kept, stays)
    for lost in work.cut_off():
        work.reconnect(lost, [estimate.stored(each.id, each.base) for each in lost])
    return kept


class _CutOff(Struct, frozen=True):
    """An object that lost its way. ``base``: what a new coding of it would start from.

    ``steps``: the codings behind it, which lead from ``base``; empty if there is no such way.
    """

    id: bytes
    pieces: set[Piece]
    base: bytes | None
    steps: list[StoredCoding]


class _Reconnecting:
    """Finds ways to needed objects that lost their own, and notes them in ``kept``.

    ``named``: by object whether a coding of it is kept. One that is only the base of a kept delta
    needs a coding as well: a delta names its base by 8 bytes, and only a coding gives the full id.
    """

    def __init__(self, found: Inventory, reach: Reachable, kept: KeptCodings, stays: Flags) -> None:
        graph = found.graph
        self._found = found
        self._reach = reach
        self._kept = kept
        self._stays = stays
        self._named = np.zeros(len(graph), np.bool_)
        self._named[graph.object[kept.rows]] = True
        self._nodes = graph.reached(kept.rows)
        self._reached = Reachability(lambda piece: graph.has(self._nodes, piece))

    def cut_off(self) -> Iterator[list[_CutOff]]:
        """Objects that stay without a way or a coding of their own, oldest first.

        Those that are predicted from each other come together. Reconnect each before the next is
        asked for: what led to it may lead to others as well.
        """
        graph, kept, nodes = self._found.graph, self._kept, self._nodes
        for row in np.flatnonzero(kept.rows & graph.delta & ~nodes[graph.node]).tolist():
            self._follow(self._found.coding(row))
        lost = graph.sound & self._stays[graph.object]
        lost &= ~nodes[graph.node] | ~self._named[graph.object]
        numbers = np.unique(graph.object[lost])
        mates = self._mates(numbers)
        for number in numbers.tolist():
            if not self._is_there(number):
                together = dict.fromkeys([number])
                waiting = [number]
                while waiting:
                    fresh = [each for each in mates.get(waiting.pop(), ()) if each not in together]
                    fresh = [each for each in fresh if not self._is_there(each)]
                    together |= dict.fromkeys(fresh)
                    waiting += fresh
                yield [self._cut_off(graph.id_of(each)) for each in sorted(together)]

    def _mates(self, numbers: Integers) -> dict[int, set[int]]:
        """Of these objects those that one is predicted from, or that are predicted from it, by
        codings that are not kept.
        """
        graph = self._found.graph
        lost = np.zeros(len(graph), np.bool_)
        lost[numbers] = True
        rows = graph.sound & ~self._kept.rows & lost[graph.object]
        chosen = rows[graph.input_row] & lost[graph.input_object]
        found: dict[int, set[int]] = {}
        pairs = graph.object[graph.input_row[chosen]].tolist(), graph.input_object[chosen].tolist()
        for one, other in zip(*pairs, strict=True):
            found.setdefault(one, set()).add(other)
            found.setdefault(other, set()).add(one)
        return found

    def _is_there(self, number: int) -> bool:
        return bool(self._named[number]) and self._reached.has_all(self._pieces(number))

    def _pieces(self, number: int) -> set[Piece]:
        id_ = self._found.graph.id_of(number)
        return {(id_, coding.member.start) for coding in self._found.codings[id_]}

    def _cut_off(self, id_: bytes) -> _CutOff:
        base, steps = self._way(id_) or (self._neighbour(id_), [])
        return _CutOff(id_, self._pieces(self._found.graph.number(id_)), base, steps)

    def reconnect(self, lost: Sequence[_CutOff], sizes: Sequence[int]) -> None:
        """Keeps the codings behind objects if they take less than ``sizes``, which new ones would
        take; else adds those. Of several it is decided one by one then.
        """
        kept, graph = self._kept, self._found.graph
        steps = self._behind(lost)
        if steps and sum(step.stored for step in steps) < sum(sizes):
            for step in steps:
                ends = {step.member.id, *step.needs}
                kept.phantoms |= {end for end in ends if not self._stays[graph.number(end)]}
                kept.rows[step.row] = True
                self._named[graph.object[step.row]] = True
                self._follow(step)
        for each, size in zip(lost, sizes, strict=True):
            if self._is_there(graph.number(each.id)):
                continue
            if len(lost) > 1:
                self.reconnect([each], [size])
                continue
            kept.added_bytes += size
            kept.add.append(EncodeRequest(each.id, each.base))
            self._named[graph.number(each.id)] = True
            self._reached.reach(each.pieces)

    def _follow(self, coding: StoredCoding) -> None:
        self._reached.add(
            coding.member.id,
            coding.member.start,
            coding.base,
            reversible=coding.reversible,
            inputs=coding.inputs,
        )

    def _behind(self, lost: Sequence[_CutOff]) -> list[StoredCoding]:
        """The codings behind objects and behind the inputs of these; none if they cannot stay."""
        found: dict[int, StoredCoding] = {}
        made: set[bytes] = set()
        waiting = [step for each in lost for step in each.steps]
        if not all(each.steps for each in lost):
            return []
        while waiting:
            found |= {step.row: step for step in waiting}
            made |= {step.member.id for step in waiting}
            needed = {id_ for step in waiting for id_ in step.inputs} - made
            waiting = []
            for id_ in needed:
                if self._is_there(self._found.graph.number(id_)):
                    continue
                way = self._way(id_)
                if way is None:
                    return []
                waiting += way[1]
        steps = list(found.values())
        return steps if self._are_fit({each.id for each in lost}, steps) else []

    def _are_fit(self, ids: set[bytes], steps: list[StoredCoding]) -> bool:
        """Whether codings can stay as they are: all they name has codings, none is banned."""
        ends = {end for step in steps for end in (step.member.id, *step.needs)}
        made = {step.member.id for step in steps}
        others = map(self._found.graph.number, (ends | ids) - made)
        shared = any(step.record.header.group for step in steps)
        named = all(number >= 0 and self._named[number] for number in others)
        return not shared and named and not ends & self._reach.banned

    def _neighbour(self, id_: bytes) -> bytes | None:
        """A needed object that has a kept delta from this one."""
        deltas = self._found.codings_from(id_)
        kept = (coding.member.id for coding in deltas if self._kept.rows[coding.row])
        return next(filter(self._is_base, kept), None)

    def _is_base(self, id_: bytes) -> bool:
        return (id_, 0) in self._reached and self._reach.needs(id_)

    def _way(self, id_: bytes) -> tuple[bytes, list[StoredCoding]] | None:
        """The nearest needed object behind unneeded ones, and the codings that lead from it."""
        found, seen = self._found, {id_}
        waiting: deque[tuple[bytes, list[StoredCoding]]] = deque([(id_, [])])
        while waiting:
            at, steps = waiting.popleft()
            by_other: dict[bytes, dict[int, StoredCoding]] = {}  # one of each piece
            for coding in (*found.codings.get(at, ()), *found.codings_from(at)):
                other = coding.base if coding.member.id == at else coding.member.id
                if other is not None and other not in seen and not self._kept.rows[coding.row]:
                    by_other.setdefault(other, {}).setdefault(coding.member.start, coding)
            for other, codings in by_other.items():
                seen.add(other)
                if not self._stays[found.graph.number(other)]:
                    waiting.append((other, [*codings.values(), *steps]))
                elif self._is_base(other):
                    return other, [*codings.values(), *steps]
        return None


class _Estimate(Struct):
    """Estimates what new codings take. ``specs``: of the blobs that stay."""

    recovery: Recovery
    policy: Policy
    specs: Specs

    def stored(self, id_: bytes, base: bytes | None) -> int:
        """Bytes of a delta from ``base``, or of a full record if that is what would be stored.

        A blob's size is estimated from its first piece (at most 32 MiB).
        """
        if id_ not in self.specs:
            old = self.recovery.manifest(base) if base is not None else b""
            return len(encode_patch(memoryview(self.recovery.manifest(id_)), memoryview(old)))
        spec, base_spec = self.specs[id_], self.specs.get(base or b"")
        piece = None
        if base is not None and base_spec is not None and base_spec.dtype == spec.dtype:
            piece = BasePiece(base, self._piece(base, base_spec))
        new = self._piece(id_, spec)
        base_spec = base_spec if piece else None
        choice = choose(spec, new, base_spec, piece, policy=self.policy)[0]
        return round(choice.share * spec.nbytes)

    def _piece(self, id_: bytes, spec: TensorSpec) -> memoryview:
        out = memoryview(bytearray(min(PIECE, spec.nbytes)))
        self.recovery.piece(id_, 0, out)
        return out
