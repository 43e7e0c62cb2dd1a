"""The part of ``mvc fsck`` that checks versions.

Each version has a manifest: the list of its files. fsck checks every manifest, and the objects that
the manifest names: tensors and other contents of files. With ``full``, fsck recovers and hashes all
objects. Without ``full``, fsck checks only whether undamaged data are stored for each object.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Set
from contextlib import suppress

import numpy as np
from msgspec import Struct, field

from mvc.adapters.views import extract
from mvc.errors import DamagedData
from mvc.ids import BlobId, CommitId, ManifestId
from mvc.limits import PIECE
from mvc.maintenance.graph import StorageGraph
from mvc.maintenance.report import Problem
from mvc.model.commit import Commit
from mvc.model.hashing import blob_id, pieces, verify_pieces
from mvc.model.manifest import FileEntry, LogicalTensor, Manifest, View
from mvc.model.tensor import TensorSpec
from mvc.repo.lookup.manifest_stream import ManifestStream
from mvc.store.recovery.recover import Recovery, Request

# Limit of bytes of cached objects, and of the objects that ``recover`` decodes for one file.
_CACHE = 512 << 20
_MOST_NAMED = 1000  # the most versions, and the most tensors, that one problem lists
_NO_RECORD = "no sound record can recover it"


class ObjectCheck(Struct):
    """Checks whether objects can be recovered. ``full``: recovers them and compares the hashes.

    ``sound``: finds the objects that undamaged payloads (stored data) recover. ``suspects``:
    objects with a damaged payload, which may still decode to the right bytes. ``verdicts``: maps an
    object to its problem, or to "" if the object is sound.
    """

    recovery: Recovery
    sound: StorageGraph
    suspects: Set[bytes]
    full: bool
    report: Callable[[int, str], None]  # number of recovered bytes, and the object's name
    verdicts: dict[bytes, str] = field(default_factory=dict)
    _buffer: memoryview = field(default_factory=lambda: memoryview(bytearray()))
    _cache: dict[bytes, memoryview] = field(default_factory=dict)  # in the order of use

    def verdict(self, id_: BlobId, spec: TensorSpec, name: str) -> str:
        """The problem of an object; empty if it is sound. Checks each object once."""
        if id_ not in self.verdicts:
            self.verdicts[id_] = self._examine(id_, spec, name)
        return self.verdicts[id_]

    def _examine(
        self, id_: BlobId, spec: TensorSpec, name: str, out: memoryview | None = None
    ) -> str:
        """As ``verdict``, without the cache. ``out``: gets the object's bytes if ``full``."""
        if not self._is_reached(id_, spec):
            return "" if self._proves_itself(id_, spec) else _NO_RECORD
        if not self.full:
            return ""
        if out is None and len(self._buffer) < min(PIECE, spec.nbytes):
            self._buffer = memoryview(bytearray(min(PIECE, spec.nbytes)))

        def read(start: int, length: int) -> memoryview:
            part = self._buffer[:length] if out is None else out[start : start + length]
            self.recovery.piece(id_, start, part)
            return part

        wrong = DamagedData("it decodes to other bytes than its hash says")
        try:
            for _, part in verify_pieces(id_, spec, read, wrong):
                self.report(len(part), name)
        except DamagedData as error:
            return error.message
        return ""

    def _is_reached(self, id_: BlobId, spec: TensorSpec) -> bool:
        """Whether undamaged payloads are enough to recover every piece of an object."""
        return all(self.sound.reach(id_, start) is not None for start, _ in pieces(spec))

    def _proves_itself(self, id_: BlobId, spec: TensorSpec) -> bool:
        """Whether damaged payloads still decode to bytes that have the object's hash."""
        if not self.suspects or spec.nbytes > PIECE:
            return False
        with suppress(DamagedData):
            self.recovery.blob(id_, spec)
            return True
        return False

    def recover(self, entry: FileEntry) -> None:
        """Recovers the objects of a file, and caches them for the next version of the file.

        The next version then needs only one delta, not all deltas since the last full record. If
        the recovery fails, ``_examine`` finds the damaged objects.
        """
        requests: list[Request] = []
        names: dict[bytes, str] = {}
        remaining = _CACHE
        for id_, spec, name in named_blobs(entry):
            remaining -= spec.nbytes
            if remaining < 0:
                break
            if id_ in self._cache:
                self._cache[id_] = self._cache.pop(id_)
            elif id_ not in self.verdicts and id_ not in names and self._is_reached(id_, spec):
                requests.append(Request(id_, spec, np.empty(spec.nbytes, np.uint8).data))
                names[id_] = name
        failed = not self.recovery.fill_from(self._cache, requests)
        for request in requests:
            verdict = ""
            if failed:
                verdict = self._examine(
                    BlobId(request.id), request.spec, names[request.id], request.out
                )
            else:
                self.report(request.spec.nbytes, names[request.id])
            self.verdicts[request.id] = verdict
            if not verdict:
                self._cache[request.id] = request.out
        size = sum(map(len, self._cache.values()))
        while size > _CACHE:
            size -= len(self._cache.pop(next(iter(self._cache))))

    def wrong_views(self, entry: FileEntry) -> Iterator[LogicalTensor]:
        """Yields damaged views. A view is a tensor that is stored as a part of a larger storage.
        It is damaged if this part does not have the tensor's hash.
        """
        viewed: dict[int, list[tuple[LogicalTensor, View]]] = {}
        for tensor in entry.tensors:
            if tensor.view is not None and tensor.id not in self.verdicts:
                viewed.setdefault(tensor.content, []).append((tensor, tensor.view))
        for i, views in sorted(viewed.items()):
            content = entry.contents[i]
            if self.verdicts[content.id]:
                continue
            cached = self._cache.get(content.id)
            whole = cached or memoryview(self.recovery.blob(content.id, content.spec))
            for tensor, view in views:
                sound = blob_id(tensor.spec, extract(whole, tensor.spec, view)) == tensor.id
                self.verdicts[tensor.id] = "" if sound else "its storage has other bytes"
                if not sound:
                    yield tensor


class VersionCheck(Struct):
    """Checks for every version whether all its objects can be recovered.

    ``lost``: versions with an object that cannot be recovered.
    """

    objects: ObjectCheck
    stream: ManifestStream
    problems: list[Problem] = field(default_factory=list)
    lost: set[CommitId] = field(default_factory=set)
    # maps a damaged object to the versions and the tensors that use it
    _affected: dict[bytes, tuple[dict[CommitId, None], dict[str, None]]] = field(
        default_factory=dict
    )

    def check(
        self, commits: Iterable[Commit], dropped: Mapping[ManifestId, Container[str]]
    ) -> None:
        """Checks the manifests and objects of ``commits``.

        ``dropped``: maps a manifest to the paths of files with dropped weights. For such a file,
        only the skeleton (the bytes outside the tensors) is stored and checked.
        """
        holders: dict[ManifestId, list[Commit]] = {}
        for commit in commits:
            holders.setdefault(commit.manifest, []).append(commit)
        for id_, versions in holders.items():
            manifest = self._manifest(id_, versions)
            for entry in () if manifest is None else manifest.all_entries:
                self._file(entry, versions, dropped=entry.path in dropped.get(id_, ()))
        for object_, verdict in self.objects.verdicts.items():
            if verdict:
                kind = "lost" if verdict == _NO_RECORD else "content"
                affected, tensors = self.uses([object_])
                self.problems.append(
                    Problem(kind, object_.hex(), "", verdict, versions=affected, tensors=tensors)
                )

    def uses(self, ids: Iterable[bytes]) -> tuple[tuple[CommitId, ...], tuple[str, ...]]:
        """The versions and tensors that use the damaged objects: at most 1000 per object."""
        uses = [self._affected[id_] for id_ in ids if id_ in self._affected]
        versions = dict.fromkeys(version for use in uses for version in use[0])
        tensors = dict.fromkeys(tensor for use in uses for tensor in use[1])
        return tuple(versions), tuple(tensors)

    def _use(self, id_: bytes, tensor: str, holders: list[Commit]) -> None:
        versions, tensors = self._affected.setdefault(id_, ({}, {}))
        for commit in holders:
            if len(versions) < _MOST_NAMED:
                versions[commit.id] = None
        if len(tensors) < _MOST_NAMED:
            tensors[tensor] = None

    def _manifest(self, id_: ManifestId, holders: list[Commit]) -> Manifest | None:
        """Reads a manifest. Returns None if it is lost.

        Checks that every commit in ``holders`` has the manifest's Merkle root.
        """
        if id_ in self.objects.suspects:
            self._use(id_, "its list of files", holders)
        try:
            manifest = self._load(id_)
        except DamagedData as error:
            self.lost.update(commit.id for commit in holders)
            ids = tuple(commit.id for commit in holders[:_MOST_NAMED])
            self.problems.append(Problem("manifest", str(id_), "", error.message, versions=ids))
            return None
        for commit in holders:
            if commit.root != manifest.root:
                why = f"commit {commit.id.short} has another Merkle root than its files"
                name = str(commit.id)
                self.problems.append(Problem("manifest", name, "", why, versions=(commit.id,)))
        return manifest

    def _load(self, id_: ManifestId) -> Manifest:
        if self.objects.sound.reach(id_) is not None:
            return self.stream.load(id_)
        with suppress(DamagedData):
            if self.objects.suspects:  # a damaged payload may still decode to the right bytes
                return self.stream.load(id_)
        raise DamagedData(_NO_RECORD)

    def _file(self, entry: FileEntry, holders: list[Commit], *, dropped: bool) -> None:
        """Checks the objects of a file. ``dropped``: whether its weights are dropped."""
        decode = self.objects.full and not dropped
        if decode:
            self.objects.recover(entry)
        for id_, spec, name in named_blobs(entry):
            if dropped and id_ != entry.skeleton:
                continue
            verdict = self.objects.verdict(id_, spec, name)
            if verdict:
                self.lost.update(commit.id for commit in holders)
            if verdict or id_ in self.objects.suspects:
                self._use(id_, name, holders)
        for tensor in self.objects.wrong_views(entry) if decode else ():
            self.lost.update(commit.id for commit in holders)
            self._use(tensor.id, f"{entry.path}: {tensor.key}", holders)


def named_blobs(entry: FileEntry) -> Iterator[tuple[BlobId, TensorSpec, str]]:
    """Yields the id, spec and readable name (``path: key``) of each object of a file."""
    keys: dict[int, str] = {}
    for tensor in entry.tensors:
        keys.setdefault(tensor.content, tensor.key)
    for i, content in enumerate(entry.contents):
        yield content.id, content.spec, f"{entry.path}: {keys.get(i, 'other bytes')}"
    if entry.skeleton is not None:
        skeleton = TensorSpec("raw", (entry.skeleton_size,))
        yield entry.skeleton, skeleton, f"{entry.path}: its skeleton"
