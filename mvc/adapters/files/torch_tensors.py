"""The tensors that a pickle of torch.save names, and where they lie in their storages.

A storage that contiguous tensors tile exactly becomes one content per tensor,
shared by all the tensors that lie in the same place (tied weights). Any other
storage (views, strides, gaps) is one raw content, and its tensors are views of
it. Everything else, code and pickle included, stays literal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from msgspec import Struct

from mvc.adapters.files.pickle_nodes import Global, Persistent, PickleCall, PickledDict
from mvc.adapters.parsed import ParsedContent, ParsedTensor
from mvc.adapters.views import is_contiguous
from mvc.errors import BadModelFile
from mvc.limits import MAX_NAME_BYTES, MAX_PICKLE_DEPTH, MAX_TENSORS, MAX_UNFOLDED
from mvc.model.manifest import View, reach
from mvc.model.tensor import DTYPES, TensorSpec
from mvc.structure import Names, join, part_name

_STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16", "LongStorage": "int64", "IntStorage": "int32",
    "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128", "ComplexFloatStorage": "complex64",
    "QInt8Storage": "qint8", "QUInt8Storage": "quint8", "QInt32Storage": "qint32",
    "UntypedStorage": "raw",
}  # fmt: skip
_PLAIN = {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor"}
WRAPPED = {
    "_rebuild_parameter",
    "_rebuild_parameter_with_state",
    "_rebuild_device_tensor_from_cpu_tensor",
}
_ROWS = ("crow_indices", "col_indices", "values")
_COLUMNS = ("ccol_indices", "row_indices", "values")
_SPARSE_PARTS = {
    "torch.sparse_coo": ("indices", "values"),
    **dict.fromkeys(("torch.sparse_csr", "torch.sparse_bsr"), _ROWS),
    **dict.fromkeys(("torch.sparse_csc", "torch.sparse_bsc"), _COLUMNS),
}
_CONTAINERS = {list, tuple, PickledDict, PickleCall}
_MAX_VISITS = 4 * MAX_TENSORS
_MAX_PATH = MAX_NAME_BYTES + 1
_MAX_STEP = 1 << 62

Children = Iterable[tuple[str | None, Any]]


class StoredTensor(Struct, frozen=True):
    """A tensor in a storage: ``offset`` and ``strides`` in elements; ``node`` makes it."""

    key: str
    spec: TensorSpec
    storage: str
    offset: int
    strides: tuple[int, ...]
    storage_bytes: int
    node: PickleCall

    @property
    def start(self) -> int:
        """Where in the storage it begins, in bytes; an empty tensor lies at its beginning."""
        return self.offset * DTYPES[self.spec.dtype].itemsize if self.spec.elements else 0


def find_tensors(root: Any) -> list[StoredTensor]:
    """All tensors in the order of the pickle. Raises BadModelFile for impossible ones."""
    found: list[StoredTensor] = []
    names = Names()
    stack: list[tuple[Iterator[tuple[str | None, Any]], Any]] = [(iter([(None, root)]), None)]
    inside: set[int] = set()
    for _ in range(_MAX_VISITS):
        path, node = next(stack[-1][0], (None, _END))
        if node is _END:
            inside.discard(id(stack.pop()[1]))
            if not stack:
                return found
            continue
        if type(node) not in _CONTAINERS or id(node) in inside:
            continue
        tensor = _tensor(path, node, names)
        if tensor is not None:
            found.append(tensor)
        if len(stack) > MAX_PICKLE_DEPTH:
            raise BadModelFile(f"a pickle is nested deeper than {MAX_PICKLE_DEPTH} levels")
        inside.add(id(node))
        stack.append((iter(_children(path, node)), node))
    raise BadModelFile(f"a pickle leads to more than {_MAX_VISITS} places")


_END = object()


def _children(path: str | None, node: Any) -> Children:
    """What lies in a container, with the place of each."""
    if isinstance(node, (list, tuple)):
        return _paired(path, enumerate(node))
    if isinstance(node, PickledDict):
        return _paired(path, node.pairs)
    args = node.args if isinstance(node.args, tuple) else ()
    match torch_function(node), args:
        case "_rebuild_from_type_v2", (func, _, given, state):
            return [(path, PickleCall(func, given)), (path, state)]
        case "_rebuild_sparse_tensor", (layout, parts):
            text = _only_argument(layout)
            names = _SPARSE_PARTS.get(text, ()) if isinstance(text, str) else ()
            found = zip(names, parts, strict=False) if isinstance(parts, tuple) else ()
            return [(_join(path, name), part) for name, part in found]
        case "_rebuild_qtensor", (_, _, _, _, quantizer, *_):
            return [(_join(path, "quantizer"), quantizer)]
        case name, _ if name in WRAPPED:
            return [(path, inner) for inner in args[:1]]
        case name, _ if name in _PLAIN:
            return []
    return _object(path, node, args)


def _object(
    path: str | None, node: PickleCall, args: tuple[Any, ...]
) -> Iterator[tuple[str | None, Any]]:
    """An instance of any class: what it was called with, filled with, and its attributes."""
    first: Any = args[0] if name_in(node.func, "collections") == "OrderedDict" and args else None
    yield from _paired(path, first if are_pairs(first) else enumerate(args))
    yield from _paired(path, enumerate(node.items))
    yield from _paired(path, node.pairs)
    # Objects with __slots__ have a pair of dictionaries as their state.
    state = node.state
    is_pair = isinstance(state, tuple) and len(state) == 2
    slots = is_pair and all(part is None or isinstance(part, PickledDict) for part in state)
    yield from ((path, part) for part in (state if slots else (state,)))


def are_pairs(node: Any) -> bool:
    """Whether a dictionary of ``collections`` can be made from it."""
    return isinstance(node, list) and all(isinstance(p, list | tuple) and len(p) == 2 for p in node)


def _paired(path: str | None, pairs: Iterable[Any]) -> Iterator[tuple[str | None, Any]]:
    for key, node in pairs:
        if type(node) in _CONTAINERS:
            yield _join(path, part_name(key)), node


def _join(path: str | None, part: str) -> str:
    """As ``join``; what is too long for a name stays too long but does not grow."""
    return join(path, part)[:_MAX_PATH]


def name_in(node: Any, *modules: str) -> str:
    """The last part of a global of these modules, else nothing."""
    return node.name if isinstance(node, Global) and node.module in modules else ""


def torch_function(node: PickleCall) -> str:
    """The name of the function of torch that makes an object, else nothing."""
    return name_in(node.func, "torch._utils", "torch._tensor")


def name_in_torch(node: Any) -> str:
    """The name of a class of torch, else nothing."""
    return name_in(node, "torch", "torch.storage", "torch.cuda")


def _tensor(path: str | None, node: Any, names: Names) -> StoredTensor | None:
    """The tensor that a call makes, or None if it makes none."""
    if type(node) is not PickleCall or torch_function(node) not in _PLAIN:
        return None
    args = node.args
    if not isinstance(args, tuple) or len(args) < 4:
        raise BadModelFile("a tensor in the pickle is malformed")
    storage, offset, size, strides = args[:4]
    if not isinstance(storage, Persistent):
        return None
    dtype, key, size_in_bytes = stored_as(storage.id)
    name = torch_function(node)
    if name == "_rebuild_tensor_v3":
        dtype = name_in_torch(args[6]) if len(args) > 6 else ""
    if dtype not in DTYPES or dtype == "raw" or _is_lazy_view(name, args):
        return None
    shape, steps = naturals(size), naturals(strides)
    if type(offset) is not int or not 0 <= offset < _MAX_STEP or len(shape) != len(steps):
        raise BadModelFile("a tensor in the pickle has a malformed shape")
    spec = TensorSpec(dtype, shape)
    return StoredTensor(
        names.unique(path), spec, key, offset, strides=steps, storage_bytes=size_in_bytes, node=node
    )


def _is_lazy_view(name: str, args: tuple[Any, ...]) -> bool:
    """Whether the storage holds the conjugates or negatives of the tensor's values."""
    at = {"_rebuild_tensor_v2": 6, "_rebuild_tensor_v3": 7}.get(name, len(args))
    flags = args[at] if len(args) > at else None
    return isinstance(flags, PickledDict) and any(value is not False for _, value in flags.pairs)


def stored_as(id_: Any) -> tuple[str, str, int]:
    """(dtype, key, bytes) of ``('storage', class, key, device, elements)``.

    A part of another storage, as PyTorch 0.1 could save, is refused.
    """
    if not isinstance(id_, tuple) or len(id_) < 5 or id_[0] != "storage" or any(id_[5:]):
        raise BadModelFile("a storage in the pickle is malformed")
    dtype, key, elements = _STORAGES.get(name_in_torch(id_[1]), ""), id_[2], id_[4]
    if not isinstance(key, str) or type(elements) is not int or elements < 0:
        raise BadModelFile("a storage in the pickle is malformed")
    return dtype, key, elements * (DTYPES[dtype].itemsize if dtype else 0)


def _only_argument(node: Any) -> Any:
    """The x of a call f(x); None for anything else."""
    one = isinstance(node, PickleCall) and isinstance(node.args, tuple) and len(node.args) == 1
    return node.args[0] if one else None


def naturals(node: Any) -> tuple[int, ...]:
    """A tuple of sizes, bare or as torch.Size."""
    if isinstance(node, PickleCall) and name_in_torch(node.func) == "Size":
        node = _only_argument(node)
    if not isinstance(node, (tuple, list)) or not all(
        type(n) is int and 0 <= n < _MAX_STEP for n in node
    ):
        raise BadModelFile("a tensor in the pickle has a malformed shape")
    return tuple(node)


def place_tensors(
    tensors: list[StoredTensor], storages: Mapping[str | int, ParsedContent], size: int, name: str
) -> tuple[tuple[ParsedContent, ...], tuple[ParsedTensor, ...]]:
    """The contents and tensors of a file of ``size`` bytes, with its ``storages`` by key.

    Raises BadModelFile for tensors that their storages do not hold.
    """
    by_storage: dict[str, list[StoredTensor]] = {}
    for tensor in tensors:
        by_storage.setdefault(tensor.storage, []).append(tensor)
    places: dict[str, tuple[ParsedContent, View | None]] = {}
    for key, inside in by_storage.items():
        if key not in storages:
            raise BadModelFile(f"{name}: the storage {key} is missing or compressed")
        places |= _place(storages[key], inside, name)
    # Expanded views may name far more bytes than the file has; hashing these has to end.
    unfolded = sum(t.spec.nbytes for t in tensors if places[t.key][1] is not None)
    if unfolded > MAX_UNFOLDED[0] * size + MAX_UNFOLDED[1]:
        raise BadModelFile(f"{name}: its views unfold to {unfolded} bytes")
    found = {content for content, _ in places.values()}
    found |= {raw for key, raw in storages.items() if key not in by_storage and raw.spec.nbytes}
    contents = sorted(found, key=lambda c: (c.offset, c.end, c.spec.dtype, c.spec.shape))
    index = {content: i for i, content in enumerate(contents)}
    parsed = [(t, *places[t.key]) for t in tensors]
    return tuple(contents), tuple(
        ParsedTensor(t.key, t.spec, index[content], view) for t, content, view in parsed
    )


def _place(
    storage: ParsedContent, tensors: list[StoredTensor], name: str
) -> dict[str, tuple[ParsedContent, View | None]]:
    """Where in the file each tensor of one storage lies, by key."""
    for tensor in tensors:
        end = reach(tensor.spec, View(tensor.offset, tensor.strides))[1]
        if not tensor.storage_bytes == storage.spec.nbytes >= end:
            raise BadModelFile(f"{name}: {tensor.key} does not fit its storage")
    tiled = _tiles(storage.spec.nbytes, [t for t in tensors if t.spec.elements])
    return {
        t.key: (ParsedContent(storage.offset + t.start, t.spec), None)
        if tiled or not t.spec.elements
        else (storage, View(t.offset, t.strides))
        for t in tensors
    }


def _tiles(size: int, tensors: list[StoredTensor]) -> bool:
    """Whether contiguous tensors cover [0, size) without gap; equal places count once."""
    if not all(is_contiguous(t.spec.shape, t.strides) for t in tensors):
        return False
    places = {(t.start, t.spec) for t in tensors}
    ends = [(0, 0), *sorted((at, at + spec.nbytes) for at, spec in places)]
    return ends[-1][1] == size and all(a[1] == b[0] for a, b in pairwise(ends))
