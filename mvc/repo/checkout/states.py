"""Loads tensors of a version into memory: from one file, or from all shards of a sharded model.

A sharded model is a folder, as Hugging Face writes it: several files with tensors (the shards), and
an index (``model.safetensors.index.json``) that maps the name of each tensor to a file.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

from mvc.adapters.python.state import values
from mvc.errors import BadModelFile, UnknownPath
from mvc.ids import CommitId
from mvc.limits import MAX_SAFETENSORS_HEADER
from mvc.model.manifest import FileEntry, Manifest
from mvc.names import DEFAULT_STATE, printable
from mvc.repo.content.contents import in_memory, state_of
from mvc.repo.lookup import manifests
from mvc.repo.lookup.availability import check_available
from mvc.store.store import Store

SAFETENSORS = frozenset({"safetensors", "state"})
"""Formats that are stored as safetensors. ``state``: the format of states from Python."""
_INDEX = ".index.json"
DEFAULT_INDEX = DEFAULT_STATE + _INDEX


def load_state(store: Store, commit: CommitId, path: str | None = None) -> Any:
    """Loads the file ``path`` of a version. Without ``path``, loads the version's model.

    Returns {name: tensor} for a model file, and the original nested value for a state that was
    committed from Python. If ``path`` is the folder or the index of a sharded model, returns the
    tensors of all shards. Raises UnknownRevision, UnknownPath, BadModelFile, StateForgotten,
    WeightsDropped, DamagedData.
    """
    manifest = manifests.of_commit(store, commit)
    index = index_of(manifest, path)
    if index is not None:
        return _joined(store, commit, manifest, index)
    entry = manifest.file(path)
    check_available(store, commit, [entry])
    return state_of(store.recovery, entry)


def within(folder: str | None, name: str) -> str:
    """The path of the file ``name`` in ``folder``. None means the version's top folder."""
    return str(PurePosixPath(folder or ".", name))


def index_of(manifest: Manifest, path: str | None) -> FileEntry | None:
    """The index file of the sharded model ``path``. None if ``path`` is not a sharded model."""
    if path is not None and path in manifest.by_path:
        return manifest.by_path[path] if path.endswith(_INDEX) else None
    if path is None and sum(bool(e.tensors) for e in manifest.entries) < 2:
        return None
    inside = manifest.directly_in(path or ".")
    indexes = {e.path: e for e in inside if e.path.endswith(_INDEX)}
    whole = within(path, DEFAULT_STATE)
    if not indexes or whole in manifest.by_path:
        return None
    default = within(path, DEFAULT_INDEX)
    if len(indexes) > 1 and default not in indexes:
        raise UnknownPath(
            f"{path or 'the version'} has several indexes: {', '.join(indexes)}",
            hint="name one of them",
        )
    return indexes.get(default) or next(iter(indexes.values()))


def _joined(store: Store, commit: CommitId, manifest: Manifest, index: FileEntry) -> dict[str, Any]:
    """Loads the tensors that an index names, in the order of the index."""
    shard_of = read_index(store, index)["weight_map"]
    shards: dict[str, list[str]] = {}
    for key, name in shard_of.items():
        shards.setdefault(within(str(PurePosixPath(index.path).parent), name), []).append(key)
    tensors: dict[str, Any] = {}
    for path, keys in shards.items():
        entry = manifest.by_path.get(path)
        if entry is None:
            raise UnknownPath(
                f"the version lacks the shard {printable(path)} that {index.path} names",
                hint="commit the whole folder of a sharded model",
            )
        check_available(store, commit, [entry])
        wanted = set(keys)
        contents = in_memory(
            store.recovery, entry, {t.content for t in entry.tensors if t.key in wanted}
        )
        tensors |= values(entry, contents.__getitem__, keys, "torch")
    return {key: tensors[key] for key in shard_of}


def read_index(store: Store, index: FileEntry) -> dict[str, Any]:
    """The parsed JSON of an index: ``weight_map`` maps tensors to files. Raises BadModelFile."""
    wrong = BadModelFile(
        f"{index.path} is not the index of a sharded model",
        hint='it needs a "weight_map" from tensor names to files; or name one of the files',
    )
    if index.size > MAX_SAFETENSORS_HEADER:
        raise wrong
    data = b"".join(in_memory(store.recovery, index).values())
    try:
        document: dict[str, Any] = json.loads(data)
        names = document["weight_map"].values()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise wrong from None
    if not all(isinstance(name, str) for name in names):
        raise wrong
    return document
