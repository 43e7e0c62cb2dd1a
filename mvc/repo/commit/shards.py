"""Divides a state (a mapping of names to tensors) among the files of a sharded model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from mvc.adapters.state_file import StateFile
from mvc.errors import WrongUsage
from mvc.ids import CommitId
from mvc.model.manifest import FileEntry
from mvc.names import DEFAULT_STATE, check_path, printable
from mvc.repo.checkout.states import DEFAULT_INDEX, SAFETENSORS, index_of, read_index, within
from mvc.repo.lookup import manifests
from mvc.repo.lookup.availability import check_available
from mvc.store.store import Store

NEW_SHARD = 5 * 10**9
"""Maximum number of tensor bytes in one file of a new folder, as in huggingface_hub."""


def divided(
    store: Store, commit: CommitId | None, folder: str, state: Mapping[str, Any]
) -> dict[str, Mapping[str, Any] | StateFile | FileEntry]:
    """Maps paths in ``folder`` to the files of a sharded model: shards and an index.

    A tensor that the version ``commit`` has stays in its file. A new tensor goes to the last file.
    The index maps all tensors to files. Raises WrongUsage if a value is not a tensor, or if a file
    of ``commit`` has another format than safetensors.
    """
    specs, manifest = StateFile.of(state).specs, manifests.of_commit(store, commit)
    if no_tensors := state.keys() - specs.keys():
        name = printable(min(map(str, no_tensors)))
        raise WrongUsage(
            f"{folder} can contain only tensors, but {name} is not a tensor",
            hint="commit other values as a separate file, with states=",
        )
    sizes = {key: specs[key].nbytes for key in state}
    index, document, before = index_of(manifest, folder), dict[str, Any](), dict[str, str]()
    if commit is not None and index is not None:
        check_available(store, commit, [index])
        document = read_index(store, index)
        before = document["weight_map"]
    elif any(entry.tensors for entry in manifest.directly_in(folder)):
        only = manifest.file(folder)
        before = dict.fromkeys((t.key for t in only.tensors), PurePosixPath(only.path).name)
    last = max(before.values(), default=None)
    first = _first_places(sizes) if last is None else {}
    places = {key: before.get(key) or last or first[key] for key in state}
    names = (*before.values(), *places.values())
    shards = {check_path(within(folder, name)): dict[str, Any]() for name in names}
    for key, name in places.items():
        shards[within(folder, name)][key] = state[key]
    files: dict[str, Mapping[str, Any] | StateFile | FileEntry] = {}
    for path, shard in shards.items():
        if path in manifest.by_path and manifest.by_path[path].format not in SAFETENSORS:
            raise WrongUsage(
                f"{path} is not a safetensors file, so it cannot store a state",
                hint="name another folder, or commit the files themselves",
            )
        files[path] = shard
    if index is not None or len(files) > 1:
        old = document.get("metadata")
        metadata = {**(old if isinstance(old, dict) else {}), "total_size": sum(sizes.values())}
        new = {**document, "metadata": metadata, "weight_map": places}
        text = json.dumps(new, indent=2, sort_keys=True) + "\n"  # the format of transformers
        path = within(folder, DEFAULT_INDEX) if index is None else index.path
        same = index if new == document else None
        files[path] = same or StateFile.of_bytes(text.encode())
    return files


def _first_places(sizes: Mapping[str, int]) -> dict[str, str]:
    """Maps tensors to the files of a new folder. A file is filled before the next file begins."""
    numbers, filled, number = dict[str, int](), 0, 1
    for key, size in sizes.items():
        if filled and filled + size > NEW_SHARD:
            filled, number = 0, number + 1
        numbers[key], filled = number, filled + size
    if number == 1:
        return dict.fromkeys(sizes, DEFAULT_STATE)
    name = DEFAULT_STATE.replace(".", "-{:05}-of-{:05}.")
    return {key: name.format(at, number) for key, at in numbers.items()}
