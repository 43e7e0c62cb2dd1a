"""A preview of forgetting: what would be deleted, what other versions keep, what it frees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from mvc.errors import DamagedData
from mvc.ids import CommitId, ManifestId
from mvc.model.commit import Commit
from mvc.model.manifest import Manifest
from mvc.repo.context import Context, Progress
from mvc.repo.gc.gc import DEFAULT_GRACE, Collection, plan_collection
from mvc.repo.lookup import manifests
from mvc.repo.maintenance.inventory import Inventory, inventory
from mvc.repo.maintenance.reachable import reachable
from mvc.repo.retention import rules
from mvc.repo.retention.forget import Chosen

__all__ = ["ForgetPreview", "preview"]


@dataclass(frozen=True)
class ForgetPreview:
    """``tensors`` would be deleted; ``shared`` ones stay, because other versions have them.
    Likewise ``files`` and ``shared_files`` for files without tensors.

    ``same``: by chosen version, versions that stay and have the same content. ``live``: by
    chosen version, the targets it is live on. ``collection``: what the next ``gc`` would do,
    None if the repository is damaged; then the counts hold for what is sound.
    """

    tensors: int
    shared: int
    files: int
    shared_files: int
    same: Mapping[CommitId, tuple[CommitId, ...]]
    live: Mapping[CommitId, tuple[str, ...]]
    collection: Collection | None


def preview(
    context: Context,
    chosen: Chosen,
    *,
    grace: timedelta = DEFAULT_GRACE,
    progress: Progress | None = None,
) -> ForgetPreview:
    """Reads every manifest, and a sample of the tensors that would be encoded again."""
    going, going_files = set[bytes](), set[bytes]()
    found = inventory(context.store.snapshot)
    for commit in chosen.commits:
        manifest = _loaded(context, found, commit.manifest)
        going.update(_tensors(manifest))
        going_files.update(_files(manifest))
    kept, kept_files = set[bytes](), set[bytes]()
    holders: dict[bytes, list[CommitId]] = {}
    collection: Collection | None = None
    try:
        cutoff = context.store.now_ns() - round(grace.total_seconds() * 1e9)
        reach = reachable(context, found, cutoff, forget=chosen.marks)
        for id_ in reach.states:
            commit = reach.commits[id_]
            holders.setdefault(_content(commit), []).append(id_)
        for manifest_id in reach.manifests:
            manifest = manifests.load(context, manifest_id)
            kept.update(_tensors(manifest))
            kept_files.update(_files(manifest))
        collection = plan_collection(context, grace=grace, forget=chosen.marks, progress=progress)
    except DamagedData:
        pass
    live = rules.live_now(context)
    return ForgetPreview(
        len(going - kept),
        len(going & kept),
        len(going_files - kept_files),
        len(going_files & kept_files),
        {
            commit.id: tuple(holders[_content(commit)])
            for commit in chosen.commits
            if _content(commit) in holders
        },
        {c.id: tuple(live[c.id]) for c in chosen.commits if c.id in live},
        collection,
    )


def _tensors(manifest: Manifest) -> Iterator[bytes]:
    return (tensor.id for entry in manifest.entries for tensor in entry.tensors)


def _files(manifest: Manifest) -> Iterator[bytes]:
    """Files without tensors, by all of their bytes."""
    return (entry.content_id for entry in manifest.entries if not entry.tensors)


def _content(commit: Commit) -> bytes:
    """Identifies the content of a version; without tensors by every byte of its files."""
    return commit.manifest if commit.root == manifests.EMPTY.root else commit.root


def _loaded(context: Context, found: Inventory, id_: ManifestId) -> Manifest:
    """A manifest; empty if it is deleted or damaged."""
    if id_ not in found.codings:
        return manifests.EMPTY
    try:
        return manifests.load(context, id_)
    except DamagedData:
        return manifests.EMPTY
