"""Finds the tensors in files of torch.save, without executing the pickle.

Such a file is a zip archive, or has the older format: five pickles, followed by the storages. A
*content* is a part of the file that mvc stores under its hash. If contiguous tensors cover a
storage without a gap or an overlap, each tensor is a content. Tensors at the same position (tied
weights) share a content. Otherwise the whole storage is a content, and its tensors are views. The
remaining bytes of the file, including the pickle, are stored unchanged as the *skeleton*.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import Any

from msgspec import Struct

from mvc.adapters.files.pickle_nodes import (
    Global,
    Persistent,
    PickleCall,
    PickledDict,
    read_pickle,
    read_pickles,
)
from mvc.adapters.files.zip_layout import ZipMember, find_checks, read_members
from mvc.adapters.parsed import FileParts, ParsedContent, ParsedTensor, PlacedFile, Source, gaps
from mvc.adapters.views import is_contiguous
from mvc.errors import BadModelFile
from mvc.limits import (
    MAX_NAME_BYTES,
    MAX_PICKLE,
    MAX_PICKLE_DEPTH,
    MAX_TENSORS,
    MAX_UNFOLDED,
    MIB,
)
from mvc.model.manifest import View, reach
from mvc.model.tensor import DTYPES, TensorSpec
from mvc.structure import MAX_DEPTH, Names, join, part_name

_STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16", "LongStorage": "int64", "IntStorage": "int32",
    "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128", "ComplexFloatStorage": "complex64",
    "QInt8Storage": "qint8", "QUInt8Storage": "quint8", "QInt32Storage": "qint32",
    "UntypedStorage": "raw",
}  # fmt: skip
_PLAIN = {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor"}
_WRAPPED = {
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
OLD_HEAD = rb"\x80.{1,16}" + re.escape(b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
"""First bytes of the old format: a pickle of torch's magic number."""

_COUNT = 8  # in the old format, 8 bytes before each storage have its number of elements
_BIG_MEMBER = MIB
"""A member of the archive without tensors is a content if it has at least this size.

Smaller members belong to the skeleton.
"""

Children = Iterable[tuple[str | None, Any]]


class StoredTensor(Struct, frozen=True):
    """A tensor in a storage.

    ``offset``, ``strides``: in elements. ``node``: the call in the pickle that builds the tensor.
    """

    key: str
    spec: TensorSpec
    storage: str
    offset: int
    strides: tuple[int, ...]
    storage_bytes: int
    node: PickleCall

    @property
    def start(self) -> int:
        """The tensor's first byte in the storage; 0 for an empty tensor."""
        return self.offset * DTYPES[self.spec.dtype].itemsize if self.spec.elements else 0


def find_tensors(root: Any) -> list[StoredTensor]:
    """All tensors in the order of the pickle. Raises BadModelFile for an invalid tensor."""
    tensors: list[StoredTensor] = []
    names = Names()
    stack: list[tuple[Iterator[tuple[str | None, Any]], Any]] = [(iter([(None, root)]), None)]
    inside: set[int] = set()
    for _ in range(_MAX_VISITS):
        path, node = next(stack[-1][0], (None, _END))
        if node is _END:
            inside.discard(id(stack.pop()[1]))
            if not stack:
                return tensors
            continue
        if type(node) not in _CONTAINERS or id(node) in inside:
            continue
        tensor = _tensor(path, node, names)
        if tensor is not None:
            tensors.append(tensor)
        if len(stack) > MAX_PICKLE_DEPTH:
            raise BadModelFile(f"a pickle is nested deeper than {MAX_PICKLE_DEPTH} levels")
        inside.add(id(node))
        stack.append((iter(_children(path, node)), node))
    raise BadModelFile(f"a pickle has more than {_MAX_VISITS} nested values")


_END = object()


def _children(path: str | None, node: Any) -> Children:
    """Yields the values in a container, each with its path."""
    if isinstance(node, (list, tuple)):
        return _paired(path, enumerate(node))
    if isinstance(node, PickledDict):
        return _paired(path, node.pairs)
    args = node.args if isinstance(node.args, tuple) else ()
    match _function(node), args:
        case "_rebuild_from_type_v2", (func, _, inner_args, state):
            return [(path, PickleCall(func, inner_args)), (path, state)]
        case "_rebuild_sparse_tensor", (layout, parts):
            text = _only_argument(layout)
            names = _SPARSE_PARTS.get(text, ()) if isinstance(text, str) else ()
            pairs = zip(names, parts, strict=False) if isinstance(parts, tuple) else ()
            return [(_join(path, name), part) for name, part in pairs]
        case "_rebuild_qtensor", (_, _, _, _, quantizer, *_):
            return [(_join(path, "quantizer"), quantizer)]
        case name, _ if name in _WRAPPED:
            return [(path, inner) for inner in args[:1]]
        case name, _ if name in _PLAIN:
            return []
    return _object(path, node, args)


def _object(
    path: str | None, node: PickleCall, args: tuple[Any, ...]
) -> Iterator[tuple[str | None, Any]]:
    """The parts of an instance of any class: its arguments, items, and attributes."""
    first: Any = args[0] if _name_in(node.func, "collections") == "OrderedDict" and args else None
    yield from _paired(path, first if _are_pairs(first) else enumerate(args))
    yield from _paired(path, enumerate(node.items))
    yield from _paired(path, node.pairs)
    # The state of an object with __slots__ is a pair of dictionaries.
    state = node.state
    is_pair = isinstance(state, tuple) and len(state) == 2
    slots = is_pair and all(part is None or isinstance(part, PickledDict) for part in state)
    yield from ((path, part) for part in (state if slots else (state,)))


def _are_pairs(node: Any) -> bool:
    """Whether ``node`` is a list of pairs, from which a dictionary can be built."""
    return isinstance(node, list) and all(isinstance(p, list | tuple) and len(p) == 2 for p in node)


def _paired(path: str | None, pairs: Iterable[Any]) -> Iterator[tuple[str | None, Any]]:
    for key, node in pairs:
        if type(node) in _CONTAINERS:
            yield _join(path, part_name(key)), node


def _join(path: str | None, part: str) -> str:
    """As ``join``, but truncates a long name. The truncated name is still refused as too long."""
    return join(path, part)[:_MAX_PATH]


def _name_in(node: Any, *modules: str) -> str:
    """The last part of a global's name if the global is in one of these modules; else empty."""
    return node.name if isinstance(node, Global) and node.module in modules else ""


def _function(node: PickleCall) -> str:
    return _name_in(node.func, "torch._utils", "torch._tensor")


def _of_torch(node: Any) -> str:
    return _name_in(node, "torch", "torch.storage", "torch.cuda")


def _tensor(path: str | None, node: Any, names: Names) -> StoredTensor | None:
    """The tensor that a call builds; None if it builds no tensor."""
    if type(node) is not PickleCall or _function(node) not in _PLAIN:
        return None
    args = node.args
    if not isinstance(args, tuple) or len(args) < 4:
        raise BadModelFile("a tensor in the pickle is malformed")
    storage, offset, size, strides = args[:4]
    if not isinstance(storage, Persistent):
        return None
    dtype, key, size_in_bytes = _stored_as(storage.id)
    name = _function(node)
    if name == "_rebuild_tensor_v3":
        dtype = _of_torch(args[6]) if len(args) > 6 else ""
    if dtype not in DTYPES or dtype == "raw" or _is_lazy_view(name, args):
        return None
    shape, steps = _naturals(size), _naturals(strides)
    if type(offset) is not int or not 0 <= offset < _MAX_STEP or len(shape) != len(steps):
        raise BadModelFile("a tensor in the pickle has a malformed shape")
    spec = TensorSpec(dtype, shape)
    return StoredTensor(
        names.unique(path), spec, key, offset, strides=steps, storage_bytes=size_in_bytes, node=node
    )


def _is_lazy_view(name: str, args: tuple[Any, ...]) -> bool:
    """Whether the tensor is a lazy conjugate or negative of the values in its storage."""
    at = {"_rebuild_tensor_v2": 6, "_rebuild_tensor_v3": 7}.get(name, len(args))
    flags = args[at] if len(args) > at else None
    return isinstance(flags, PickledDict) and any(value is not False for _, value in flags.pairs)


def _stored_as(id_: Any) -> tuple[str, str, int]:
    """(dtype, key, number of bytes) of a storage.

    ``id_``: ``('storage', class, key, device, elements)``. A sixth element, with which PyTorch 0.1
    described a part of another storage, is refused.
    """
    if not isinstance(id_, tuple) or len(id_) < 5 or id_[0] != "storage" or any(id_[5:]):
        raise BadModelFile("a storage in the pickle is malformed")
    dtype, key, elements = _STORAGES.get(_of_torch(id_[1]), ""), id_[2], id_[4]
    if not isinstance(key, str) or type(elements) is not int or elements < 0:
        raise BadModelFile("a storage in the pickle is malformed")
    return dtype, key, elements * (DTYPES[dtype].itemsize if dtype else 0)


def _only_argument(node: Any) -> Any:
    """The argument x of a call f(x); None if ``node`` is not such a call."""
    one = isinstance(node, PickleCall) and isinstance(node.args, tuple) and len(node.args) == 1
    return node.args[0] if one else None


def _naturals(node: Any) -> tuple[int, ...]:
    """A shape, or strides, from a tuple, a list or a torch.Size in the pickle."""
    if isinstance(node, PickleCall) and _of_torch(node.func) == "Size":
        node = _only_argument(node)
    if not isinstance(node, (tuple, list)) or not all(
        type(n) is int and 0 <= n < _MAX_STEP for n in node
    ):
        raise BadModelFile("a tensor in the pickle has a malformed shape")
    return tuple(node)


def _place_tensors(
    tensors: list[StoredTensor], storages: Mapping[str | int, ParsedContent], size: int, name: str
) -> tuple[tuple[ParsedContent, ...], tuple[ParsedTensor, ...]]:
    """Contents and tensors of a file of ``size`` bytes. ``storages``: maps keys to storages.

    Raises BadModelFile for tensors outside of their storages.
    """
    by_storage: dict[str, list[StoredTensor]] = {}
    for tensor in tensors:
        by_storage.setdefault(tensor.storage, []).append(tensor)
    places: dict[str, tuple[ParsedContent, View | None]] = {}
    for key, inside in by_storage.items():
        if key not in storages:
            raise BadModelFile(f"{name}: the storage {key} is missing or compressed")
        places |= _place(storages[key], inside, name)
    # Expanded views may be far larger than the file. Limit the time to hash them.
    unfolded = sum(t.spec.nbytes for t in tensors if places[t.key][1] is not None)
    if unfolded > MAX_UNFOLDED[0] * size + MAX_UNFOLDED[1]:
        raise BadModelFile(f"{name}: its views unfold to {unfolded} bytes")
    contents_ = {content for content, _ in places.values()}
    contents_ |= {raw for key, raw in storages.items() if key not in by_storage and raw.spec.nbytes}
    contents = sorted(contents_, key=lambda c: (c.offset, c.end, c.spec.dtype, c.spec.shape))
    index = {content: i for i, content in enumerate(contents)}
    return tuple(contents), tuple(
        ParsedTensor(t.key, t.spec, index[places[t.key][0]], places[t.key][1]) for t in tensors
    )


def _place(
    storage: ParsedContent, tensors: list[StoredTensor], name: str
) -> dict[str, tuple[ParsedContent, View | None]]:
    """Maps the key of each tensor of one storage to its content and view.

    The view is None if the tensor fills the content.
    """
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
    """Whether contiguous tensors cover [0, size) without gap or overlap.

    Several tensors at the same position count as one.
    """
    if not all(is_contiguous(t.spec.shape, t.strides) for t in tensors):
        return False
    places = {(t.start, t.spec) for t in tensors}
    ends = [(0, 0), *sorted((at, at + spec.nbytes) for at, spec in places)]
    return ends[-1][1] == size and all(a[1] == b[0] for a, b in pairwise(ends))


# -- the two formats ------------------------------------------------------------------------


def archive_name(members: Iterable[ZipMember]) -> str | None:
    """The archive's folder that contains ``data.pkl``; None if the archive is no torch file."""
    names = [m.name for m in members]
    folder = names[0].split("/")[0] if names else ""
    return folder if f"{folder}/data.pkl" in names else None


def _root(source: Source, name: str, members: Iterable[ZipMember]) -> tuple[ZipMember, Any]:
    """The member ``data.pkl`` of the archive, and its parsed pickle."""
    wanted = f"{archive_name(members)}/data.pkl"
    pickle = next((m for m in members if m.name == wanted), None)
    if pickle is None or not pickle.stored or pickle.size > MAX_PICKLE:
        raise BadModelFile(f"{name}: data.pkl is missing, compressed or too long")
    return pickle, read_pickle(source.read(pickle.start, pickle.size))


def parse_torch_zip(source: Source, name: str, members: tuple[ZipMember, ...]) -> FileParts:
    """The tensors of a file. Raises BadModelFile for files that torch would not write."""
    folder = archive_name(members)
    by_name = {m.name: m for m in members}
    pickle, root = _root(source, name, members)
    tensors = find_tensors(root)
    order = by_name.get(f"{folder}/byteorder")
    if order is not None and source.read(order.start, order.size) != b"little":
        tensors = []
    prefix = f"{folder}/data/"
    inside = {m for m in members if m.stored and m.name.startswith(prefix)}
    storages: dict[str | int, ParsedContent] = {
        m.name.removeprefix(prefix) if m in inside else m.header: _raw(m.start, m.size)
        for m in members
        if m in inside or (m.size >= _BIG_MEMBER and m is not pickle)
    }
    contents, parsed = _place_tensors(tensors, storages, source.size(), name)
    starts = [member.start for member in members]
    holding = sorted({bisect(starts, c.offset) - 1 for c in contents if c.spec.nbytes})
    return FileParts(
        "torch", contents, parsed, find_checks(source, name, [members[i] for i in holding])
    )


def _raw(start: int, size: int) -> ParsedContent:
    return ParsedContent(start, TensorSpec("raw", (size,)))


def parse_torch_old(source: Source, name: str) -> FileParts:
    """The tensors of a file. Raises BadModelFile for files that torch would not write."""
    root, sizes, at = read_old(source)
    storages: dict[str | int, ParsedContent] = {}
    for key, (width, size) in sizes.items():
        count = int.from_bytes(source.read(at, _COUNT), "little")
        if count * width != size or at + _COUNT + size > source.size():
            raise BadModelFile(f"{name}: the storage {key} has a wrong length")
        storages[key] = _raw(at + _COUNT, size)
        at += _COUNT + size
    return FileParts("torch", *_place_tensors(find_tensors(root), storages, source.size(), name))


def read_old(source: Source) -> tuple[Any, dict[str, tuple[int, int]], int]:
    """The parsed pickle of an old-format file, its storages, and the start of the first storage.

    The second result maps the key of each storage, in file order, to (bytes of an element, bytes of
    the storage). Raises BadModelFile.
    """
    if not re.match(OLD_HEAD, source.read(0, 40), re.DOTALL):
        raise BadModelFile("it is a pickle that torch.save did not write")
    references: list[Persistent] = []
    for most in (MIB, 16 * MIB, MAX_PICKLE):
        references.clear()
        try:
            (_, version, system, root, keys), at = read_pickles(source.read(0, most), 5, references)
            break
        except BadModelFile:
            if most >= min(source.size(), MAX_PICKLE):
                raise
    little = isinstance(system, PickledDict) and ("little_endian", True) in system.pairs
    if version != 1001 or not little or not isinstance(keys, list):
        raise BadModelFile("it has an unsupported version or byte order of torch's old format")
    known: dict[Any, tuple[int, int]] = {}
    for reference in references:
        if isinstance(reference.id, tuple) and reference.id[:1] == ("storage",):
            dtype, key, size = _stored_as(reference.id)
            known.setdefault(key, (DTYPES[dtype or "raw"].itemsize, size))
    if not all(isinstance(key, str) and key in known for key in keys) or len({*keys}) < len(keys):
        raise BadModelFile("its list of storages is malformed")
    return root, {key: known[key] for key in keys}, at


# -- the nesting of a stored file ----------------------------------------------------------

_VALUES = {type(None), bool, int, float, str, bytes}
_MAPPINGS = {"OrderedDict", "defaultdict", "Counter"}


class _NotPlain(Exception):
    """The pickle contains a value that is not plain data (see ``nested``)."""


UNKNOWN = object()
"""Replaces values of a pickle that are not plain data."""


def nested(file: PlacedFile, skeleton: bytes, tensor: Callable[[str], Any]) -> tuple[Any, bool]:
    """A torch file's nested value, and whether it is a dictionary of plain data only.

    ``tensor``: returns a tensor by its key. Plain data are dictionaries, lists, tuples, numbers,
    texts, bytes, booleans, None and dense tensors. Parameters become tensors. A ``Counter`` or
    ``defaultdict`` becomes a dictionary. All other values become UNKNOWN.
    """
    source, name = _SkeletonSource(file, skeleton), "the file"
    try:
        old = source.read(0, 1) == b"\x80"
        root = read_old(source)[0] if old else _root(source, name, read_members(source, name))[1]
        keys = {id(t.node): t.key for t in reversed(find_tensors(root))}
    except BadModelFile:
        return UNKNOWN, False
    if not {t.key for t in file.tensors}.issuperset(keys.values()):
        return UNKNOWN, False  # the pickle has tensors that mvc cannot read, such as big-endian
    builder = _Builder(keys, tensor)
    value = builder.value(root, 0)
    return value, builder.plain and isinstance(value, dict)


class _SkeletonSource(Source):
    """A stored file with zeros in place of its tensors."""

    def __init__(self, entry: PlacedFile, skeleton: bytes) -> None:
        runs = list(gaps([(c.offset, c.spec.nbytes) for c in entry.contents], entry.size))
        self._starts = [start for start, _ in runs]
        self._places = [0, *accumulate(length for _, length in runs)]
        self._skeleton = skeleton
        self._size = entry.size

    def size(self) -> int:
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self._size)
        out = bytearray(max(end - offset, 0))
        for i in range(max(bisect(self._starts, offset) - 1, 0), bisect(self._starts, end)):
            start, start_, last = self._starts[i], self._places[i], self._places[i + 1]
            skip = max(offset - start, 0)
            part = self._skeleton[start_ + skip : min(last, start_ + end - start)]
            out[start + skip - offset : start + skip - offset + len(part)] = part
        return bytes(out)


class _Builder:
    """Builds plain values from nodes. A node that occurs twice becomes one object.

    ``plain``: whether no value was UNKNOWN.
    """

    def __init__(self, keys: dict[int, str], tensor: Callable[[str], Any]) -> None:
        self.plain = True
        self._keys = keys
        self._tensor = tensor
        self._values: dict[int, Any] = {}

    def value(self, node: Any, depth: int) -> Any:
        """The value of a node.

        UNKNOWN if the value is not plain, nested too deeply, or inside itself.
        """
        if type(node) in _VALUES:
            return node
        if depth > MAX_DEPTH:
            self.plain = False
            return UNKNOWN
        if id(node) not in self._values:
            self._values[id(node)] = UNKNOWN
            with suppress(BadModelFile, UnicodeEncodeError, _NotPlain):
                self._values[id(node)] = self._build(node, depth + 1)
        self.plain = self.plain and self._values[id(node)] is not UNKNOWN
        return self._values[id(node)]

    def _build(self, node: Any, depth: int) -> Any:
        quantised = type(node) is PickleCall and _function(node) == "_rebuild_qtensor"
        if id(node) in self._keys and not quantised:
            return self._tensor(self._keys[id(node)])
        if isinstance(node, list | tuple):
            return type(node)([self.value(item, depth) for item in node])
        if isinstance(node, PickledDict):
            return self._dict(node.pairs, depth)
        if type(node) is not PickleCall or not isinstance(node.args, tuple) or node.items:
            raise _NotPlain
        return self._call(node, depth)

    def _call(self, node: PickleCall, depth: int) -> Any:
        args = node.args
        if _function(node) in _WRAPPED and args:
            return self.value(args[0], depth)
        kind = _name_in(node.func, "collections")
        if kind in _MAPPINGS:
            mapping = self._dict([*_initial_pairs(kind, args), *node.pairs], depth)
            return OrderedDict(mapping) if kind == "OrderedDict" else mapping
        if node.pairs or not all(type(arg) in _VALUES | {tuple, list} for arg in args):
            raise _NotPlain
        if _of_torch(node.func) == "Size":
            return _naturals(node)
        name = _name_in(node.func, "builtins", "__builtin__", "_codecs")
        match name, args:
            case "complex", (float(real), float(imaginary)):
                return complex(real, imaginary)
            case "bytes", ():
                return b""
            case "encode", (str(text), "latin1"):
                return text.encode("latin-1")  # how pickle protocols 0 to 2 write bytes
        raise _NotPlain

    def _dict(self, pairs: Iterable[Any], depth: int) -> dict[Any, Any]:
        return {_as_key(key): self.value(value, depth) for key, value in pairs}


def _as_key(node: Any) -> Any:
    """A dictionary key: a plain value or a tuple of plain values.

    Nested tuples are refused, because hashing them could take too long.
    """
    if not all(type(item) in _VALUES for item in (node if type(node) is tuple else (node,))):
        raise _NotPlain
    return node


def _initial_pairs(kind: str, args: tuple[Any, ...]) -> Iterable[Any]:
    """The pairs from which a dictionary of ``collections`` was created."""
    if kind == "defaultdict" or not args:
        return ()
    pairs = args[0].pairs if isinstance(args[0], PickledDict) else args[0]
    if not _are_pairs(pairs):
        raise _NotPlain
    return pairs
