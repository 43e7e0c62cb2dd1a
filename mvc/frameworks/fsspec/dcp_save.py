"""A checkpoint of torch.distributed.checkpoint becomes one commit of logical tensors.

Ranks write their shards one by one, and the last thing of all is that the coordinator
renames ``.metadata.tmp``. Until then everything waits in the repository's folder; then the
shards are put together and committed as the nested state that was saved.
"""

from __future__ import annotations

import io
import re
from contextlib import ExitStack
from typing import Any

import numpy as np

from mvc.adapters.files.pickle_nodes import Dict, read_pickle
from mvc.adapters.files.zip_layout import read_members
from mvc.adapters.parsed import Source, read_exactly
from mvc.adapters.structure import MAX_DEPTH
from mvc.errors import BadModelFile, MvcError, UnsupportedTensor
from mvc.frameworks.fsspec.dcp_metadata import Record, Saved, read_metadata
from mvc.frameworks.fsspec.dcp_shards import record_source, whole
from mvc.frameworks.fsspec.dcp_staging import METADATA, Staging
from mvc.frameworks.fsspec.write import Planned, check_place, keep
from mvc.limits import MAX_PICKLE
from mvc.model.manifest import Manifest
from mvc.repo.commit.inputs import of_state
from mvc.repo.commit.request import Change

__all__ = ["OBJECTS", "STATE", "finish", "inside"]

STATE = "model.safetensors"
"""What the tensors and plain values of a checkpoint are called in its folder."""

OBJECTS = "model.objects.safetensors"
"""Whatever else it holds: for each name the bytes that ``torch.save`` made, unopened."""

_SHARD = re.compile(r"__[0-9]+_[0-9]+\.distcp")


def inside(folder: str, name: str) -> str:
    """The path of ``name`` in a folder of the version."""
    return f"{folder}/{name}" if folder else name


def finish(staging: Staging, parent: Manifest) -> None:
    """Makes the commit out of what was staged.

    Raises BadModelFile, UnsupportedTensor; then nothing was committed.
    """
    folder = staging.folder
    for name in (STATE, OBJECTS):
        check_place(parent, inside(folder, name))
    saved = read_metadata(staging.read(f"{METADATA}.tmp", MAX_PICKLE))
    with ExitStack() as held:
        files = _open_shards(staging, saved, held)
        plain, other = _objects(saved, files)
        leaves: dict[str, Any] = {n: whole(n, t, files) for n, t in saved.tensors.items()}
        state = _nested({saved.paths[name]: value for name, value in (leaves | plain).items()})
        changes = [of_state(state, inside(folder, STATE), None)]
        if other:
            changes.append(of_state(other, inside(folder, OBJECTS), None))
        elif inside(folder, OBJECTS) in parent.by_path:
            changes.append(Change(inside(folder, OBJECTS), None))
        message = f"checkpoint {folder}" if folder else "checkpoint"
        keep([Planned(staging.opened, staging.branch, tuple(changes), message)])
    staging.drop()


def _open_shards(staging: Staging, saved: Saved, held: ExitStack) -> dict[str, Source]:
    records = [c.record for t in saved.tensors.values() for c in t.chunks]
    files: dict[str, Source] = {}
    for name in sorted({r.file for r in (*records, *saved.objects.values())}):
        if not _SHARD.fullmatch(name):
            raise BadModelFile(f".metadata names a file that is no shard: {name[:100]!r}")
        if not staging.holds(name):
            raise BadModelFile(
                f"the shard {name} was not written to this repository",
                hint="all ranks need the same repository: on several machines, a folder "
                "that they share",
            )
        files[name] = held.enter_context(staging.open_read(name))
    return files


def _objects(
    saved: Saved, files: dict[str, Source]
) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """What is no tensor: plain values as themselves, all else as its bytes."""
    plain: dict[str, Any] = {}
    other: dict[str, np.ndarray[Any, Any]] = {}
    for name, record in saved.objects.items():
        data = _bytes(files, record)
        try:
            plain[name] = plain_value(data)
        except (MvcError, TypeError, ValueError):
            other[name] = np.frombuffer(data, np.uint8)
    return plain, other


def _bytes(files: dict[str, Source], record: Record) -> bytes:
    source = record_source(files, record)
    out = bytearray(record.length)
    read_exactly(source, record.file, 0, memoryview(out))
    return bytes(out)


def plain_value(data: bytes) -> Any:
    """The number, text, list, tuple or dictionary that ``torch.save`` wrote.

    Read without running it, and saved again to see that it is the same to the last byte:
    MvcError, TypeError or ValueError if it is not.
    """
    source = _Bytes(data)
    members = {m.name.partition("/")[2]: m for m in read_members(source, "an object")}
    pickle = members.get("data.pkl")
    if pickle is None or not pickle.stored or any(n.startswith("data/") for n in members):
        raise BadModelFile("an object that holds tensors")
    text = data[pickle.start : pickle.start + pickle.size]
    value = _Plain(len(text)).value(read_pickle(text))
    again = saved_bytes(value)
    for member in read_members(_Bytes(again), "an object"):
        here = again[member.start : member.start + member.size]
        if member.name.endswith("/data.pkl") and here == text:
            return value
    raise UnsupportedTensor("an object that is not what it seems to be")


def saved_bytes(value: Any) -> bytes:
    """What ``torch.save`` makes of a value."""
    import torch

    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


class _Plain:
    """Nodes of a pickle as the values that they are; ``budget`` bounds shared containers."""

    def __init__(self, budget: int) -> None:
        self._budget = budget

    def value(self, node: Any, depth: int = 0) -> Any:
        self._budget -= 1
        if depth > MAX_DEPTH or self._budget < 0:
            raise BadModelFile("an object that is nested too deeply")
        if node is None or type(node) in {bool, int, float, str, bytes}:
            return node
        if isinstance(node, (list, tuple)):
            return type(node)(self.value(n, depth + 1) for n in node)
        if isinstance(node, Dict):
            pairs = [(self.value(k, depth + 1), self.value(v, depth + 1)) for k, v in node.pairs]
            return dict(pairs)
        raise UnsupportedTensor("an object of a class")


class _Bytes:
    """Bytes as a source."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def size(self) -> int:
        return len(self._data)

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def read_into(self, offset: int, buffer: memoryview) -> int:
        data = self.read(offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _Folder(dict[Any, Any]):
    """A dictionary or list while it is being put together."""


def _nested(leaves: dict[tuple[str | int, ...], Any]) -> dict[str, Any]:
    """Dictionaries and lists out of places; a list's missing items are empty dictionaries."""
    top = _Folder()
    for path, value in leaves.items():
        at = top
        for key in path[:-1]:
            at = at.setdefault(key, _Folder())
            if not isinstance(at, _Folder):
                raise _one_place(path)
        if path[-1] in at:
            raise _one_place(path)
        at[path[-1]] = value
    return {str(key): _built(value) for key, value in top.items()}


def _built(value: Any) -> Any:
    if not isinstance(value, _Folder):
        return value
    if all(isinstance(key, str) for key in value):
        return {key: _built(item) for key, item in value.items()}
    if any(isinstance(key, str) for key in value):
        raise BadModelFile("a place in the checkpoint is both a list and a dictionary")
    return [_built(value[i]) if i in value else {} for i in range(max(value) + 1)]


def _one_place(path: tuple[str | int, ...]) -> BadModelFile:
    return BadModelFile(f"two values of the checkpoint lie in one place: {path}")
