"""Reads what a version carries beside its files: bytes and states by name."""

from __future__ import annotations

from typing import Any

from mvc.errors import DamagedData, UnknownPath
from mvc.ids import CommitId
from mvc.limits import MAX_ATTACHED_BYTES
from mvc.model.manifest import FileEntry
from mvc.names import ATTACHED, attached_path, printable
from mvc.repo.content.contents import StoredBytes, state_of
from mvc.repo.context import Context
from mvc.repo.lookup import manifests


def names(context: Context, commit: CommitId) -> list[str]:
    """What a version carries, in order. Raises UnknownRevision, StateForgotten, DamagedData."""
    found = manifests.of_commit(context, commit).attached
    return [entry.path.removeprefix(ATTACHED) for entry in found]


def read(context: Context, commit: CommitId, name: str) -> bytes:
    """The bytes of what a version carries under ``name``, verified.

    Raises UnknownPath if it carries no such bytes, and DamagedData also where they are longer
    than any that are committed.
    """
    entry = _entry(context, commit, name)
    if entry.format != "opaque":
        raise UnknownPath(f"what version {commit.short} carries as {printable(name)} is a state")
    if entry.size > MAX_ATTACHED_BYTES:
        raise DamagedData(f"{printable(name)} of version {commit.short} has {entry.size} bytes")
    return StoredBytes(context.store.recovery, entry).read(0, entry.size)


def state(context: Context, commit: CommitId, name: str) -> Any:
    """The state that a version carries under ``name``, as it was given.

    Raises UnknownPath if it carries no such state, DamagedData.
    """
    entry = _entry(context, commit, name)
    if entry.format == "opaque":
        raise UnknownPath(f"what version {commit.short} carries as {printable(name)} is no state")
    return state_of(context.store.recovery, entry)


def _entry(context: Context, commit: CommitId, name: str) -> FileEntry:
    found = manifests.of_commit(context, commit).attached_by_path.get(attached_path(name))
    if found is None:
        carried = ", ".join(names(context, commit)[:10])
        raise UnknownPath(
            f"version {commit.short} carries no {printable(name)}",
            hint=f"it carries {carried}" if carried else "it carries nothing beside its files",
        )
    return found
