"""What a collection keeps and deletes: a plan over the graph, which reads nothing else.

Roots are refs, HEAD, every deployment (retracted ones too: they are evidence), and every
commit that an operation within the grace made or moved a ref from or to. A root stays with
all its ancestors, and with the versions that these need. The state of a version that stays is kept
unless it was forgotten; of one that gave up its weights all but these.

The plan says which codings that needs (``keep_codings``), which journal entries can be shortened
(``VersionHistory.shortened``), and which packs hold enough garbage to be rewritten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress

import numpy as np
from msgspec import Struct, field

from mvc.errors import DamagedData
from mvc.ids import CommitId, ManifestId
from mvc.limits import MIB
from mvc.maintenance.graph import (
    Flags,
    Integers,
    Piece,
    Reachability,
    StorageGraph,
    StoredCoding,
    column,
)
from mvc.maintenance.history import names_of
from mvc.maintenance.rewrite_plan import EncodeRequest, RewritePlan
from mvc.model.tensor import TensorSpec
from mvc.repo.lookup import manifests
from mvc.store.journal.frames import Recorded
from mvc.store.packs.reader import PACK_HEADER
from mvc.store.packs.records import RecordHeader
from mvc.store.store import DiskUse

_WORTH = 0.05  # share of a pack, or of the journal, that must be garbage for it to be rewritten
_SMALL = 8 * MIB  # bytes of a pack that is joined with others once more than _SCATTERED are smaller
_SCATTERED = 64
_BLOCK = 4096  # a journal is not rewritten to save fewer bytes


Estimate = Callable[[bytes, bytes | None], int]
"""The bytes of a delta of an object from a base, or of a full record if that is stored then."""


class Collection(Struct, frozen=True):
    """What a collection deletes, or would delete. Sizes are bytes on disk.

    ``commits`` are unreachable versions, ``objects`` tensors and manifests that no version
    needs, ``operations`` the journal entries to drop. ``phantoms`` are unneeded objects that
    stay because deltas start from them; ``recoded`` are objects that get a new coding
    instead. ``freed`` is an estimate in a plan and measured in a result. ``quarantined``
    bytes of the quarantine stay; ``unquarantined`` ones are deleted, because they may belong
    to states forgotten by name. ``grace_seconds``: how long operations still count.
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
    grace_seconds: float = 0.0


class CollectionPlan(Struct, kw_only=True):
    """``summary``: what it does. ``traces``: bytes of forgotten states remain in a pack, as bases
    or in unreferenced ranges.
    """

    reach: Reachable
    rewrite: RewritePlan
    summary: Collection
    traces: bool

    def gone(self) -> tuple[CommitId, ...]:
        """Forgotten states of which no byte is left once it is executed; without those known.

        Bytes of states forgotten by rule may remain in packs, as bases of other contents or in
        packs that are not worth a rewrite. While some do, no such state is returned.
        """
        forgotten = self.reach.forgotten.items()
        fresh = (id_ for id_, named in forgotten if named or not self.traces)
        return tuple(sorted(id_ for id_ in fresh if id_ not in self.rewrite.graph.history.gone))

    def allows(self, recorded: Recorded, headers: Iterable[RecordHeader]) -> bool:
        """Whether an operation published meanwhile needs nothing that the plan deletes.

        ``headers``: of its records. Call it for each such operation, in order.
        """
        entry, reach, found = recorded.entry, self.reach, self.rewrite.graph
        if entry.forgets or any(mark.what == "stored" for mark in entry.states):
            return False
        reach.commits.update(commit.id for commit in entry.commits)
        named = names_of(entry) | entry.about
        for commit in entry.commits:
            named |= {*commit.parents, *commit.needs}
        if not named <= reach.commits:
            return False
        needed = {id_ for header in headers for m in header.members for id_ in found.needs_of(m)}
        for commit in entry.commits:
            needed |= {*found.contents.objects(commit.manifest), commit.manifest}
        return all(reach.needs(id_) or not found.rows_of(id_) for id_ in needed)


# -- what is reachable ---------------------------------------------------------------------


class Specs(Mapping[bytes, TensorSpec]):
    """The spec of every blob that a state which stays has; by object, as the graph numbers them.

    Of blobs that are not stored (``lost``) by id.
    """

    def __init__(
        self,
        graph: StorageGraph,
        states: set[ManifestId],
        given_up: Mapping[ManifestId, Iterable[int]],
    ) -> None:
        """``states``: manifests of the graph. ``given_up``: by manifest the positions among its
        objects that do not count.
        """
        self._graph, contents = graph, graph.contents
        self._specs = contents.known_specs
        self._by_object = np.full(len(graph), -1, np.int32)
        self.lost: dict[bytes, TensorSpec] = {}
        stays = np.zeros(len(contents.raw), np.bool_)
        stays[[contents.manifests[id_] for id_ in states]] = True
        counts = np.diff(column(contents.ends))
        used = np.zeros(len(contents.specs), np.bool_)
        mentions = np.repeat(stays, counts)
        for id_, positions in given_up.items():
            begin = contents.ends[contents.manifests[id_]]
            mentions[[begin + position for position in positions]] = False
        used[column(contents.slots)[mentions]] = True
        slots = np.flatnonzero(used)
        objects, specs = graph.numbers(contents.ids)[slots], column(contents.specs)[slots]
        stored = objects >= 0
        self._by_object[objects[stored]] = specs[stored]
        for slot in slots[~stored].tolist():
            self.lost[contents.id_of(slot)] = self._specs[contents.specs[slot]]

    @property
    def objects(self) -> Flags:
        """By object: whether it is one of these."""
        return self._by_object >= 0

    def __getitem__(self, id_: bytes) -> TensorSpec:
        number = self._graph.number(id_)
        spec = -1 if number < 0 else int(self._by_object[number])
        return self.lost[id_] if spec < 0 else self._specs[spec]

    def __iter__(self) -> Iterator[bytes]:
        yield from map(self._graph.id_of, np.flatnonzero(self.objects).tolist())
        yield from self.lost

    def __len__(self) -> int:
        return int(self.objects.sum()) + len(self.lost)


class Reachable(Struct, kw_only=True):
    """``commits`` stay; ``states`` are those of them whose state stays as well. ``forgotten``:
    whose state does not, by name (True) or by rule.

    ``blobs`` and ``manifests`` are the objects of these states. ``only_forgotten`` are objects
    that only forgotten states have, ``banned`` those of states forgotten by name: no copy of them
    may stay, not even as a base. ``dropped`` are weights that were given up, for which no state
    that stays has a use. ``purge``: a state was forgotten by name since the last
    collection, so bytes that no entry names must be deleted as well. Operations from
    ``cutoff_ns`` on count.
    """

    cutoff_ns: int
    commits: set[CommitId]
    states: set[CommitId]
    forgotten: Mapping[CommitId, bool]
    purge: bool
    manifests: set[ManifestId]
    blobs: Specs
    only_forgotten: set[bytes] = field(default_factory=set)
    banned: set[bytes] = field(default_factory=set)
    dropped: set[bytes] = field(default_factory=set)

    def needs(self, id_: bytes) -> bool:
        """Whether a state that stays has this object."""
        return id_ in self.blobs or id_ in self.manifests


def reachable(
    found: StorageGraph,
    cutoff_ns: int,
    *,
    forget: Mapping[CommitId, bool] | None = None,
    in_use: Set[CommitId] = frozenset(),
) -> Reachable:
    """What is reachable if operations before ``cutoff_ns`` no longer count as roots.

    ``forget``: further states to treat as forgotten (by name: True); ``in_use``: forgotten ones
    that stay, because something stands on them.
    """
    history, contents = found.history, found.contents
    forgotten = {id_: n for id_, n in history.forgotten.items() if id_ not in in_use}
    fresh = history.fresh - in_use
    for commit_id, named in (forget or {}).items():
        forgotten[commit_id] = forgotten.get(commit_id, False) or named
        fresh.update({commit_id} if named else ())
    numbers = history.reachable(cutoff_ns)
    commits = {id_ for id_, number in history.numbers.items() if number in numbers}
    states = commits - forgotten.keys()
    needed = {each for id_ in states if (each := history.manifest(id_)) is not None}
    # Most were read with their entries; the others oldest first, each near its base.
    for id_ in sorted(needed - contents.manifests.keys(), key=found.number):
        contents.require(id_, [coding.step for coding in found.codings(id_)])
    positions, dropped = dict[ManifestId, list[int]](), set[bytes]()
    for id_, paths in history.given_up(states).items():
        manifest = contents.stream.load(id_)
        positions[id_] = manifests.positions(manifest, paths)
        dropped.update(c.id for e in manifest.all_entries if e.path in paths for c in e.contents)
    blobs = Specs(found, needed, positions)
    reach = Reachable(
        cutoff_ns=cutoff_ns,
        commits=commits,
        states=states,
        forgotten=forgotten,
        purge=bool(fresh),
        manifests=needed,
        blobs=blobs,
    )
    reach.dropped = {id_ for id_ in dropped if not reach.needs(id_)}
    for commit_id, named in forgotten.items():
        objects = _objects_of(found, commit_id)
        if named and not objects and commit_id in fresh:
            # Its manifest is gone (it was forgotten by rule first, and collected) or damaged:
            # its objects may be among those that no version needs.
            objects = set(map(found.id_of, np.flatnonzero(found.coded).tolist()))
        alone = {each for each in objects if not reach.needs(each)}
        reach.only_forgotten |= alone
        reach.banned |= alone if named else set()
    return reach


def _objects_of(found: StorageGraph, commit: CommitId) -> set[bytes]:
    """A version's blobs and its manifest; none if the manifest is not stored or damaged."""
    id_ = found.history.manifest(commit)
    if id_ is not None and found.rows_of(id_):
        with suppress(DamagedData):
            return {*found.contents.objects(id_), id_}
    return set()


# -- what goes ----------------------------------------------------------------------------


def collect(
    found: StorageGraph, reach: Reachable, disk: DiskUse, estimate: Estimate
) -> CollectionPlan:
    """How to delete what is not in ``reach``; ``estimate``: of the bytes that a new coding takes.

    The summary's bytes of the quarantine are 0: it is no part of the graph.
    """
    kept = keep_codings(found, reach, estimate)
    leaves = _leaving(found, kept)
    packs = _pack_uses(found, leaves, {n: s for n, s in disk.packs.items() if n in found.named})
    moved = _packs_to_move(found, reach, leaves, packs)
    split = {  # records in packs that stay, with an object of a forgotten state that is no base
        coding.place[:2]
        for id_ in reach.only_forgotten - kept.phantoms
        for coding in found.codings(id_)
        if coding.record.pack not in moved
    }
    ids = list(found.history.numbers)
    gone = tuple(ids[n] for n in found.history.published if ids[n] not in reach.commits)
    edits, shorter = found.history.shortened(found.entries, reach.commits, reach.cutoff_ns)
    saved = shorter if gone or shorter >= max(_BLOCK, _WORTH * disk.journal) else 0
    rewrite = RewritePlan(found)
    if moved or split or saved or kept.add:
        rewrite = RewritePlan(
            found,
            leave=set(found.places(np.flatnonzero(leaves).tolist())),
            add=kept.add,
            packs=moved,
            edits=edits if saved else {},
            specs=reach.blobs,
            records=split,
        )
    summary = Collection(
        commits=gone,
        forgotten=len(reach.commits) - len(reach.states),
        objects=_count_deleted(found, kept, moved, split) if rewrite else 0,
        phantoms=len(kept.phantoms),
        recoded=len(kept.add),
        operations=sum(made is None for made in rewrite.edits.values()),
        packs=len(moved),
        before=disk.total,
        freed=max(
            0, saved + sum(packs[n].garbage for n in moved & packs.keys()) - kept.added_bytes
        ),
        quarantined=0,
        unquarantined=0,
    )
    forgotten = (coding for id_ in reach.only_forgotten for coding in found.codings(id_))
    traces = bool(kept.phantoms) or any(coding.record.pack not in moved for coding in forgotten)
    return CollectionPlan(
        reach=reach,
        rewrite=rewrite,
        summary=summary,
        traces=traces,
    )


def _leaving(found: StorageGraph, kept: KeptCodings) -> Flags:
    """The rows to drop.

    Deltas whose base is lost cannot be decoded, and the ids of their bases may belong to
    forgotten states: they go if the object has another coding, or no use.
    """
    useless = ~found.sound & (found.coded | ~kept.needed)[found.object]
    return (found.sound & ~kept.rows) | useless


class _PackUse(Struct, frozen=True):
    """Bytes of a pack, and how many of them would be garbage."""

    size: int
    garbage: int


def _pack_uses(found: StorageGraph, leaves: Flags, sizes: Mapping[int, int]) -> dict[int, _PackUse]:
    """By pack, of those in ``sizes``, what becomes garbage if rows are left out.

    Bytes between records count as garbage.
    """
    record_of, count = found.records_by_row, len(found.packs)
    stays = np.bincount(record_of, ~leaves, count)
    going = np.bincount(record_of, column(found.payloads) * leaves, count)
    going[column(found.groups) > 0] = 0  # its members share one payload
    used = np.where(stays > 0, column(found.lengths) - going, 0)
    pack_of = column(found.packs)
    return {
        pack: _PackUse(size, max(0, size - int(used[pack_of == pack].sum()) - len(PACK_HEADER)))
        for pack, size in sizes.items()
    }


def _packs_to_move(
    found: StorageGraph, reach: Reachable, leaves: Flags, packs: Mapping[int, _PackUse]
) -> set[int]:
    """Packs of which much is garbage, and any that has what must leave no trace, or weights to
    give up. Also small ones, where there are many.
    """
    moved = {n for n, use in packs.items() if use.garbage >= _WORTH * use.size}
    small = {n for n, use in packs.items() if use.size < _SMALL}
    moved |= small if len(small) > _SCATTERED else set()
    if reach.purge:
        moved |= {n for n, use in packs.items() if use.garbage}
    moved |= {c.record.pack for id_ in reach.banned for c in found.codings(id_)}
    given_up = (coding for id_ in reach.dropped for coding in found.codings(id_))
    return moved | {coding.record.pack for coding in given_up if leaves[coding.row]}


def _count_deleted(
    found: StorageGraph, kept: KeptCodings, moved: set[int], split: set[tuple[int, int]]
) -> int:
    """Unneeded objects of which no bytes stay, in a record that is neither moved nor split."""
    packs, record_of = column(found.packs), found.records_by_row
    stays = np.bincount(record_of, kept.rows, len(packs)) > 0
    stays &= ~np.isin(packs, list(moved))
    for record in np.flatnonzero(stays).tolist() if split else ():
        stays[record] = (found.packs[record], found.offsets[record]) not in split
    deleted = found.coded & ~kept.needed
    deleted[found.object[found.sound & stays[record_of]]] = False
    deleted[[found.number(id_) for id_ in kept.phantoms]] = False
    return int(deleted.sum())


# -- which codings stay --------------------------------------------------------------------


class KeptCodings(Struct):
    """``rows``: of the graph, those that stay. ``needed``: objects.

    ``add``: codings to make, of ``added_bytes`` as estimated. ``phantoms``: unneeded objects that
    stay.
    """

    rows: Flags
    needed: Flags
    add: list[EncodeRequest]
    added_bytes: int
    phantoms: set[bytes]


def keep_codings(found: StorageGraph, reach: Reachable, estimate: Estimate) -> KeptCodings:
    """The codings to keep and to make, so that everything in ``reach`` can be recovered.

    If the path to a needed object leads through unneeded ones, there are three choices: encode
    it against the next needed object (the deltas between become one), store it in full, or
    keep the unneeded objects as *phantoms*, which belong to no version. The cheapest is taken, for
    objects that are predicted from each other together.
    An object of a state forgotten by name is never kept as a phantom.
    """
    needed = reach.blobs.objects.copy()
    manifests = found.numbers(b"".join(reach.manifests))
    needed[manifests[manifests >= 0]] = True
    stays = needed | found.shares_prefix
    rows = found.with_all(found.sound & stays[found.object], stays)
    kept = KeptCodings(rows, needed, add=[], added_bytes=0, phantoms=set())
    work = _Reconnecting(found, reach, kept, stays)
    for lost in work.cut_off():
        work.reconnect(lost, [estimate(each.id, each.base) for each in lost])
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

    def __init__(
        self, graph: StorageGraph, reach: Reachable, kept: KeptCodings, stays: Flags
    ) -> None:
        self._graph = graph
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
        graph, kept, nodes = self._graph, self._kept, self._nodes
        for row in np.flatnonzero(kept.rows & graph.delta & ~nodes[graph.node]).tolist():
            self._follow(self._graph.coding(row))
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
        graph = self._graph
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
        id_ = self._graph.id_of(number)
        return {(id_, coding.member.start) for coding in self._graph.codings(id_)}

    def _cut_off(self, id_: bytes) -> _CutOff:
        base, steps = self._way(id_) or (self._neighbour(id_), [])
        return _CutOff(id_, self._pieces(self._graph.number(id_)), base, steps)

    def reconnect(self, lost: Sequence[_CutOff], sizes: Sequence[int]) -> None:
        """Keeps the codings behind objects if they take less than ``sizes``, which new ones would
        take; else adds those. Of several it is decided one by one then.
        """
        kept, graph = self._kept, self._graph
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
                if self._is_there(self._graph.number(id_)):
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
        others = map(self._graph.number, (ends | ids) - made)
        shared = any(step.record.header.group for step in steps)
        named = all(number >= 0 and self._named[number] for number in others)
        return not shared and named and not ends & self._reach.banned

    def _neighbour(self, id_: bytes) -> bytes | None:
        """A needed object that has a kept delta from this one."""
        deltas = self._graph.codings_from(id_)
        kept = (coding.member.id for coding in deltas if self._kept.rows[coding.row])
        return next(filter(self._is_base, kept), None)

    def _is_base(self, id_: bytes) -> bool:
        return (id_, 0) in self._reached and self._reach.needs(id_)

    def _way(self, id_: bytes) -> tuple[bytes, list[StoredCoding]] | None:
        """The nearest needed object behind unneeded ones, and the codings that lead from it."""
        found, seen = self._graph, {id_}
        waiting: deque[tuple[bytes, list[StoredCoding]]] = deque([(id_, [])])
        while waiting:
            at, steps = waiting.popleft()
            by_other: dict[bytes, dict[int, StoredCoding]] = {}  # one of each piece
            for coding in (*found.codings(at), *found.codings_from(at)):
                other = coding.base if coding.member.id == at else coding.member.id
                if other is not None and other not in seen and not self._kept.rows[coding.row]:
                    by_other.setdefault(other, {}).setdefault(coding.member.start, coding)
            for other, codings in by_other.items():
                seen.add(other)
                if not self._stays[found.number(other)]:
                    waiting.append((other, [*codings.values(), *steps]))
                elif self._is_base(other):
                    return other, [*codings.values(), *steps]
        return None
