"""Loading manifests: by commit, verified, the last few kept."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from mvc.ids import CommitId, ManifestId
from mvc.model.manifest import Manifest
from mvc.repo.commits import get as get_commit
from mvc.repo.context import Context

__all__ = ["EMPTY", "load", "of_commit"]

EMPTY = Manifest(())
_KEPT = 16
_kept: OrderedDict[ManifestId, Manifest] = OrderedDict()
_lock = Lock()


def load(context: Context, id_: ManifestId) -> Manifest:
    """The manifest with this id. Values are immutable, so all repositories share the cache."""
    with _lock:
        if (found := _kept.get(id_)) is not None:
            _kept.move_to_end(id_)
            return found
    found = Manifest.decode(context.store.recovery.manifest(id_))
    remember(id_, found)
    return found


def remember(id_: ManifestId, manifest: Manifest) -> None:
    """Keeps a manifest that was just made or read."""
    with _lock:
        _kept[id_] = manifest
        if len(_kept) > _KEPT:
            _kept.popitem(last=False)


def of_commit(context: Context, id_: CommitId | None) -> Manifest:
    """The paths of a version; none for no version."""
    if id_ is None:
        return EMPTY
    return load(context, get_commit(context, id_).manifest)
