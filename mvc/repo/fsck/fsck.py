"""fsck: read every byte of the repository, name what is damaged and what it touches.

In this order: format, journal (both copies of every entry, the chain, what entries say
about each other), packs (every header and payload), versions (every manifest, every
object they name; ``full``: recovered and hashed), index (against journal and packs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from mvc.adapters.views import extract
from mvc.errors import DamagedData, MvcError, ReadOnly
from mvc.ids import BlobId, CommitId, ManifestId
from mvc.io.files import TEMPORARY, FileSystem
from mvc.limits import PIECE
from mvc.model.commit import Commit
from mvc.model.hashing import blob_id
from mvc.model.manifest import FileEntry, LogicalTensor, Manifest
from mvc.model.tensor import TensorSpec
from mvc.repo.content.hashing import pieces, verify_pieces
from mvc.repo.context import Context, Progress
from mvc.repo.fsck.journal import JournalCheck
from mvc.repo.lookup.manifest_stream import ManifestStream
from mvc.repo.maintenance.quarantine import QUARANTINE, files_in
from mvc.repo.maintenance.report import FsckReport, Problem
from mvc.repo.maintenance.storage_graph import StorageGraph
from mvc.store.format import FORMAT, read_features
from mvc.store.index import keys
from mvc.store.index.folder import CURRENT
from mvc.store.journal.frames import Gap
from mvc.store.journal.high_water_mark import HIGH_WATER_MARK
from mvc.store.recovery.recover import Recovery
from mvc.store.snapshot import INDEX, PACKS, Snapshot

__all__ = [
    "FsckReport",
    "Problem",
    "VersionCheck",
    "check",
    "forget_index",
    "fsck",
    "lost_end",
    "rebuild_index",
]


def fsck(context: Context, *, full: bool = False, progress: Progress | None = None) -> FsckReport:
    """Checks the whole repository and changes nothing.

    Entries that others append after the start are left out. ``full``: every object is
    recovered and hashed as well. ``progress`` counts bytes of packs, and with ``full`` raw bytes
    of objects. If damage is found while others rewrite the repository, or while the writer of the
    last entry takes it back after a failure, the check is repeated. Memory grows with the number
    of objects.
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
    if last is None:
        return True
    try:
        return journal.snapshot.entry(last.offset).check == last.check
    except DamagedData:
        return False


def _look(
    context: Context, full: bool, progress: Progress | None
) -> tuple[FsckReport, JournalCheck]:
    from mvc.repo.fsck.packs import PackCheck
    from mvc.repo.lookup.manifest_stream import ManifestStream

    snapshot = context.fresh()
    meter = _Meter(progress)
    journal = JournalCheck(snapshot)
    packs = PackCheck(snapshot)
    meter.total = _pack_bytes(snapshot)
    commits: dict[bytes, Commit] = {}
    forgotten: set[bytes] = set()
    offsets: set[bytes] = set()
    for recorded in journal.entries():
        commits.update((commit.id, commit) for commit in recorded.entry.commits)
        forgotten.update(each.commit for each in recorded.entry.forgotten)
        offsets.update(keys.entry_keys(recorded))
        packs.entry(recorded)
        meter.to(packs.checked, "packs")
    packs.rest()
    packs.objects.settle()
    stream = ManifestStream(context.store)
    versions = VersionCheck(context.store.recovery, stream, packs.objects, full, meter.more)
    versions.suspects = {
        id_
        for problem in packs.problems
        if problem.kind == "payload"
        for id_ in problem.also or (bytes.fromhex(problem.object),)
    }
    versions.check(commit for id_, commit in commits.items() if id_ not in forgotten)
    found = [versions.touching(p) if p.kind == "payload" else p for p in packs.problems]
    problems = [*_format(context), *journal.problems, *_joined(found, versions.problems)]
    if not journal.problems and not packs.problems:
        problems += _index(snapshot, offsets, packs.found_keys, journal.end.offset)
    notes = (*journal.notes, *packs.notes, *_left(context))
    lost = tuple(commit.id for commit in commits.values() if commit.id in versions.lost)
    report = FsckReport(
        tuple(problems),
        notes,
        full,
        journal.count,
        len(commits) + len(journal.lost),
        packs.records,
        len(packs.objects),
        journal.end.offset + packs.checked + versions.recovered,
        len(forgotten & commits.keys()),
        (*lost, *journal.lost),
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


class _Meter:
    """Adds up progress for a callback."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self.total = self._done = 0

    def to(self, done: int, what: str) -> None:
        self._done = done
        self._tell(what)

    def more(self, count: int, what: str) -> None:
        self._done += count
        self._tell(what)

    def _tell(self, what: str) -> None:
        if self._progress is not None:
            self._progress(self._done, max(self._done, self.total), what)


def _joined(damaged: list[Problem], others: list[Problem]) -> list[Problem]:
    """Merges the two problems of an object that has a damaged payload and no other path."""
    position = {
        id_.hex(): at
        for at, p in enumerate(damaged)
        if p.kind == "payload"
        for id_ in p.also or (bytes.fromhex(p.object),)
    }
    covered = [p for p in others if p.kind in {"lost", "manifest"} and p.object in position]
    lost = {position[p.object] for p in covered}
    joined = [
        replace(p, message=f"{p.message}; no other record leads to it") if at in lost else p
        for at, p in enumerate(damaged)
    ]
    return [*joined, *(p for p in others if p not in covered)]


def _left(context: Context) -> Iterator[str]:
    """Notes about leftovers of interrupted work and about the quarantine."""
    fs, folder = context.store.fs, context.store.folder
    files = [name for name in fs.list(folder) if name.startswith(TEMPORARY)]
    if files:
        what = "temporary file" if len(files) == 1 else "temporary files"
        yield f"{len(files)} {what} of interrupted or running work; gc deletes what is left over"
    kept = [identity.size for path in files_in(fs, folder) if (identity := fs.stat(path))]
    if kept:
        what = "1 file" if len(kept) == 1 else f"{len(kept)} files"
        yield f"{folder / QUARANTINE} holds {what} of {sum(kept):,} bytes"


def _pack_bytes(snapshot: Snapshot) -> int:
    folder = snapshot.folder / PACKS
    if snapshot.fs.stat(folder) is None:
        return 0
    sizes = (snapshot.fs.stat(folder / name) for name in snapshot.fs.list(folder))
    return sum(identity.size for identity in sizes if identity is not None)


def _format(context: Context) -> list[Problem]:
    path = context.store.folder / FORMAT
    try:
        read_features(context.store.fs, context.store.folder)
    except MvcError as error:
        return [Problem("format", FORMAT, str(path), error.message)]
    return []


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


_MOST_NAMED = 1000  # versions or tensors listed with one problem


@dataclass
class _Touched:
    """The versions and tensors that use an object."""

    versions: list[CommitId] = field(default_factory=list)
    tensors: list[str] = field(default_factory=list)

    def add(self, commit: CommitId, tensor: str) -> None:
        if commit not in self.versions[-1:] and len(self.versions) < _MOST_NAMED:
            self.versions.append(commit)
        if tensor not in self.tensors and len(self.tensors) < _MOST_NAMED:
            self.tensors.append(tensor)


@dataclass
class VersionCheck:
    """Checks for every version that all its objects can be recovered; ``full``: recovers them.

    ``suspects``: ids of objects with a damaged payload. ``lost``: versions with an object that
    cannot be recovered.
    """

    recovery: Recovery
    stream: ManifestStream
    objects: StorageGraph
    full: bool
    advance: Callable[[int, str], None]
    suspects: set[bytes] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    recovered: int = 0
    lost: set[CommitId] = field(default_factory=set)
    _manifests: dict[ManifestId, list[Commit]] = field(default_factory=dict)
    _touched: dict[bytes, _Touched] = field(default_factory=dict)
    _verdicts: dict[bytes, str] = field(default_factory=dict)
    _buffer: memoryview = field(default_factory=lambda: memoryview(bytearray()))

    def check(self, commits: Iterable[Commit]) -> None:
        """Checks the manifests and objects of all commits."""
        for commit in commits:
            self._manifests.setdefault(commit.manifest, []).append(commit)
        for id_, holders in self._manifests.items():
            manifest = self._load(id_, holders)
            if manifest is None:
                continue
            self._roots(manifest, holders)
            for entry in manifest.entries:
                for blob, spec, name in _blobs(entry):
                    self._blob(blob, spec, f"{entry.path}: {name}", holders)
                if self.full:
                    self._views(entry, holders)
        for blob_, verdict in self._verdicts.items():
            if verdict:
                self._report(blob_, verdict)

    def touching(self, problem: Problem) -> Problem:
        """A payload's problem with the versions and tensors that name its objects."""
        ids = problem.also or (bytes.fromhex(problem.object),)
        uses = [self._touched[id_] for id_ in ids if id_ in self._touched]
        versions = dict.fromkeys(v for use in uses for v in use.versions)
        tensors = dict.fromkeys(t for use in uses for t in use.tensors)
        return replace(problem, versions=tuple(versions), tensors=tuple(tensors))

    def _load(self, id_: ManifestId, holders: list[Commit]) -> Manifest | None:
        for commit in holders if id_ in self.suspects else ():
            self._use(id_, commit.id, "its list of files")
        try:
            if self.objects.reach(id_) is not None:
                return self.stream.load(id_)
            with suppress(DamagedData):
                if self.suspects:  # a damaged payload may still decode to the right bytes
                    return self.stream.load(id_)
            raise DamagedData("no sound record leads to it")
        except DamagedData as error:
            self.lost.update(commit.id for commit in holders)
            ids = tuple(commit.id for commit in holders[:_MOST_NAMED])
            self.problems.append(Problem("manifest", str(id_), "", error.message, ids))
            return None

    def _roots(self, manifest: Manifest, holders: list[Commit]) -> None:
        for commit in holders:
            if commit.root != manifest.root:
                why = f"commit {commit.id.short} has another Merkle root than its files"
                self.problems.append(Problem("manifest", str(commit.id), "", why, (commit.id,)))

    def _blob(self, id_: BlobId, spec: TensorSpec, tensor: str, holders: list[Commit]) -> None:
        verdict = self._verdicts.get(id_)
        if verdict is None:
            verdict = self._verdicts[id_] = self._verdict(id_, spec, tensor)
        if verdict:
            self.lost.update(commit.id for commit in holders)
        if verdict or id_ in self.suspects:
            for commit in holders:
                self._use(id_, commit.id, tensor)

    def _use(self, id_: bytes, commit: CommitId, tensor: str) -> None:
        self._touched.setdefault(id_, _Touched()).add(commit, tensor)

    def _verdict(self, id_: BlobId, spec: TensorSpec, tensor: str) -> str:
        """The message about a damaged object; empty if it is sound."""
        lost = any(self.objects.reach(id_, start) is None for start, _ in pieces(spec))
        if lost and not self.objects.is_whole(id_, spec.nbytes):
            return "" if self._proves_itself(id_, spec) else "no sound record leads to it"
        if not self.full:
            return ""
        if len(self._buffer) < min(PIECE, spec.nbytes):
            self._buffer = memoryview(bytearray(min(PIECE, spec.nbytes)))

        def read(start: int, length: int) -> memoryview:
            part = self._buffer[:length]
            self.recovery.piece(id_, start, part)
            return part

        wrong = DamagedData("it decodes to other bytes than its name says")
        try:
            for _, part in verify_pieces(id_, spec, read, wrong):
                self.recovered += len(part)
                self.advance(len(part), tensor)
        except DamagedData as error:
            return error.message
        return ""

    def _proves_itself(self, id_: BlobId, spec: TensorSpec) -> bool:
        """Whether checkout recovers the object from damaged payloads, as its hash proves."""
        if not self.suspects or spec.nbytes > PIECE:
            return False
        try:
            self.recovery.blob(id_, spec)
        except DamagedData:
            return False
        return True

    def _views(self, entry: FileEntry, holders: list[Commit]) -> None:
        """Checks the ids of tensors that are views into a larger storage."""
        viewed: dict[int, list[LogicalTensor]] = {}
        for tensor in entry.tensors:
            if tensor.view is not None and tensor.id not in self._verdicts:
                viewed.setdefault(tensor.content, []).append(tensor)
        for i, views in sorted(viewed.items()):
            content = entry.contents[i]
            if self._verdicts[content.id]:
                continue
            whole = memoryview(self.recovery.blob(content.id, content.spec))
            for tensor in views:
                if tensor.view is None:
                    continue
                found = blob_id(tensor.spec, extract(whole, tensor.spec, tensor.view))
                wrong = "" if found == tensor.id else "its storage holds other bytes"
                self._verdicts[tensor.id] = wrong
                for commit in holders if wrong else ():
                    self.lost.add(commit.id)
                    self._use(tensor.id, commit.id, f"{entry.path}: {tensor.key}")

    def _report(self, id_: bytes, verdict: str) -> None:
        use = self._touched.get(id_, _Touched())
        lost = verdict.startswith("no sound record")
        self.problems.append(
            Problem(
                "lost" if lost else "content",
                id_.hex(),
                "",
                verdict,
                tuple(use.versions),
                tuple(use.tensors),
            )
        )


def _blobs(entry: FileEntry) -> Iterator[tuple[BlobId, TensorSpec, str]]:
    """Every object of a file with a readable name."""
    names: dict[int, str] = {}
    for tensor in entry.tensors:
        names.setdefault(tensor.content, tensor.key)
    for i, content in enumerate(entry.contents):
        yield content.id, content.spec, names.get(i, "other bytes")
    if entry.skeleton is not None:
        yield entry.skeleton, TensorSpec("raw", (entry.skeleton_size,)), "its skeleton"
