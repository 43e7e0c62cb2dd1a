"""Reads an attachment of a version, such as the source code of the model.

An attachment has a name, and is bytes or a state (nested mappings and lists of tensors and values).
"""

from __future__ import annotations

from typing import Any

from mvc.errors import DamagedData, UnknownPath
from mvc.ids import CommitId
from mvc.limits import MAX_ATTACHED_BYTES
from mvc.names import ATTACHED, attached_path, printable
from mvc.repo.content.contents import StoredBytes, state_of
from mvc.repo.lookup import manifests
from mvc.store.store import Store


def read(store: Store, commit: CommitId, name: str) -> Any:
    """Reads and verifies an attachment. Returns the bytes or the state that was committed.

    Raises UnknownPath if the version has no attachment of this name; DamagedData if the attachment
    is damaged or larger than ``MAX_ATTACHED_BYTES``.
    """
    manifest = manifests.of_commit(store, commit)
    entry = manifest.attached_by_path.get(attached_path(name))
    if entry is None:
        names = ", ".join(e.path.removeprefix(ATTACHED) for e in manifest.attached[:10])
        raise UnknownPath(
            f"version {commit.short} has no attachment {printable(name)}",
            hint=f"available: {names}" if names else "it has no attachments",
        )
    if entry.format != "opaque":
        return state_of(store.recovery, entry)
    if entry.size > MAX_ATTACHED_BYTES:
        raise DamagedData(f"{printable(name)} of version {commit.short} has {entry.size} bytes")
    return StoredBytes(store.recovery, entry).read(0, entry.size)
