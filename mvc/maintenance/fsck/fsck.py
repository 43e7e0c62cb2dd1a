"""fsck: read every byte of the repository, name what is damaged and what it touches.

In this order: format, journal (``journal``), packs (every header and payload, bytes that no
entry names), versions (every manifest, every object they name; ``full``: recovered and
hashed), index (against journal and packs).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from mvc.adapters.views import extract
from mvc.errors import DamagedData, IoFailed, MvcError, ReadOnly
from mvc.ids import BlobId, CommitId, ManifestId
from mvc.io.files import TEMPORARY, FileSystem
from mvc.limits import PIECE
from mvc.maintenance.fsck.journal import JournalCheck
from mvc.maintenance.inventory import claimed_twice, damaged_payloads, records_and_gaps
from mvc.maintenance.quarantine import QUARANTINE, bytes_of, files_in
from mvc.maintenance.report import FsckReport, Problem
from mvc.maintenance.storage_graph import StorageGraph
from mvc.model.commit import Commit
from mvc.model.hashing import blob_id, pieces, verify_pieces
from mvc.model.manifest import FileEntry, LogicalTensor, Manifest, View
from mvc.model.names import attached_path, printable
from mvc.model.tensor import TensorSpec
from mvc.repo.context import Context
from mvc.repo.lookup import manifests
from mvc.repo.lookup.availability import dropped, dropped_paths, given_up
from mvc.repo.lookup.manifest_stream import ManifestStream
from mvc.store.format import FORMAT, read_features
from mvc.store.graph.cost import Speed
from mvc.store.index import keys
from mvc.store.index.folder import CURRENT
from mvc.store.journal.entries import Region
from mvc.store.journal.frames import Gap, Recorded
from mvc.store.journal.high_water_mark import HIGH_WATER_MARK
from mvc.store.packs.reader import PACK_HEADER, pack_numbers, pack_path
from mvc.store.packs.records import Member, RecordHeader
from mvc.store.recovery.recover import Recovery, Request
from mvc.store.recovery.sequential import fill_where_sound
from mvc.store.snapshot import INDEX, PACKS, Snapshot
from mvc.types import Progress

__all__ = ["FsckReport", "PackCheck", "check", "forget_index", "fsck", "lost_end", "rebuild_index"]


def fsck(context: Context, *, full: bool = False, progress: Progress | None = None) -> FsckReport:
    """Checks the whole repository and changes nothing.

    Entries that others append after the start are left out. ``full``: every object is
    recovered and hashed as well. ``progress`` counts bytes of packs, and with ``full`` raw bytes
    of objects. If damage is found while others rewrite the repository, or while the writer of the
    last entry takes it back after a failure, the check is repeated. Memory grows with the number
    of objects; ``full`` holds up to 1 GiB of the last versions as well.
    """
    return check(context, full=full, progress=progress)[0]


def check(
    context: Context, *, full: bool = False, progress: Progress | None = None
) -> tuple[FsckReport, JournalCheck]:
    """As ``fsck``; also returns the check of the journal."""
    while True:
        generation = context.fresh().generation
        report, journal = _look(context, full, progress)
        if report.sound or (context.fresh().generation == generation and _stands(journal)):
            return report, journal


def _stands(journal: JournalCheck) -> bool:
    """Whether the last entry that was checked is still there."""
    last = journal.last
    with suppress(DamagedData):
        return last is None or journal.snapshot.entry(last.offset).check == last.check
    return False


def _look(
    context: Context, full: bool, progress: Progress | None
) -> tuple[FsckReport, JournalCheck]:
    snapshot = context.fresh()
    journal, packs = JournalCheck(snapshot), PackCheck(snapshot)
    folder = snapshot.folder / PACKS
    names = () if snapshot.fs.stat(folder) is None else snapshot.fs.list(folder)
    total = bytes_of(snapshot.fs, [folder / name for name in names])

    def tell(what: str) -> None:
        if progress is not None:
            done = packs.checked + versions.recovered
            progress(done, max(done, total), what)

    stream = ManifestStream(context.store)
    versions = _VersionCheck(context.store.recovery, stream, packs.objects, full, tell)
    commits: dict[bytes, Commit] = {}
    offsets: set[bytes] = set()
    for recorded in journal.entries():
        commits.update((commit.id, commit) for commit in recorded.entry.commits)
        offsets.update(keys.entry_keys(recorded))
        packs.entry(recorded)
        tell("packs")
    packs.rest()
    packs.objects.settle()
    payloads = [problem for problem in packs.problems if problem.kind == "payload"]
    versions.suspects = {id_ for problem in payloads for id_ in problem.ids}
    kept = [commit for id_, commit in commits.items() if id_ not in journal.forgotten]
    paths = dropped_paths(journal.weights)
    versions.check(kept, given_up(paths, ((commit.id, commit.manifest) for commit in kept)))
    found = [versions.touching(p) if p.kind == "payload" else p for p in packs.problems]
    problems = [*journal.problems, *_joined(found, versions.problems)]
    problems += _forged(context, kept, paths)
    try:
        read_features(snapshot.fs, snapshot.folder)
    except MvcError as error:
        where = str(snapshot.folder / FORMAT)
        problems.insert(0, Problem("format", FORMAT, where, error.message))
    if not journal.problems and not packs.problems:
        problems += _index(snapshot, offsets, packs.found_keys, journal.end.offset)
    lost = (commit.id for commit in commits.values() if commit.id in versions.lost)
    report = FsckReport(
        problems=tuple(problems),
        notes=(
            *journal.notes,
            *packs.notes,
            *_retrainable(context, kept, paths),
            *_collected(paths, commits),
            *_left(context),
        ),
        full=full,
        entries=journal.count,
        versions=len(commits) + len(journal.lost),
        records=packs.records,
        objects=len(packs.objects),
        checked_bytes=journal.end.offset + packs.checked + versions.recovered,
        forgotten=len(journal.forgotten & commits.keys()),
        lost=(*lost, *journal.lost),
    )
    return report, journal


def rebuild_index(context: Context) -> None:
    """Rebuilds the index from journal and packs.

    Raises ReadOnly if the folder cannot be written, DamagedData if journal entries are lost.
    """
    if not context.store.writable:
        raise ReadOnly(
            "the index cannot be rebuilt: the repository's folder cannot be written",
            hint="questions are answered without an index there, only slower",
        )
    snapshot = context.fresh()
    for _ in snapshot.entries():
        pass  # raises if entries are lost: the old index still has their keys
    snapshot.rebuild_index()


def lost_end(context: Context) -> Gap | None:
    """The lost entries at the end of the journal, if no others are lost; else None.

    Such a loss can be accepted with ``forget_index``.
    """
    snapshot = context.fresh()
    gaps: list[Gap] = []
    for _ in snapshot.entries(lost=gaps.append):
        pass
    behind = [gap for gap in snapshot.gaps if gap.start.offset >= snapshot.position.offset]
    return behind[0] if behind and not gaps else None


def forget_index(fs: FileSystem, folder: Path) -> None:
    """Discards the index of the repository folder ``folder`` (``.mvc``) before opening.

    For a journal that is older than its index (HistoryMissing), once the user accepts the
    loss. The next opening makes a new index.
    """
    fs.unlink(folder / INDEX / CURRENT, missing_ok=True)
    fs.unlink(folder / HIGH_WATER_MARK, missing_ok=True)


def _joined(damaged: list[Problem], others: list[Problem]) -> list[Problem]:
    """Merges the two problems of an object that has a damaged payload and no other path."""
    payloads = [(at, p) for at, p in enumerate(damaged) if p.kind == "payload"]
    position = {id_.hex(): at for at, p in payloads for id_ in p.ids}
    covered = [p for p in others if p.kind in {"lost", "manifest"} and p.object in position]
    lost = {position[p.object] for p in covered}
    joined = [
        replace(p, message=f"{p.message}; no other record leads to it") if at in lost else p
        for at, p in enumerate(damaged)
    ]
    return [*joined, *(p for p in others if p not in covered)]


def _forged(
    context: Context, kept: Iterable[Commit], paths: Mapping[CommitId, str]
) -> Iterator[Problem]:
    """Marks of weights that were given up at a path, or by a recipe, that the version lacks."""
    for commit in kept:
        if commit.id in paths:
            with suppress(DamagedData):  # the manifest is a problem of its own
                manifest = manifests.load(context, commit.manifest)
                path = paths[commit.id]
                recipe = attached_path("recipe.json") in manifest.attached_by_path
                if not recipe or path not in manifest.by_path:
                    what = "no recipe" if not recipe else f"no {printable(path)}"
                    why = f"weights are marked as given up of {commit.id.short}, which has {what}"
                    yield Problem("reference", commit.id.hex(), "", why, (commit.id,))


def _retrainable(
    context: Context, kept: Iterable[Commit], paths: Container[CommitId]
) -> Iterator[str]:
    """Notes about versions whose weights were given up; that is no damage."""
    found = [dropped(context, commit.id) for commit in kept if commit.id in paths]
    for each in found[:_NOTED]:
        if each is not None:
            yield f"{each.commit.short} has no weights at {printable(each.path)}: {each}"
    if len(found) > _NOTED:
        yield f"{len(found) - _NOTED} more versions are recoverable by retraining"


def _collected(paths: Iterable[CommitId], commits: Container[bytes]) -> Iterator[str]:
    """A note about marks of versions that a gc has deleted; earlier ones left the marks."""
    gone = [id_ for id_ in paths if id_ not in commits]
    if gone:
        what = "a version that is" if len(gone) == 1 else f"{len(gone)} versions that are"
        yield f"the journal says that {what} not there gave up weights, first {gone[0].short}"


def _left(context: Context) -> Iterator[str]:
    """Notes about leftovers of interrupted work and about the quarantine."""
    fs, folder = context.store.fs, context.store.folder
    files = [name for name in fs.list(folder) if name.startswith(TEMPORARY)]
    if files:
        what = "temporary file" if len(files) == 1 else "temporary files"
        yield f"{len(files)} {what} of interrupted or running work; gc deletes what is left over"
    kept = files_in(fs, folder)
    if kept:
        what = "1 file" if len(kept) == 1 else f"{len(kept)} files"
        yield f"{folder / QUARANTINE} holds {what} of {bytes_of(fs, kept):,} bytes"


def _index(
    snapshot: Snapshot, expected: set[bytes], objects: dict[int, set[bytes]], end: int
) -> list[Problem]:
    """Checks that index and tail hold exactly the keys that journal and packs imply.

    Only entries before byte ``end`` of the journal count: others may have added more. Keys of
    deltas are left out: they may start from any of several entries that hold the base.
    """
    expected = expected | {
        keys.BLOB + prefix + keys.number(offset)
        for offset, prefixes in objects.items()
        for prefix in prefixes
    }
    try:
        tables = {key[:1] for key in expected} | {keys.BLOB}
        present = {
            key
            for table in sorted(tables)
            for key in snapshot.under(table)
            if keys.offset_of(key) < end
        }
    except DamagedData as error:
        return [Problem("index", INDEX, "", error.message)]
    missing, foreign = len(expected - present), len(present - expected)
    if not missing and not foreign:
        return []
    why = f"the index lacks {missing} keys and has {foreign} that nothing stands behind"
    return [Problem("index", INDEX, str(snapshot.folder / INDEX), why)]


class PackCheck(Struct):
    """Reads every region that the journal names. Sound payloads go to ``objects``.

    ``checked``: bytes read so far. ``found_keys``: by journal offset, the first bytes of the ids
    in the entry's records, which the index must have.
    """

    snapshot: Snapshot
    objects: StorageGraph = field(default_factory=StorageGraph)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    records: int = 0
    checked: int = 0
    found_keys: dict[int, set[bytes]] = field(default_factory=dict)
    _speed: Speed = field(default_factory=Speed)
    _claims: dict[int, list[tuple[Region, Recorded]]] = field(default_factory=dict)
    _sizes: dict[int, int | None] = field(default_factory=dict)
    _missing: dict[int, int] = field(default_factory=dict)  # bytes of records by pack

    def entry(self, recorded: Recorded) -> None:
        """Checks the records of one operation. Sound records after a damaged one are found."""
        sound: list[Member] = []
        found: set[bytes] = set()
        whole = True
        for region in filter(lambda region: region.length, recorded.entry.regions):
            self._claims.setdefault(region.pack, []).append((region, recorded))
            size = self._size(region.pack)
            if size is None:
                self._missing[region.pack] = self._missing.get(region.pack, 0) + region.length
                whole = False
                continue
            for at, _, header, why in records_and_gaps(self.snapshot.packs, region):
                if header is None:
                    self._damaged("record", region.pack, f"byte {at}", why)
                    whole = False
                    continue
                found.update(id_[:8] for id_ in header.by_id)
                sound += self._payloads(region.pack, at, header)
            self.checked += max(0, min(region.length, size - region.start))
        if whole:
            self.found_keys[recorded.offset] = found
        for member in sound:
            self.objects.add(member, self._speed.seconds(member))

    def _payloads(self, pack: int, at: int, header: RecordHeader) -> list[Member]:
        """Reads the payloads of a record; returns the members with sound ones."""
        self.records += 1
        members, wrong = header.members, set[int]()
        for hit, error in damaged_payloads(self.snapshot.packs, (pack, at, header), MvcError):
            wrong.update(hit)
            name, where = members[hit[0]].id.hex(), f"pack {pack}, byte {at}"
            ids = tuple(member.id for member in members) if header.group else ()
            self.problems.append(Problem("payload", name, where, error.message, also=ids))
        for i in wrong:
            self.objects.name(members[i].id)
        return [member for i, member in enumerate(members) if i not in wrong]

    def _damaged(self, kind: str, pack: int, where: str, why: str) -> None:
        name = pack_path(self.snapshot.folder / PACKS, pack).name
        self.problems.append(Problem(kind, name, where, why))

    def _size(self, pack: int) -> int | None:
        """Bytes of a pack; None if it is missing."""
        if pack not in self._sizes:
            identity = self.snapshot.fs.stat(pack_path(self.snapshot.folder / PACKS, pack))
            self._sizes[pack] = None if identity is None else identity.size
        return self._sizes[pack]

    def rest(self) -> None:
        """Checks missing packs, bytes claimed twice, the first bytes of packs, unused bytes."""
        fs, folder = self.snapshot.fs, self.snapshot.folder / PACKS
        if fs.stat(folder) is None:
            self.problems.insert(
                0, Problem("pack", PACKS, str(folder), "the folder with all packs is missing")
            )
            self.notes.append(f"restore the folder {PACKS} from a copy: it holds every tensor")
            return
        found, self.problems = self.problems, []
        for pack, held in sorted(self._missing.items()):
            self._damaged("pack", pack, "", f"the file is missing, with {held:,} bytes of records")
        self.problems += found
        self._claimed_twice()
        unused = 0
        for number in pack_numbers(fs, folder):
            path = pack_path(folder, number)
            claims = self._claims.get(number, ())
            try:
                with fs.open_read(path) as file:
                    size, head = file.size(), file.read(0, len(PACK_HEADER))
            except IoFailed:
                if fs.stat(path) is not None:
                    raise
                if claims:  # maintenance has moved them: then the check looks again
                    self._damaged("pack", number, "", f"{path.name} is gone")
                continue
            if claims and head != PACK_HEADER:
                self._damaged("pack", number, "byte 0", f"{path.name} does not begin as a pack")
            used = sum(region.length for region, _ in claims) + (len(PACK_HEADER) if claims else 0)
            unused += max(0, size - used)
        if unused:
            self.notes.append(
                f"{unused:,} bytes in packs belong to no version: interrupted or running commits, "
                "or what was collected; gc rewrites a pack once 5 % of it would go"
            )

    def _claimed_twice(self) -> None:
        """Bytes that two regions claim: one of the two operations lost what it wrote."""
        claims = (claim for claims in self._claims.values() for claim in claims)
        for part, first, second in claimed_twice(claims):
            ids = dict.fromkeys(c.id for each in (first, second) for c in each.entry.commits)
            self.problems.append(
                Problem(
                    "region",
                    pack_path(self.snapshot.folder / PACKS, part.pack).name,
                    f"bytes {part.start} to {part.start + part.length}",
                    f"operations {first.sequence} and {second.sequence} claim the same bytes",
                    tuple(ids),
                )
            )


_HELD = 512 << 20  # bytes of the last versions in memory, and as many of the next one
_MOST_NAMED = 1000  # versions or tensors listed with one problem
_NOTED = 10  # versions without weights that are named
_NO_RECORD = "no sound record leads to it"


class _VersionCheck(Struct):
    """Checks for every version that all its objects can be recovered; ``full``: recovers them.

    ``suspects``: ids of objects with a damaged payload. ``lost``: versions with an object that
    cannot be recovered.
    """

    recovery: Recovery
    stream: ManifestStream
    objects: StorageGraph
    full: bool
    tell: Callable[[str], None]
    suspects: set[bytes] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    recovered: int = 0
    lost: set[CommitId] = field(default_factory=set)
    _manifests: dict[ManifestId, list[Commit]] = field(default_factory=dict)
    _touched: dict[bytes, tuple[dict[CommitId, None], dict[str, None]]] = field(
        default_factory=dict
    )
    _verdicts: dict[bytes, str] = field(default_factory=dict)
    _buffer: memoryview = field(default_factory=lambda: memoryview(bytearray()))
    _held: dict[bytes, memoryview] = field(default_factory=dict)  # verified; the last used is last

    def check(
        self, commits: Iterable[Commit], given_up: Mapping[ManifestId, Container[str]]
    ) -> None:
        """Checks the manifests and objects of all commits.

        ``given_up``: by manifest the paths of which only the skeletons are stored.
        """
        for commit in commits:
            self._manifests.setdefault(commit.manifest, []).append(commit)
        for id_, holders in self._manifests.items():
            manifest = self._load(id_, holders)
            if manifest is None:
                continue
            for commit in holders:
                if commit.root != manifest.root:
                    why = f"commit {commit.id.short} has another Merkle root than its files"
                    self.problems.append(Problem("manifest", str(commit.id), "", why, (commit.id,)))
            for entry in manifest.all_entries:
                gone = entry.path in given_up.get(id_, ())
                if self.full and not gone:
                    self._recover(entry)
                for blob, spec, name in _blobs(entry):
                    if not gone or blob == entry.skeleton:
                        self._blob(blob, spec, f"{entry.path}: {name}", holders)
                if self.full and not gone:
                    self._views(entry, holders)
        for blob_, verdict in self._verdicts.items():
            if verdict:
                kind = "lost" if verdict == _NO_RECORD else "content"
                uses = self._uses([blob_])
                self.problems.append(Problem(kind, blob_.hex(), "", verdict, *uses))

    def touching(self, problem: Problem) -> Problem:
        """A payload's problem with the versions and tensors that name its objects."""
        versions, tensors = self._uses(problem.ids)
        return replace(problem, versions=versions, tensors=tensors)

    def _uses(self, ids: Iterable[bytes]) -> tuple[tuple[CommitId, ...], tuple[str, ...]]:
        uses = [self._touched[id_] for id_ in ids if id_ in self._touched]
        versions = dict.fromkeys(version for use in uses for version in use[0])
        tensors = dict.fromkeys(tensor for use in uses for tensor in use[1])
        return tuple(versions), tuple(tensors)

    def _load(self, id_: ManifestId, holders: list[Commit]) -> Manifest | None:
        if id_ in self.suspects:
            self._use(id_, "its list of files", holders)
        try:
            if self.objects.reach(id_) is not None:
                return self.stream.load(id_)
            with suppress(DamagedData):
                if self.suspects:  # a damaged payload may still decode to the right bytes
                    return self.stream.load(id_)
            raise DamagedData(_NO_RECORD)
        except DamagedData as error:
            self.lost.update(commit.id for commit in holders)
            ids = tuple(commit.id for commit in holders[:_MOST_NAMED])
            self.problems.append(Problem("manifest", str(id_), "", error.message, ids))
            return None

    def _recover(self, entry: FileEntry) -> None:
        """Recovers the contents of a file from those of earlier versions, and holds them.

        Long chains cost one delta a version this way. For what fails its hash, ``_verdict`` finds
        another path or says what is wrong.
        """
        fresh: list[Request] = []
        names: dict[bytes, str] = {}
        room = _HELD
        for id_, spec, name in _blobs(entry):
            room -= spec.nbytes
            if room < 0:
                break
            if id_ in self._held:
                self._held[id_] = self._held.pop(id_)
            elif id_ not in self._verdicts and id_ not in names and self._is_reached(id_, spec):
                fresh.append(Request(id_, spec, np.empty(spec.nbytes, np.uint8).data))
                names[id_] = name
        missed = {each.id for each in fill_where_sound(self.recovery, fresh, self._held)}
        for each in fresh:
            tensor = f"{entry.path}: {names[each.id]}"
            if each.id in missed:
                verdict = self._verdict(BlobId(each.id), each.spec, tensor, each.out)
            else:
                verdict = ""
                self.recovered += each.spec.nbytes
                self.tell(tensor)
            self._verdicts[each.id] = verdict
            if not verdict:
                self._held[each.id] = each.out
        size = sum(map(len, self._held.values()))
        while size > _HELD:
            size -= len(self._held.pop(next(iter(self._held))))

    def _is_reached(self, id_: BlobId, spec: TensorSpec) -> bool:
        """Whether sound payloads lead to every piece of an object."""
        return all(self.objects.reach(id_, start) is not None for start, _ in pieces(spec))

    def _blob(self, id_: BlobId, spec: TensorSpec, tensor: str, holders: list[Commit]) -> None:
        if id_ not in self._verdicts:
            self._verdicts[id_] = self._verdict(id_, spec, tensor)
        if self._verdicts[id_]:
            self.lost.update(commit.id for commit in holders)
        if self._verdicts[id_] or id_ in self.suspects:
            self._use(id_, tensor, holders)

    def _use(self, id_: bytes, tensor: str, holders: list[Commit]) -> None:
        versions, tensors = self._touched.setdefault(id_, ({}, {}))
        for commit in holders:
            if len(versions) < _MOST_NAMED:
                versions[commit.id] = None
        if len(tensors) < _MOST_NAMED:
            tensors[tensor] = None

    def _verdict(
        self, id_: BlobId, spec: TensorSpec, tensor: str, out: memoryview | None = None
    ) -> str:
        """The message about a damaged object; empty if it is sound.

        With ``full`` its bytes are in ``out`` then, if all of its pieces are reached.
        """
        if not self._is_reached(id_, spec) and not self.objects.is_whole(id_, spec.nbytes):
            return "" if self._proves_itself(id_, spec) else _NO_RECORD
        if not self.full:
            return ""
        if out is None and len(self._buffer) < min(PIECE, spec.nbytes):
            self._buffer = memoryview(bytearray(min(PIECE, spec.nbytes)))

        def read(start: int, length: int) -> memoryview:
            part = self._buffer[:length] if out is None else out[start : start + length]
            self.recovery.piece(id_, start, part)
            return part

        wrong = DamagedData("it decodes to other bytes than its name says")
        try:
            for _, part in verify_pieces(id_, spec, read, wrong):
                self.recovered += len(part)
                self.tell(tensor)
        except DamagedData as error:
            return error.message
        return ""

    def _proves_itself(self, id_: BlobId, spec: TensorSpec) -> bool:
        """Whether checkout recovers the object from damaged payloads, as its hash proves."""
        if not self.suspects or spec.nbytes > PIECE:
            return False
        with suppress(DamagedData):
            self.recovery.blob(id_, spec)
            return True
        return False

    def _views(self, entry: FileEntry, holders: list[Commit]) -> None:
        """Checks the ids of tensors that are views into a larger storage."""
        viewed: dict[int, list[tuple[LogicalTensor, View]]] = {}
        for tensor in entry.tensors:
            if tensor.view is not None and tensor.id not in self._verdicts:
                viewed.setdefault(tensor.content, []).append((tensor, tensor.view))
        for i, views in sorted(viewed.items()):
            content = entry.contents[i]
            if self._verdicts[content.id]:
                continue
            held = self._held.get(content.id)
            whole = held or memoryview(self.recovery.blob(content.id, content.spec))
            for tensor, view in views:
                sound = blob_id(tensor.spec, extract(whole, tensor.spec, view)) == tensor.id
                self._verdicts[tensor.id] = "" if sound else "its storage holds other bytes"
                if not sound:
                    self.lost.update(commit.id for commit in holders)
                    self._use(tensor.id, f"{entry.path}: {tensor.key}", holders)


def _blobs(entry: FileEntry) -> Iterator[tuple[BlobId, TensorSpec, str]]:
    """Every object of a file with a readable name."""
    names: dict[int, str] = {}
    for tensor in entry.tensors:
        names.setdefault(tensor.content, tensor.key)
    for i, content in enumerate(entry.contents):
        yield content.id, content.spec, names.get(i, "other bytes")
    if entry.skeleton is not None:
        yield entry.skeleton, TensorSpec("raw", (entry.skeleton_size,)), "its skeleton"
