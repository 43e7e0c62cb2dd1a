"""A state of a version, laid out as torch.distributed.checkpoint reads it.

``.metadata`` and one file of records are made when they are asked for; both follow from the
version alone. Each tensor is one record, whole, so that any number of ranks takes its parts
out of it: resharding is torch's own.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pickle import dumps
from typing import TYPE_CHECKING, Any

from mvc.adapters.files.safetensors import parse_header
from mvc.adapters.python.state import values
from mvc.adapters.structure import decode
from mvc.errors import DamagedData, UnsupportedTensor
from mvc.frameworks.fsspec.dcp_save import OBJECTS, STATE, inside, saved_bytes
from mvc.frameworks.fsspec.dcp_staging import METADATA
from mvc.frameworks.fsspec.parts import Parts
from mvc.model.manifest import FileEntry, Manifest
from mvc.model.tensor import TensorSpec
from mvc.repo.content.contents import in_memory, skeleton_of
from mvc.repo.context import Context
from mvc.types import Bytes

if TYPE_CHECKING:
    import torch

__all__ = ["made", "made_from"]

RECORDS = "__0_0.distcp"

_LENGTH_BYTES = 8
_ROOM = 16 * 1024  # bytes that torch.save may write around a tensor; the rest is a zip comment
_END = b"PK\x05\x06"
_END_BYTES = 22


def made_from(manifest: Manifest, path: str) -> FileEntry | None:
    """The state that a file of this name is made from; None if it is not such a file."""
    folder, _, name = path.rpartition("/")
    if name not in {METADATA, RECORDS}:
        return None
    entry = manifest.by_path.get(inside(folder, STATE))
    return entry if entry is not None and entry.tensors else None


def made(context: Context, manifest: Manifest, path: str, entry: FileEntry) -> Parts:
    """The file of ``made_from``."""
    folder, _, name = path.rpartition("/")
    state = _State(context, entry, manifest.by_path.get(inside(folder, OBJECTS)))
    if name == METADATA:
        data = state.metadata()
        return Parts([len(data)], lambda i: {i: data})
    return Parts([length for _, length in state.layout], state.load)


class _State:
    """One state as records: objects first, each as its bytes, then tensors."""

    def __init__(self, context: Context, entry: FileEntry, objects: FileEntry | None) -> None:
        self._context = context
        self._entry = entry
        self._tensors = {t.key: t for t in entry.tensors}
        self._empty: dict[int, tuple[torch.Tensor, str]] = {}
        flat, self._paths = self._flat()
        self._records: dict[str, bytes] = {}
        self._specs: dict[str, tuple[str, TensorSpec]] = {}
        for name, value in flat.items():
            if id(value) in self._empty:
                key = self._empty[id(value)][1]
                self._specs[name] = key, self._tensors[key].spec
            else:
                self._records[name] = saved_bytes(self._filled(value))
        self._add_objects(objects)
        self.layout = [(name, len(data)) for name, data in self._records.items()]
        self.layout += [(name, spec.nbytes + _ROOM) for name, (_, spec) in self._specs.items()]

    def _flat(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Values by torch's names, and the places of these; tensors without their content."""
        from torch.distributed.checkpoint._nested_dict import flatten_state_dict

        if self._entry.format != "state":
            return flatten_state_dict({key: self._stand_in("torch", key) for key in self._tensors})
        skeleton = skeleton_of(self._context, self._entry)
        header = parse_header(skeleton[_LENGTH_BYTES:], self._entry.path)
        text = header.get("__metadata__", {}).get("mvc")
        if text is None:
            raise DamagedData(f"{self._entry.path} has lost the structure of its state")
        return flatten_state_dict(decode(text, self._stand_in))

    def _stand_in(self, tag: str, key: str) -> Any:
        """A tensor without content for torch's; arrays of numpy are objects to DCP."""
        if key not in self._tensors:
            raise DamagedData(f"{self._entry.path} has lost the tensor {key}")
        if tag != "torch":
            array = self._value(key, "numpy")
            return array[()] if tag == "scalar" else array
        import torch

        spec = self._tensors[key].spec
        dtype = getattr(torch, spec.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise UnsupportedTensor(f"torch has no plain tensors of the dtype of {key}")
        empty = torch.empty(spec.shape, dtype=dtype, device="meta")
        self._empty[id(empty)] = empty, key
        return empty

    def _value(self, key: str, library: str) -> Any:
        chosen = {self._tensors[key].content}
        contents = in_memory(self._context, self._entry, chosen)
        return values(self._entry, lambda i: contents[i], [key], library)[key]

    def _filled(self, value: Any) -> Any:
        """An object with the content of the tensors in it, as in a tuple of tensors."""
        if id(value) in self._empty:
            return self._value(self._empty[id(value)][1], "torch")
        if isinstance(value, (list, tuple)):
            return type(value)(self._filled(item) for item in value)
        return value

    def _add_objects(self, entry: FileEntry | None) -> None:
        """What could not be kept as plain values, as the bytes that were saved."""
        if entry is None:
            return
        contents = in_memory(self._context, entry)
        for name, array in values(entry, lambda i: contents[i], None, "numpy").items():
            self._records[name] = array.tobytes()
            self._paths.setdefault(name, (name,))

    def load(self, index: int) -> Mapping[int, Bytes]:
        """One record. A tensor's is as long as was said before its content was known."""
        name, length = self.layout[index]
        if name in self._records:
            return {index: self._records[name]}
        key, _ = self._specs[name]
        return {index: _record(self._value(key, "torch"), length)}

    def metadata(self) -> bytes:
        """The pickle that torch.distributed.checkpoint reads first."""
        import torch
        from torch.distributed.checkpoint import filesystem as files
        from torch.distributed.checkpoint import metadata as meta

        entries: dict[str, Any] = {name: meta.BytesStorageMetadata() for name in self._records}
        stored: dict[meta.MetadataIndex, Any] = {}
        for name, (_, spec) in self._specs.items():
            size = torch.Size(spec.shape)
            chunk = meta.ChunkStorageMetadata(torch.Size([0] * len(size)), size)
            properties = meta.TensorProperties(dtype=getattr(torch, spec.dtype))
            entries[name] = meta.TensorStorageMetadata(properties, size, [chunk])
        at = 0
        for name, length in self.layout:
            offset = [0] * len(self._specs[name][1].shape) if name in self._specs else None
            stored[meta.MetadataIndex(name, offset)] = files._StorageInfo(RECORDS, at, length)
            at += length
        return dumps(
            meta.Metadata(
                entries, self._paths, stored, meta.StorageMeta(), files.CURRENT_DCP_VERSION
            )
        )


def _record(tensor: torch.Tensor, length: int) -> memoryview:
    """What ``torch.save`` makes of a tensor, a zip file, made ``length`` bytes long.

    The rest is the zip's comment, zeros at its end.
    """
    import torch

    out = io.BytesIO()
    torch.save(tensor, out)
    room = length - out.tell()
    with out.getbuffer() as data:
        if bytes(data[-_END_BYTES:][:4]) != _END or not 0 <= room < 1 << 16:
            raise UnsupportedTensor("torch.save writes another format than this program knows")
        data[-2:] = room.to_bytes(2, "little")
    out.write(bytes(room))
    return out.getbuffer()
