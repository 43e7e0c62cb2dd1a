"""fsck, versions: every manifest and object that a commit names, and what damage touches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from mvc.adapters.views import extract
from mvc.errors import DamagedData
from mvc.ids import BlobId, CommitId, ManifestId
from mvc.limits import SLAB
from mvc.model.commit import Commit
from mvc.model.hashing import BlobHasher, blob_id
from mvc.model.manifest import FileEntry, LogicalTensor, Manifest
from mvc.model.tensor import TensorSpec
from mvc.repo.content.hashing import pieces
from mvc.repo.lookup.manifest_stream import ManifestStream
from mvc.repo.maintenance.report import Problem
from mvc.repo.maintenance.storage_graph import StorageGraph
from mvc.store.recovery.recover import Recovery

__all__ = ["VersionCheck"]

_MOST_NAMED = 1000  # versions or tensors listed with one problem


@dataclass
class _Touched:
    """Where an object is used."""

    versions: list[CommitId] = field(default_factory=list)
    tensors: list[str] = field(default_factory=list)

    def add(self, commit: CommitId, tensor: str) -> None:
        if commit not in self.versions[-1:] and len(self.versions) < _MOST_NAMED:
            self.versions.append(commit)
        if tensor not in self.tensors and len(self.tensors) < _MOST_NAMED:
            self.tensors.append(tensor)


@dataclass
class VersionCheck:
    """Asks of every version whether all it names can be recovered; ``full``: and recovers it.

    ``lost``: the versions of which something cannot be.
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
        """``suspects`` are ids whose uses are to be listed, damaged in some record."""
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
                if self.suspects:  # a damaged payload may decode to what it must all the same
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
        """What is wrong with an object; empty if nothing is."""
        lost = any(self.objects.reach(id_, start) is None for start, _ in pieces(spec))
        if lost and not self.objects.is_whole(id_, spec.nbytes):
            return "" if self._proves_itself(id_, spec) else "no sound record leads to it"
        if not self.full:
            return ""
        if len(self._buffer) < min(SLAB, spec.nbytes):
            self._buffer = memoryview(bytearray(min(SLAB, spec.nbytes)))
        hasher = BlobHasher(spec, parallel=True)
        try:
            for start, length in pieces(spec):
                part = self._buffer[:length]
                self.recovery.piece(id_, start, part)
                hasher.update(part)
        except DamagedData as error:
            return error.message
        self.recovered += spec.nbytes
        self.advance(spec.nbytes, tensor)
        return "" if hasher.done() == id_ else "it decodes to other bytes than its name says"

    def _proves_itself(self, id_: BlobId, spec: TensorSpec) -> bool:
        """Whether checkout gets the object out of damaged payloads, as its hash shows."""
        if not self.suspects or spec.nbytes > SLAB:
            return False
        try:
            self.recovery.blob(id_, spec)
        except DamagedData:
            return False
        return True

    def _views(self, entry: FileEntry, holders: list[Commit]) -> None:
        """Tensors that are read out of a larger storage have ids of their own."""
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
    """Every object of a file and a name for people."""
    names: dict[int, str] = {}
    for tensor in entry.tensors:
        names.setdefault(tensor.content, tensor.key)
    for i, content in enumerate(entry.contents):
        yield content.id, content.spec, names.get(i, "other bytes")
    if entry.skeleton is not None:
        yield entry.skeleton, TensorSpec("raw", (entry.skeleton_size,)), "its skeleton"
