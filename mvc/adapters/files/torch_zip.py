"""torch.save's zip files, read from the zip's structure and the pickle's opcodes alone.

A storage that contiguous tensors tile exactly becomes one content per tensor,
shared by all the tensors that lie in the same place (tied weights). Any other
storage (views, strides, gaps) is one raw content, and its tensors are views of
it. Everything else, code and pickle included, stays literal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mvc.adapters.files.pickle_nodes import Call, Dict, Global, Persistent, read_pickle
from mvc.adapters.files.zip_layout import Member, find_checks
from mvc.adapters.keys import Names, join, part_name
from mvc.adapters.parsed import FileParts, ParsedContent, ParsedTensor, Source
from mvc.adapters.views import is_contiguous, reach
from mvc.errors import BadModelFile
from mvc.limits import MAX_NAME_BYTES, MAX_PICKLE, MAX_PICKLE_DEPTH, MAX_TENSORS, MAX_UNFOLDED, MIB
from mvc.model.manifest import View
from mvc.model.tensor import DTYPES, TensorSpec

__all__ = ["archive_name", "find_tensors", "parse_torch_zip"]

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


_BIG_MEMBER = MIB
"""Members without tensors from this size on are contents of their own, not skeleton."""

_Placed = tuple[StoredTensor, ParsedContent, View | None]


def archive_name(members: Iterable[Member]) -> str | None:
    """The folder inside the archive that holds ``data.pkl``; None if it is no torch file."""
    first = next(iter(members), None)
    if first is None:
        return None
    folder = first.name.split("/")[0]
    return folder if any(m.name == f"{folder}/data.pkl" for m in members) else None


def parse_torch_zip(source: Source, name: str, members: tuple[Member, ...]) -> FileParts:
    """Raises BadModelFile for what torch would not have written."""
    folder = archive_name(members)
    by_name = {m.name: m for m in members}
    pickle = by_name.get(f"{folder}/data.pkl")
    if folder is None or pickle is None or not pickle.stored or pickle.size > MAX_PICKLE:
        raise BadModelFile(f"{name}: data.pkl is missing, compressed or too long")
    tensors = find_tensors(read_pickle(source.read(pickle.start, pickle.size)))
    order = by_name.get(f"{folder}/byteorder")
    if order is not None and source.read(order.start, order.size) != b"little":
        tensors = []
    prefix = f"{folder}/data/"
    by_storage: dict[str, list[StoredTensor]] = {}
    for tensor in tensors:
        by_storage.setdefault(prefix + tensor.storage, []).append(tensor)
    contents: list[ParsedContent] = []
    placed: dict[int, tuple[ParsedContent, View | None]] = {}
    for member in members:
        inside = by_storage.pop(member.name, [])
        for tensor, content, view in _place(member, inside, name):
            placed[id(tensor)] = (content, view)
            contents.append(content)
        if not inside and member is not pickle and _is_content(member, prefix):
            contents.append(_raw(member))
    if by_storage:
        raise BadModelFile(f"{name}: the storage {next(iter(by_storage))} is missing")
    _limit_views(name, source.size(), placed, tensors)
    return _parts(source, name, members, contents, [(t, *placed[id(t)]) for t in tensors])


def _parts(
    source: Source,
    name: str,
    members: tuple[Member, ...],
    contents: list[ParsedContent],
    placed: list[_Placed],
) -> FileParts:
    ordered = sorted(set(contents), key=lambda c: (c.offset, c.end, c.spec.dtype, c.spec.shape))
    index = {content: i for i, content in enumerate(ordered)}
    tensors = tuple(
        ParsedTensor(t.key, t.spec, index[content], view) for t, content, view in placed
    )
    filled = _holding(members, ordered)
    return FileParts("torch", tuple(ordered), tensors, find_checks(source, name, filled))


def _holding(members: tuple[Member, ...], contents: list[ParsedContent]) -> list[Member]:
    """The members in which contents lie; both are in file order."""
    starts = iter(c.offset for c in contents if c.spec.nbytes)
    at = next(starts, None)
    found = []
    for member in members:
        end = member.start + member.size
        if at is not None and member.start <= at < end:
            found.append(member)
        while at is not None and at < end:
            at = next(starts, None)
    return found


def _is_content(member: Member, prefix: str) -> bool:
    return bool(member.size) and (
        member.size >= _BIG_MEMBER or (member.stored and member.name.startswith(prefix))
    )


def _raw(member: Member) -> ParsedContent:
    return ParsedContent(member.start, TensorSpec("raw", (member.size,)))


def _place(member: Member, tensors: list[StoredTensor], name: str) -> list[_Placed]:
    """Where in the file each tensor of one storage lies."""
    if not tensors:
        return []
    for tensor in tensors:
        end = reach(tensor.spec, View(tensor.offset, tensor.strides))[1]
        if not member.stored or tensor.storage_bytes != member.size or end > member.size:
            raise BadModelFile(f"{name}: {tensor.key} does not fit its storage")
    empty: list[_Placed] = [
        (t, ParsedContent(member.start, t.spec), None) for t in tensors if not t.spec.elements
    ]
    full = [t for t in tensors if t.spec.elements]
    if _tiles(member.size, full):
        return empty + [(t, ParsedContent(member.start + _offset(t), t.spec), None) for t in full]
    raw = _raw(member)
    return empty + [(t, raw, View(t.offset, t.strides)) for t in full]


def _offset(tensor: StoredTensor) -> int:
    return tensor.offset * DTYPES[tensor.spec.dtype].itemsize


def _tiles(size: int, tensors: list[StoredTensor]) -> bool:
    """Whether contiguous tensors cover [0, size) without gap; equal places count once."""
    if not all(is_contiguous(t.spec.shape, t.strides) for t in tensors):
        return False
    places = {(_offset(t), t.spec) for t in tensors}
    ends = [(0, 0), *sorted((at, at + spec.nbytes) for at, spec in places)]
    return ends[-1][1] == size and all(a[1] == b[0] for a, b in pairwise(ends))


def _limit_views(
    name: str,
    size: int,
    placed: dict[int, tuple[ParsedContent, View | None]],
    tensors: list[StoredTensor],
) -> None:
    """Expanded views may name far more bytes than the file has; hashing these has to end."""
    total = sum(t.spec.nbytes for t in tensors if placed[id(t)][1] is not None)
    if total > MAX_UNFOLDED[0] * size + MAX_UNFOLDED[1]:
        raise BadModelFile(f"{name}: its views unfold to {total} bytes")
