"""The tensors that a torch pickle's nodes describe, with their names.

Tensors are known by the functions that torch writes for them
(torch/_utils.py, ``_rebuild_*``); containers and objects of any other class are
walked for what lies in them. The walk keeps its own stack and has a budget, so
that depth, cycles and shared containers of a hostile file end it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from mvc.adapters.files.pickle_nodes import Call, Dict, Global, Persistent
from mvc.adapters.keys import Names, join, part_name
from mvc.errors import BadModelFile
from mvc.limits import MAX_NAME_BYTES, MAX_PICKLE_DEPTH, MAX_TENSORS
from mvc.model.tensor import DTYPES, TensorSpec

__all__ = ["StoredTensor", "find_tensors"]

_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "QInt8Storage": "qint8",
    "QUInt8Storage": "quint8",
    "QInt32Storage": "qint32",
    "UntypedStorage": "raw",
}
_PLAIN = {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor"}
_WRAPPED = {
    "_rebuild_parameter",
    "_rebuild_parameter_with_state",
    "_rebuild_device_tensor_from_cpu_tensor",
}
_SPARSE_PARTS = {
    "torch.sparse_coo": ("indices", "values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}
_CONTAINERS = {list, tuple, Dict, Call}
_MAX_VISITS = 4 * MAX_TENSORS
_MAX_PATH = MAX_NAME_BYTES + 1
_MAX_STEP = 1 << 62

Children = Iterable[tuple[str | None, Any]]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a storage: ``offset`` and ``strides`` in elements."""

    key: str
    spec: TensorSpec
    storage: str
    offset: int
    strides: tuple[int, ...]
    storage_bytes: int


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
        tensor = _tensor(node)
        if tensor is not None:
            spec, storage, offset, strides, size = tensor
            found.append(StoredTensor(names.unique(path), spec, storage, offset, strides, size))
        if len(stack) > MAX_PICKLE_DEPTH:
            raise BadModelFile(f"a pickle is nested deeper than {MAX_PICKLE_DEPTH} levels")
        inside.add(id(node))
        stack.append((iter(_children(path, node)), node))
    raise BadModelFile(f"a pickle leads to more than {_MAX_VISITS} places")


_END = object()


def _children(path: str | None, node: Any) -> Children:
    """What lies in a container, with the place of each."""
    if isinstance(node, (list, tuple)):
        return _numbered(path, node)
    if isinstance(node, Dict):
        return _paired(path, node.pairs)
    name = _function(node)
    args = node.args if isinstance(node.args, tuple) else ()
    if name in _WRAPPED:
        return [(path, args[0])] if args else []
    if name == "_rebuild_from_type_v2" and len(args) == 4:
        return [(path, Call(args[0], args[2])), (path, args[3])]
    if name == "_rebuild_sparse_tensor" and len(args) == 2:
        return _sparse(path, args)
    if name == "_rebuild_qtensor" and len(args) > 4:
        return [(_join(path, "quantizer"), args[4])]
    if name in _PLAIN:
        return []
    return _object(path, node, args)


def _object(
    path: str | None, node: Call, args: tuple[Any, ...]
) -> Iterator[tuple[str | None, Any]]:
    """An instance of any class: what it was called with, filled with, and its attributes."""
    pairs = args[0] if _is_ordered(node) and args and isinstance(args[0], list) else None
    if pairs is not None and all(isinstance(p, (list, tuple)) and len(p) == 2 for p in pairs):
        yield from _paired(path, [(p[0], p[1]) for p in pairs])
    else:
        yield from _numbered(path, args)
    yield from _numbered(path, node.items)
    yield from _paired(path, node.pairs)
    # Objects with __slots__ have a pair of dictionaries as their state.
    state = node.state
    is_pair = isinstance(state, tuple) and len(state) == 2
    if is_pair and all(part is None or isinstance(part, Dict) for part in state):
        yield from ((path, part) for part in state)
    else:
        yield path, state


def _sparse(path: str | None, args: tuple[Any, ...]) -> Children:
    layout, parts = args
    text = _only_argument(layout)
    names = _SPARSE_PARTS.get(text, ()) if isinstance(text, str) else ()
    if not isinstance(parts, tuple):
        return []
    return [(_join(path, n), part) for n, part in zip(names, parts, strict=False)]


def _numbered(path: str | None, nodes: Iterable[Any]) -> Iterator[tuple[str | None, Any]]:
    for index, node in enumerate(nodes):
        if type(node) in _CONTAINERS:
            yield _join(path, str(index)), node


def _paired(path: str | None, pairs: list[tuple[Any, Any]]) -> Iterator[tuple[str | None, Any]]:
    for key, node in pairs:
        if type(node) in _CONTAINERS:
            yield _join(path, part_name(key)), node


def _join(path: str | None, part: str) -> str:
    """As ``keys.join``; what is too long for a name stays too long but does not grow."""
    return join(path, part)[:_MAX_PATH]


def _function(node: Call) -> str:
    func = node.func
    known = isinstance(func, Global) and func.module in {"torch._utils", "torch._tensor"}
    return func.name if known else ""


def _is_ordered(node: Call) -> bool:
    func = node.func
    return isinstance(func, Global) and (func.module, func.name) == ("collections", "OrderedDict")


def _tensor(node: Any) -> tuple[TensorSpec, str, int, tuple[int, ...], int] | None:
    """(spec, storage key, offset, strides, bytes of the storage), or None if it is no tensor."""
    if type(node) is not Call or _function(node) not in _PLAIN:
        return None
    args = node.args
    if not isinstance(args, tuple) or len(args) < 4:
        raise BadModelFile("a tensor in the pickle is malformed")
    storage, offset, size, strides = args[:4]
    if not isinstance(storage, Persistent):
        return None
    dtype, key, size_in_bytes = _storage(storage.id)
    name = _function(node)
    if name == "_rebuild_tensor_v3":
        dtype = _global_name(args[6]) if len(args) > 6 else ""
    if dtype not in DTYPES or dtype == "raw" or _is_lazy_view(name, args):
        return None
    shape, steps = _naturals(size), _naturals(strides)
    if type(offset) is not int or not 0 <= offset < _MAX_STEP or len(shape) != len(steps):
        raise BadModelFile("a tensor in the pickle has a malformed shape")
    return TensorSpec(dtype, shape), key, offset, steps, size_in_bytes


def _is_lazy_view(name: str, args: tuple[Any, ...]) -> bool:
    """Whether the storage holds the conjugates or negatives of the tensor's values."""
    at = {"_rebuild_tensor_v2": 6, "_rebuild_tensor_v3": 7}.get(name, len(args))
    flags = args[at] if len(args) > at else None
    return isinstance(flags, Dict) and any(value is not False for _, value in flags.pairs)


def _storage(id_: Any) -> tuple[str, str, int]:
    """(dtype, key, bytes) of ``('storage', class, key, device, elements)``."""
    if not isinstance(id_, tuple) or len(id_) < 5 or id_[0] != "storage":
        raise BadModelFile("a storage in the pickle is malformed")
    dtype, key, elements = _STORAGES.get(_global_name(id_[1]), ""), id_[2], id_[4]
    if not isinstance(key, str) or type(elements) is not int or elements < 0:
        raise BadModelFile("a storage in the pickle is malformed")
    return dtype, key, elements * (DTYPES[dtype].itemsize if dtype else 0)


def _global_name(node: Any) -> str:
    """The last part of a global of torch, else nothing."""
    known = isinstance(node, Global) and node.module in {"torch", "torch.storage", "torch.cuda"}
    return node.name if known else ""


def _only_argument(node: Any) -> Any:
    """The x of a call f(x); None for anything else."""
    one = isinstance(node, Call) and isinstance(node.args, tuple) and len(node.args) == 1
    return node.args[0] if one else None


def _naturals(node: Any) -> tuple[int, ...]:
    """A tuple of sizes, bare or as torch.Size."""
    if isinstance(node, Call) and _global_name(node.func) == "Size":
        node = _only_argument(node)
    if not isinstance(node, (tuple, list)) or not all(
        type(n) is int and 0 <= n < _MAX_STEP for n in node
    ):
        raise BadModelFile("a tensor in the pickle has a malformed shape")
    return tuple(node)
