"""Plans a garbage collection (``mvc gc``): which stored data stay, and which are deleted.

A *coding* stores an object (a tensor or a manifest, the list of a version's files), either in full
or as a delta from another object. ``StorageGraph`` lists all codings and is the input of the plan.
A *root* is a version that stays in any case. Roots are the versions that refs, HEAD and deployments
(even retracted deployments) name. A version is a root, too, if an operation within the grace period
created the version, or moved a ref from or to the version.

The ancestors of a root stay. If a version stays, the versions that are needed to reproduce this
version stay, too. The state of a version that stays is retained, except forgotten states and
dropped weights.

The plan lists the codings to retain (``keep_codings``), the journal entries that can be shortened
(``VersionHistory.shortened``), and the packs with enough garbage to be rewritten.
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

_WORTH = 0.05  # a pack or the journal is rewritten if this share of its bytes is garbage
_SMALL = 8 * MIB  # smaller packs are joined if there are more than _SCATTERED such packs
_SCATTERED = 64
_BLOCK = 4096  # bytes; the journal is not rewritten to save fewer bytes


Estimate = Callable[[bytes, bytes | None], int]
"""Estimates the size in bytes of a new coding of an object, in full or as a delta from a base.

Arguments: the ids of the object and of the base; None if there is no base.
"""


class Collection(Struct, frozen=True):
    """What a collection deletes, or would delete. Sizes are in bytes on disk.

    ``commits``: unreachable versions. ``objects``: how many tensors and manifests no version needs.
    ``operations``: how many journal entries are deleted. ``phantoms``: how many unneeded objects
    stay because deltas need these objects as bases. ``recoded``: how many objects are encoded again
    so that an unneeded base can be deleted. ``freed``: the estimated number of bytes that a plan
    frees, or the number of bytes that a collection freed. ``unquarantined``: bytes that are deleted
    from the quarantine (a folder of damaged data), because these bytes may belong to states
    forgotten by name. ``quarantined``: bytes that stay in the quarantine.
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
    """A plan to delete all that is not in ``reach``.

    ``residue``: whether packs still contain bytes of forgotten states after the collection.
    """

    reach: Reachable
    rewrite: RewritePlan
    summary: Collection
    residue: bool

    def fully_deleted(self) -> tuple[CommitId, ...]:
        """The forgotten versions whose states this plan deletes to the last byte.

        Leaves out versions for which an earlier collection recorded that no byte is left. If
        ``residue`` is true, bytes of states forgotten by rule may remain. So in this case, only
        versions forgotten by name are returned.
        """
        forgotten = self.reach.forgotten.items()
        fresh = (id_ for id_, named in forgotten if named or not self.residue)
        return tuple(
            sorted(id_ for id_ in fresh if id_ not in self.rewrite.graph.history.without_residue)
        )

    def allows(self, recorded: Recorded, headers: Iterable[RecordHeader]) -> bool:
        """Whether the plan deletes nothing that an operation needs.

        ``recorded``: an operation that was published after the plan was made. ``headers``: the
        headers of the records that the operation wrote to packs. Call ``allows`` for every such
        operation, in the order of publication.
        """
        entry, reach, graph = recorded.entry, self.reach, self.rewrite.graph
        if entry.forgets or any(mark.change == "stored" for mark in entry.states):
            return False
        reach.commits.update(commit.id for commit in entry.commits)
        named = names_of(entry) | entry.about
        for commit in entry.commits:
            named |= {*commit.parents, *commit.needs}
        if not named <= reach.commits:
            return False
        needed = {id_ for header in headers for m in header.members for id_ in graph.needs_of(m)}
        for commit in entry.commits:
            needed |= {*graph.contents.objects(commit.manifest), commit.manifest}
        return all(reach.needs(id_) or not graph.rows_of(id_) for id_ in needed)


# -- reachability --------------------------------------------------------------------------


class Specs(Mapping[bytes, TensorSpec]):
    """Maps blob ids to specs: a blob is the bytes of a tensor, a spec is its dtype and shape.

    Contains all blobs of the states that stay. ``lost``: the specs of blobs that are not stored.
    """

    def __init__(
        self,
        graph: StorageGraph,
        states: set[ManifestId],
        dropped: Mapping[ManifestId, Iterable[int]],
    ) -> None:
        """``states``: the manifests of the states that stay. ``graph`` has read these manifests.

        ``dropped``: maps a manifest to the positions of the contents that do not stay.
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
        for id_, positions in dropped.items():
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
        """For each object of the graph: whether this mapping has a spec for the object."""
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
    """What stays. ``commits``: versions. ``states``: the versions whose state stays, too.

    ``forgotten``: maps forgotten versions to True (by name) or False (by rule). ``blobs`` and
    ``manifests``: the objects of ``states``. ``only_forgotten``: objects that only forgotten states
    have. ``purged``: objects of states forgotten by name; these objects may not even stay as bases.
    ``dropped``: objects of dropped weights that no state needs. ``purge``: whether to delete all
    bytes that no entry names, because a state was forgotten by name. ``cutoff_ns``: the start of
    the grace period.
    """

    cutoff_ns: int
    commits: set[CommitId]
    states: set[CommitId]
    forgotten: Mapping[CommitId, bool]
    purge: bool
    manifests: set[ManifestId]
    blobs: Specs
    only_forgotten: set[bytes] = field(default_factory=set)
    purged: set[bytes] = field(default_factory=set)
    dropped: set[bytes] = field(default_factory=set)

    def needs(self, id_: bytes) -> bool:
        """Whether a state that stays has this object."""
        return id_ in self.blobs or id_ in self.manifests


def reachable(
    graph: StorageGraph,
    cutoff_ns: int,
    *,
    forget: Mapping[CommitId, bool] | None = None,
    in_use: Set[CommitId] = frozenset(),
) -> Reachable:
    """The versions and objects that stay. ``cutoff_ns``: the start of the grace period.

    ``forget``: more versions to treat as forgotten, by name (True) or by rule (False). ``in_use``:
    forgotten versions whose states stay because HEAD or a recipe needs them.
    """
    history, contents = graph.history, graph.contents
    forgotten = {id_: n for id_, n in history.forgotten.items() if id_ not in in_use}
    fresh = history.with_residue - in_use
    for commit_id, named in (forget or {}).items():
        forgotten[commit_id] = forgotten.get(commit_id, False) or named
        fresh.update({commit_id} if named else ())
    numbers = history.reachable(cutoff_ns)
    commits = {id_ for id_, number in history.numbers.items() if number in numbers}
    states = commits - forgotten.keys()
    needed = {m for id_ in states if (m := history.manifest(id_)) is not None}
    # Read the manifests that were not read yet. The oldest manifests are read first, because a
    # manifest may be a delta from an older manifest.
    for id_ in sorted(needed - contents.manifests.keys(), key=graph.number):
        contents.require(id_, [coding.step for coding in graph.codings(id_)])
    positions, dropped = dict[ManifestId, list[int]](), set[bytes]()
    for id_, paths in history.dropped_paths(states).items():
        manifest = contents.stream.load(id_)
        positions[id_] = manifests.positions(manifest, paths)
        dropped.update(c.id for e in manifest.all_entries if e.path in paths for c in e.contents)
    blobs = Specs(graph, needed, positions)
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
        objects = _objects_of(graph, commit_id)
        if named and not objects and commit_id in fresh:
            # The manifest is damaged, or was deleted after a rule forgot the version. So every
            # object that no version needs may be an object of this version.
            objects = set(map(graph.id_of, np.flatnonzero(graph.coded).tolist()))
        unneeded = {id_ for id_ in objects if not reach.needs(id_)}
        reach.only_forgotten |= unneeded
        reach.purged |= unneeded if named else set()
    return reach


def _objects_of(graph: StorageGraph, commit: CommitId) -> set[bytes]:
    """The ids of a version's blobs and manifest. Empty if the manifest is damaged or not stored."""
    id_ = graph.history.manifest(commit)
    if id_ is not None and graph.rows_of(id_):
        with suppress(DamagedData):
            return {*graph.contents.objects(id_), id_}
    return set()


# -- the plan -----------------------------------------------------------------------------


def collect(
    graph: StorageGraph, reach: Reachable, disk: DiskUse, estimate: Estimate
) -> CollectionPlan:
    """Plans to delete all that is not in ``reach``, except files in the quarantine."""
    retained = keep_codings(graph, reach, estimate)
    leaves = _leaving(graph, retained)
    packs = _pack_uses(graph, leaves, {n: s for n, s in disk.packs.items() if n in graph.named})
    rewritten = _packs_to_move(graph, reach, leaves, packs)
    split = {  # in packs that stay: records with an object that only forgotten states have
        coding.place[:2]
        for id_ in reach.only_forgotten - retained.intermediates
        for coding in graph.codings(id_)
        if coding.record.pack not in rewritten
    }
    ids = list(graph.history.numbers)
    deleted = tuple(ids[n] for n in graph.history.published if ids[n] not in reach.commits)
    edits, shorter = graph.history.shortened(graph.entries, reach.commits, reach.cutoff_ns)
    saved = shorter if deleted or shorter >= max(_BLOCK, _WORTH * disk.journal) else 0
    rewrite = RewritePlan(graph)
    if rewritten or split or saved or retained.add:
        rewrite = RewritePlan(
            graph,
            leave=set(graph.places(np.flatnonzero(leaves).tolist())),
            add=retained.add,
            packs=rewritten,
            edits=edits if saved else {},
            specs=reach.blobs,
            records=split,
        )
    summary = Collection(
        commits=deleted,
        forgotten=len(reach.commits) - len(reach.states),
        objects=_count_deleted(graph, retained, rewritten, split) if rewrite else 0,
        phantoms=len(retained.intermediates),
        recoded=len(retained.add),
        operations=sum(edited is None for edited in rewrite.edits.values()),
        packs=len(rewritten),
        before=disk.total,
        freed=max(
            0,
            saved + sum(packs[n].garbage for n in rewritten & packs.keys()) - retained.added_bytes,
        ),
        quarantined=0,
        unquarantined=0,
    )
    forgotten = (coding for id_ in reach.only_forgotten for coding in graph.codings(id_))
    residue = bool(retained.intermediates) or any(
        coding.record.pack not in rewritten for coding in forgotten
    )
    return CollectionPlan(
        reach=reach,
        rewrite=rewrite,
        summary=summary,
        residue=residue,
    )


def _leaving(graph: StorageGraph, retained: RetainedCodings) -> Flags:
    """The rows (numbers of codings in the graph) to delete."""
    # A delta whose base is lost cannot be decoded. Its header names the base, and the base may be
    # an object of a forgotten state. So the delta is deleted, unless it is the only coding of a
    # needed object.
    useless = ~graph.sound & (graph.coded | ~retained.needed)[graph.object]
    return (graph.sound & ~retained.rows) | useless


class _PackUse(Struct, frozen=True):
    """How a plan uses a pack of ``size`` bytes.

    ``garbage``: how many of these bytes no retained coding uses.
    """

    size: int
    garbage: int


def _pack_uses(graph: StorageGraph, leaves: Flags, sizes: Mapping[int, int]) -> dict[int, _PackUse]:
    """Maps each pack in ``sizes`` to its use. ``leaves``: the codings that are deleted.

    Bytes between records are garbage, too.
    """
    record_of, count = graph.records_by_row, len(graph.packs)
    stays = np.bincount(record_of, ~leaves, count)
    freed = np.bincount(record_of, column(graph.payloads) * leaves, count)
    freed[column(graph.groups) > 0] = 0  # a payload that several codings share stays
    used = np.where(stays > 0, column(graph.lengths) - freed, 0)
    pack_of = column(graph.packs)
    return {
        pack: _PackUse(size, max(0, size - int(used[pack_of == pack].sum()) - len(PACK_HEADER)))
        for pack, size in sizes.items()
    }


def _packs_to_move(
    graph: StorageGraph, reach: Reachable, leaves: Flags, packs: Mapping[int, _PackUse]
) -> set[int]:
    """The packs to rewrite: packs with much garbage, with bytes to purge or with dropped weights.

    If there are many small packs, these are included, too.
    """
    moved = {n for n, use in packs.items() if use.garbage >= _WORTH * use.size}
    small = {n for n, use in packs.items() if use.size < _SMALL}
    moved |= small if len(small) > _SCATTERED else set()
    if reach.purge:
        moved |= {n for n, use in packs.items() if use.garbage}
    moved |= {c.record.pack for id_ in reach.purged for c in graph.codings(id_)}
    dropped = (coding for id_ in reach.dropped for coding in graph.codings(id_))
    return moved | {coding.record.pack for coding in dropped if leaves[coding.row]}


def _count_deleted(
    graph: StorageGraph, retained: RetainedCodings, moved: set[int], split: set[tuple[int, int]]
) -> int:
    """How many objects that no version needs lose all their bytes."""
    packs, record_of = column(graph.packs), graph.records_by_row
    stays = np.bincount(record_of, retained.rows, len(packs)) > 0
    stays &= ~np.isin(packs, list(moved))
    for record in np.flatnonzero(stays).tolist() if split else ():
        stays[record] = (graph.packs[record], graph.offsets[record]) not in split
    deleted = graph.coded & ~retained.needed
    deleted[graph.object[graph.sound & stays[record_of]]] = False
    deleted[[graph.number(id_) for id_ in retained.intermediates]] = False
    return int(deleted.sum())


# -- which codings stay --------------------------------------------------------------------


class RetainedCodings(Struct):
    """``rows``: the codings that stay. ``needed``: for each object whether a version needs it.

    ``add``: codings to make. ``added_bytes``: the estimated size of the codings to make.
    ``intermediates``: objects that no version needs but that stay as bases.
    """

    rows: Flags
    needed: Flags
    add: list[EncodeRequest]
    added_bytes: int
    intermediates: set[bytes]


def keep_codings(graph: StorageGraph, reach: Reachable, estimate: Estimate) -> RetainedCodings:
    """Selects the codings to retain and to make, so that all of ``reach`` can be recovered.

    A path (series of deltas) to a needed object may lead through objects that no version needs.
    Then the smallest of three alternatives is chosen: a new delta from the nearest needed object on
    the path, a new full record, or the old path. An old path through an object of a state
    forgotten by name is not allowed.
    """
    needed = reach.blobs.objects.copy()
    manifests = graph.numbers(b"".join(reach.manifests))
    needed[manifests[manifests >= 0]] = True
    stays = needed | graph.shares_prefix
    rows = graph.decodable_from(graph.sound & stays[graph.object], stays)
    retained = RetainedCodings(rows, needed, add=[], added_bytes=0, intermediates=set())
    work = _Reconnecting(graph, reach, retained, stays)
    for lost in work.cut_off():
        work.reconnect(lost, [estimate(cut.id, cut.base) for cut in lost])
    return retained


class _CutOff(Struct, frozen=True):
    """A needed object to which no retained path leads. ``base``: the base for a new coding, or
    None.

    ``steps``: the old codings on a path from ``base`` to the object; empty if there is no path.
    """

    id: bytes
    pieces: set[Piece]
    base: bytes | None
    steps: list[StoredCoding]


class _Reconnecting:
    """Adds codings to ``retained`` until every needed object can be decoded again.

    ``_named``: for each object whether one of its codings is retained. The base of a retained delta
    must have a coding: the delta contains only the first 8 bytes of the base's id, and the coding
    contains the full id.
    """

    def __init__(
        self, graph: StorageGraph, reach: Reachable, retained: RetainedCodings, stays: Flags
    ) -> None:
        self._graph = graph
        self._reach = reach
        self._retained = retained
        self._stays = stays
        self._named = np.zeros(len(graph), np.bool_)
        self._named[graph.object[retained.rows]] = True
        self._nodes = graph.reached(retained.rows)
        self._reached = Reachability(lambda piece: graph.has(self._nodes, piece))

    def cut_off(self) -> Iterator[list[_CutOff]]:
        """Yields the needed objects without a path or a coding, oldest first.

        Objects that an optimizer step computes from each other come in one list. Call
        ``reconnect`` for a list before you request the next list, because the new codings may
        restore paths of later objects.
        """
        graph, retained, nodes = self._graph, self._retained, self._nodes
        for row in np.flatnonzero(retained.rows & graph.delta & ~nodes[graph.node]).tolist():
            self._follow(self._graph.coding(row))
        lost = graph.sound & self._stays[graph.object]
        lost &= ~nodes[graph.node] | ~self._named[graph.object]
        numbers = np.unique(graph.object[lost])
        mates = self._mates(numbers)
        for number in numbers.tolist():
            if not self._is_decodable(number):
                together = dict.fromkeys([number])
                waiting = [number]
                while waiting:
                    fresh = [mate for mate in mates.get(waiting.pop(), ()) if mate not in together]
                    fresh = [mate for mate in fresh if not self._is_decodable(mate)]
                    together |= dict.fromkeys(fresh)
                    waiting += fresh
                yield [self._cut_off(graph.id_of(mate)) for mate in sorted(together)]

    def _mates(self, numbers: Integers) -> dict[int, set[int]]:
        """Maps each object to its inputs and results in optimizer steps.

        Considers only steps whose codings are not retained.
        """
        graph = self._graph
        lost = np.zeros(len(graph), np.bool_)
        lost[numbers] = True
        rows = graph.sound & ~self._retained.rows & lost[graph.object]
        chosen = rows[graph.input_row] & lost[graph.input_object]
        mates: dict[int, set[int]] = {}
        pairs = graph.object[graph.input_row[chosen]].tolist(), graph.input_object[chosen].tolist()
        for one, other in zip(*pairs, strict=True):
            mates.setdefault(one, set()).add(other)
            mates.setdefault(other, set()).add(one)
        return mates

    def _is_decodable(self, number: int) -> bool:
        return bool(self._named[number]) and self._reached.has_all(self._pieces(number))

    def _pieces(self, number: int) -> set[Piece]:
        id_ = self._graph.id_of(number)
        return {(id_, coding.member.start) for coding in self._graph.codings(id_)}

    def _cut_off(self, id_: bytes) -> _CutOff:
        base, steps = self._path(id_) or (self._neighbour(id_), [])
        return _CutOff(id_, self._pieces(self._graph.number(id_)), base, steps)

    def reconnect(self, lost: Sequence[_CutOff], sizes: Sequence[int]) -> None:
        """Retains the old codings on the paths to ``lost`` objects, or requests new codings.

        Chooses the smaller alternative. If all old codings together are larger than all new
        codings, chooses for each object separately. ``sizes``: the size of the new coding of each
        object.
        """
        retained, graph = self._retained, self._graph
        steps = self._path_codings(lost)
        if steps and sum(step.stored for step in steps) < sum(sizes):
            for step in steps:
                ends = {step.member.id, *step.needs}
                retained.intermediates |= {
                    end for end in ends if not self._stays[graph.number(end)]
                }
                retained.rows[step.row] = True
                self._named[graph.object[step.row]] = True
                self._follow(step)
        for cut, size in zip(lost, sizes, strict=True):
            if self._is_decodable(graph.number(cut.id)):
                continue
            if len(lost) > 1:
                self.reconnect([cut], [size])
                continue
            retained.added_bytes += size
            retained.add.append(EncodeRequest(cut.id, cut.base))
            self._named[graph.number(cut.id)] = True
            self._reached.reach(cut.pieces)

    def _follow(self, coding: StoredCoding) -> None:
        self._reached.add(
            coding.member.id,
            coding.member.start,
            coding.base,
            reversible=coding.reversible,
            inputs=coding.inputs,
        )

    def _path_codings(self, lost: Sequence[_CutOff]) -> list[StoredCoding]:
        """The codings on the paths to ``lost`` objects, and to the objects that these codings need.

        Empty if an object has no path, or if the codings cannot stay.
        """
        codings: dict[int, StoredCoding] = {}
        decoded: set[bytes] = set()
        waiting = [step for cut in lost for step in cut.steps]
        if not all(cut.steps for cut in lost):
            return []
        while waiting:
            codings |= {step.row: step for step in waiting}
            decoded |= {step.member.id for step in waiting}
            needed = {id_ for step in waiting for id_ in step.inputs} - decoded
            waiting = []
            for id_ in needed:
                if self._is_decodable(self._graph.number(id_)):
                    continue
                path = self._path(id_)
                if path is None:
                    return []
                waiting += path[1]
        steps = list(codings.values())
        return steps if self._can_stay({cut.id for cut in lost}, steps) else []

    def _can_stay(self, ids: set[bytes], steps: list[StoredCoding]) -> bool:
        """Whether the codings ``steps`` can stay.

        They can if no step shares its payload with other codings, every object that a step names
        has a coding, and none of these objects is purged.
        """
        ends = {end for step in steps for end in (step.member.id, *step.needs)}
        decoded = {step.member.id for step in steps}
        remaining = map(self._graph.number, (ends | ids) - decoded)
        shared = any(step.record.header.group for step in steps)
        named = all(number >= 0 and self._named[number] for number in remaining)
        return not shared and named and not ends & self._reach.purged

    def _neighbour(self, id_: bytes) -> bytes | None:
        """A needed object that is stored as a retained reversible delta from ``id_``, or None."""
        deltas = self._graph.codings_from(id_)
        retained = (coding.member.id for coding in deltas if self._retained.rows[coding.row])
        return next(filter(self._is_base, retained), None)

    def _is_base(self, id_: bytes) -> bool:
        return (id_, 0) in self._reached and self._reach.needs(id_)

    def _path(self, id_: bytes) -> tuple[bytes, list[StoredCoding]] | None:
        """The nearest needed object on a path to ``id_``, and the codings on this path.

        None of these codings is retained yet. None if there is no path.
        """
        graph, seen = self._graph, {id_}
        waiting: deque[tuple[bytes, list[StoredCoding]]] = deque([(id_, [])])
        while waiting:
            at, steps = waiting.popleft()
            by_other: dict[bytes, dict[int, StoredCoding]] = {}  # one coding of each piece
            for coding in (*graph.codings(at), *graph.codings_from(at)):
                other = coding.base if coding.member.id == at else coding.member.id
                if other is not None and other not in seen and not self._retained.rows[coding.row]:
                    by_other.setdefault(other, {}).setdefault(coding.member.start, coding)
            for other, codings in by_other.items():
                seen.add(other)
                if not self._stays[graph.number(other)]:
                    waiting.append((other, [*codings.values(), *steps]))
                elif self._is_base(other):
                    return other, [*codings.values(), *steps]
        return None
