"""Loads and verifies manifests. A manifest lists the files and tensors of a version.

The 16 most recently used manifests are cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from threading import Lock

from mvc.ids import CommitId, ManifestId
from mvc.model.manifest import FileEntry, Manifest
from mvc.model.tensor import TensorSpec
from mvc.repo.lookup.availability import check_stored, forgotten
from mvc.repo.lookup.commits import get as get_commit
from mvc.store.store import Store

EMPTY = Manifest(())
_MOST = 16
_cache: OrderedDict[ManifestId, Manifest] = OrderedDict()
_lock = Lock()


def load(store: Store, id_: ManifestId) -> Manifest:
    """The manifest with this id, from the cache or the store. Raises DamagedData.

    All repositories of the process share the cache.
    """
    with _lock:
        if (cached := _cache.get(id_)) is not None:
            _cache.move_to_end(id_)
            return cached
    manifest = Manifest.decode(store.recovery.manifest(id_))
    remember(id_, manifest)
    return manifest


def remember(id_: ManifestId, manifest: Manifest) -> None:
    """Adds a manifest to the cache."""
    with _lock:
        _cache[id_] = manifest
        if len(_cache) > _MOST:
            _cache.popitem(last=False)


def clear_caches() -> None:
    """Empties the cache of manifests."""
    with _lock:
        _cache.clear()


def of_commit(store: Store, id_: CommitId | None) -> Manifest:
    """The manifest of the version ``id_``. If ``id_`` is None, an empty manifest.

    Raises UnknownRevision, StateForgotten, DamagedData.
    """
    if id_ is None:
        return EMPTY
    commit = get_commit(store.snapshot, id_)
    check_stored(store, id_)
    return load(store, commit.manifest)


def if_stored(store: Store, id_: CommitId) -> Manifest | None:
    """As ``of_commit``, but returns None if the state is absent."""
    return None if forgotten(store, id_) is not None else of_commit(store, id_)


def objects(entries: Iterable[FileEntry], without: Collection[str] = ()) -> dict[bytes, TensorSpec]:
    """Maps the id of each stored object of these files to its spec (dtype and shape).

    The objects of a file are its tensors and its skeleton (all bytes outside of tensors, with the
    dtype ``raw``). ``without``: paths of files whose tensors were dropped. Of these files, only the
    skeletons are included.
    """
    specs: dict[bytes, TensorSpec] = {}
    for entry in entries:
        if entry.path not in without:
            specs.update((content.id, content.spec) for content in entry.contents)
        if entry.skeleton is not None:
            specs[entry.skeleton] = TensorSpec("raw", (entry.skeleton_size,))
    return specs


def positions(manifest: Manifest, paths: Collection[str]) -> list[int]:
    """The indices of the tensors of the files ``paths`` in the list of all objects of a version.

    The list has, file by file, first the tensors and then the skeleton (as ``manifest.Shape``).
    """
    indices: list[int] = []
    at = 0
    for entry in manifest.all_entries:
        if entry.path in paths:
            indices += range(at, at + len(entry.contents))
        at += len(entry.contents) + (entry.skeleton is not None)
    return indices
