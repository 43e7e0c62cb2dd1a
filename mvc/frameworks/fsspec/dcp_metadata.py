"""The ``.metadata`` file of torch.distributed.checkpoint, read without running it.

It is a pickle of ``torch.distributed.checkpoint.metadata.Metadata``: for each name either
the chunks of a tensor (offsets and sizes in the whole) or "bytes", where each of these lies
(file, offset, length), and the place of each name in the nested state. Opcodes become inert
nodes (``mvc.adapters.files.pickle_nodes``); only the fields named here are looked at.
Source: torch/distributed/checkpoint/metadata.py and filesystem.py, torch 2.13.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mvc.adapters.files.pickle_nodes import Call, Dict, Global, read_pickle
from mvc.errors import BadModelFile, UnsupportedTensor
from mvc.limits import MAX_TENSORS
from mvc.model.tensor import DTYPES, TensorSpec

__all__ = ["Chunk", "Placed", "Record", "Saved", "read_metadata"]

_PACKAGE = "torch.distributed.checkpoint."
_MOST = 1 << 62
_HINT = "save with FsspecWriter's defaults, as dcp.save(state, checkpoint_id='mvc://...') does"


@dataclass(frozen=True, slots=True)
class Record:
    """Bytes [offset, offset + length) of a file of the checkpoint."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A box of a tensor and where its elements lie; offsets and sizes in elements."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    record: Record


@dataclass(frozen=True, slots=True)
class Placed:
    """A whole tensor, made of chunks that cover it and do not overlap."""

    spec: TensorSpec
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Saved:
    """What a checkpoint holds, by name; ``paths`` are the places in the nested state."""

    tensors: dict[str, Placed]
    objects: dict[str, Record]
    paths: dict[str, tuple[str | int, ...]]


def read_metadata(data: bytes) -> Saved:
    """Raises BadModelFile for what torch does not write, UnsupportedTensor for what it may."""
    fields = _fields(read_pickle(data), "Metadata")
    records = _records(fields.get("storage_data"))
    tensors: dict[str, Placed] = {}
    objects: dict[str, Record] = {}
    for name, node in _pairs(fields.get("state_dict_metadata")):
        if not isinstance(name, str):
            raise _malformed()
        if _class(node) == "BytesStorageMetadata":
            objects[name] = _record(records, name, None)
        else:
            tensors[name] = _tensor(name, node, records)
    paths = _paths(fields.get("planner_data"))
    found = {name: paths.get(name, (name,)) for name in (*tensors, *objects)}
    return Saved(tensors, objects, found)


def _tensor(name: str, node: Any, records: dict[Any, Record]) -> Placed:
    fields = _fields(node, "TensorStorageMetadata")
    properties = _state(fields.get("properties"), "TensorProperties")
    if not isinstance(properties, tuple) or len(properties) < 2:
        raise _malformed()
    dtype = properties[0].name if isinstance(properties[0], Global) else ""
    if dtype not in DTYPES or dtype == "raw":
        raise UnsupportedTensor(f"{name} has a dtype that cannot be kept exactly: {dtype}")
    layout = properties[1]
    if isinstance(layout, Call) and layout.args != ("torch.strided",):
        raise UnsupportedTensor(f"{name} is sparse, which cannot be kept exactly")
    spec = TensorSpec(dtype, _size(fields.get("size")))
    chunks = []
    for item in _list(fields.get("chunks")):
        box = _fields(item, "ChunkStorageMetadata")
        offsets, sizes = _size(box.get("offsets")), _size(box.get("sizes"))
        chunks.append(Chunk(offsets, sizes, _record(records, name, offsets)))
    _check_cover(name, spec.shape, chunks)
    return Placed(spec, tuple(chunks))


def _check_cover(name: str, shape: tuple[int, ...], chunks: list[Chunk]) -> None:
    """Chunks inside the tensor, apart from each other, as many elements as the tensor has."""
    full = [c for c in chunks if 0 not in c.sizes]
    for chunk in chunks:
        if not len(shape) == len(chunk.offsets) == len(chunk.sizes) or any(
            o + s > n for o, s, n in zip(chunk.offsets, chunk.sizes, shape, strict=True)
        ):
            raise BadModelFile(f"a chunk of {name} lies outside of it")
    full.sort(key=lambda c: c.offsets)
    for i, a in enumerate(full):
        for b in full[i + 1 :]:
            if shape and b.offsets[0] >= a.offsets[0] + a.sizes[0]:
                break
            if _overlap(a, b):
                raise BadModelFile(f"two chunks of {name} overlap")
    elements = TensorSpec("uint8", shape).elements
    if sum(TensorSpec("uint8", c.sizes).elements for c in full) != elements:
        raise BadModelFile(f"the chunks of {name} do not cover it")


def _overlap(a: Chunk, b: Chunk) -> bool:
    sides = zip(a.offsets, a.sizes, b.offsets, b.sizes, strict=True)
    return all(o < p + m and p < o + n for o, n, p, m in sides)


def _records(node: Any) -> dict[Any, Record]:
    """Where everything lies, by name and offsets; offsets are None for bytes."""
    found = {}
    for key, value in _pairs(node):
        index = _fields(key, "MetadataIndex")
        info = _fields(value, "_StorageInfo")
        if info.get("transform_descriptors"):
            raise UnsupportedTensor(
                "a checkpoint whose records were transformed (compressed, encrypted) "
                "cannot be taken apart",
                hint=_HINT,
            )
        file, start, length = (info.get(k) for k in ("relative_path", "offset", "length"))
        name, offset = index.get("fqn"), index.get("offset")
        if not isinstance(file, str) or not isinstance(name, str):
            raise _malformed()
        place = None if offset is None else _size(offset)
        found[name, place] = Record(file, _natural(start), _natural(length))
    return found


def _record(records: dict[Any, Record], name: str, offsets: tuple[int, ...] | None) -> Record:
    record = records.get((name, offsets))
    if record is None:
        raise BadModelFile(f"the checkpoint does not say where {name} lies")
    return record


def _paths(node: Any) -> dict[str, tuple[str | int, ...]]:
    """Places in the nested state; none where another planner wrote something else."""
    if not isinstance(node, Dict):
        return {}
    found = {}
    for name, path in node.pairs:
        if not isinstance(name, str) or not isinstance(path, tuple) or not path:
            raise _malformed()
        if any(not isinstance(p, str) and _natural(p) >= MAX_TENSORS for p in path):
            raise _malformed()
        found[name] = path
    return found


def _class(node: Any) -> str:
    """The name of a class of torch.distributed.checkpoint, of which a node is an object."""
    func = node.func if isinstance(node, Call) else None
    known = isinstance(func, Global) and func.module.startswith(_PACKAGE)
    return func.name if known and isinstance(func, Global) else ""


def _state(node: Any, name: str) -> Any:
    if not isinstance(node, Call) or _class(node) != name:
        raise _malformed()
    return node.state


def _fields(node: Any, name: str) -> dict[str, Any]:
    """An object's attributes."""
    return {k: v for k, v in _pairs(_state(node, name)) if isinstance(k, str)}


def _pairs(node: Any) -> list[tuple[Any, Any]]:
    if not isinstance(node, Dict):
        raise _malformed()
    return node.pairs


def _list(node: Any) -> list[Any]:
    if not isinstance(node, list):
        raise _malformed()
    return node


def _size(node: Any) -> tuple[int, ...]:
    """A torch.Size."""
    args = node.args if isinstance(node, Call) else None
    known = isinstance(node, Call) and isinstance(node.func, Global) and node.func.name == "Size"
    sizes = args[0] if known and isinstance(args, tuple) and len(args) == 1 else None
    if not isinstance(sizes, tuple):
        raise _malformed()
    return tuple(_natural(n) for n in sizes)


def _natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise _malformed()
    return value


def _malformed() -> BadModelFile:
    return BadModelFile(
        "this .metadata is not what torch.distributed.checkpoint writes", hint=_HINT
    )
