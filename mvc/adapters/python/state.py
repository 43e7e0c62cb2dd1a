"""Python states (nested dictionaries of torch tensors and numpy arrays) as virtual files.

A virtual file has the layout of a safetensors file. A tensor's name consists of the tensor's keys
in the nested dictionaries, joined with '.'. Tensors are sorted by descending item size, for
alignment. The nesting and all other values are JSON in ``__metadata__["mvc"]`` (``mvc.structure``).
Every safetensors reader can read such a file, unless a tensor is complex32 or complex128. For these
dtypes, mvc writes names that safetensors does not have: ``C32`` and ``C128``.

Tied tensors have equal content under several names. Devices, the type ``Parameter``, and attributes
of dictionaries such as ``_metadata`` are not stored.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from mvc.adapters.files.safetensors import (
    LENGTH_BYTES,
    header_bytes,
    header_entry,
    safetensors_header,
)
from mvc.adapters.parsed import ParsedContent, ParsedFile, ParsedTensor, PlacedFile, PlacedTensor
from mvc.adapters.python.arrays import (
    array_bytes,
    array_spec,
    borrowed_bytes,
    has_dtype,
    has_torch,
    make_array,
    make_tensor,
    tensor_bytes,
    tensor_spec,
)  # fmt: skip
from mvc.adapters.views import extract
from mvc.errors import DamagedData, UnknownPath, UnsupportedTensor, WrongUsage
from mvc.limits import MAX_SAFETENSORS_HEADER
from mvc.model.manifest import FileEntry
from mvc.model.tensor import DTYPES, TensorSpec
from mvc.names import check_key, printable
from mvc.structure import Names, decode, encode

Buffers = Callable[[int], Any]
"""Takes the number of a content. Returns the bytes of this content, as a memoryview or array.

If the bytes are writable, the result's tensors share their memory.
"""


class LazyTensor(Struct, frozen=True):
    """A torch tensor in a state. Its bytes are produced when they are needed.

    ``read(start, out)`` fills ``out`` with the tensor's row-major bytes from ``start`` on. Several
    threads may call ``read``.
    """

    spec: TensorSpec
    read: Callable[[int, memoryview], None]


class _Array(Struct, frozen=True):
    """One torch tensor or numpy array of a state."""

    key: str
    spec: TensorSpec
    value: Any
    is_torch: bool

    def borrow(self) -> memoryview | None:
        if isinstance(self.value, LazyTensor):
            return None
        if self.is_torch:
            return borrowed_bytes(self.value)
        return array_bytes(self.value) if self.value.flags.c_contiguous else None

    def rows(self) -> memoryview:
        """The array's row-major bytes. Copies only if necessary."""
        if self.is_torch:
            return tensor_bytes(self.value)
        return array_bytes(np.ascontiguousarray(self.value))


class _Collector:
    """Collects the arrays of a state, while ``encode`` calls ``leaf`` for each value."""

    def __init__(self) -> None:
        self.arrays: list[_Array] = []
        self._names = Names()
        self._names.unique("__metadata__")  # reserved in the header
        # Without torch in the process, no value can be a torch tensor.
        self._torch: Any = sys.modules.get("torch")

    def leaf(self, place: str, value: Any) -> tuple[str, str] | None:
        if self._torch is not None and isinstance(value, self._torch.Tensor):
            tag, spec = "torch", tensor_spec(value, place)
        elif isinstance(value, LazyTensor):
            tag, spec = "torch", value.spec
        elif isinstance(value, np.generic):
            tag, spec, value = "scalar", array_spec(value, place), np.asarray(value)
        elif type(value) in {np.ndarray, np.memmap}:
            tag, spec = "numpy", array_spec(value, place)
        else:
            return None
        key = check_key(self._names.unique(place))
        self.arrays.append(_Array(key, spec, value, tag == "torch"))
        return tag, key


class _ParsedState(ParsedFile):
    """The virtual file of a state.

    The file reads the state's arrays, which must not change while the file is in use.
    """

    format = "state"
    checks = ()

    def __init__(self, header: bytes, arrays: list[_Array]) -> None:
        self._header = header
        self._arrays = arrays
        self._lock = threading.Lock()
        # The bytes of the array that was read last. Only one array is cached, to save memory.
        self._rows: tuple[int, memoryview] | None = None
        ends = list(accumulate((a.spec.nbytes for a in arrays), initial=len(header)))
        self.contents = tuple(map(ParsedContent, ends, (a.spec for a in arrays)))
        self.tensors = tuple(ParsedTensor(a.key, a.spec, i) for i, a in enumerate(arrays))
        self.size = ends[-1]

    def borrow(self, content: int) -> memoryview | None:
        return self._arrays[content].borrow()

    def read(self, content: int, start: int, out: memoryview) -> None:
        array = self._arrays[content]
        if isinstance(array.value, LazyTensor):
            array.value.read(start, out)
            return
        with self._lock:
            if self._rows is None or self._rows[0] != content:
                self._rows = None
                self._rows = (content, array.rows())
            view = self._rows[1]
        out[:] = view[start : start + len(out)]

    def skeleton(self) -> bytes:
        return self._header


def from_state(obj: Mapping[Any, Any]) -> ParsedFile:
    """A state as a virtual safetensors file. Contiguous arrays in memory are not copied.

    Raises UnsupportedTensor for a value that cannot be stored exactly, InvalidName for an invalid
    name, and WrongUsage if ``obj`` is not a mapping.
    """
    if not isinstance(obj, Mapping):
        raise WrongUsage(
            f"a state is a dictionary, not a {type(obj).__qualname__}",
            hint="commit model.state_dict(), or a dictionary with the tensor",
        )
    collector = _Collector()
    structure = encode(obj, collector.leaf)
    arrays = sorted(collector.arrays, key=lambda a: -DTYPES[a.spec.dtype].itemsize)
    metadata = {"mvc": structure}
    if any(a.is_torch for a in arrays):
        metadata["format"] = "pt"  # other tools expect this entry
    return _ParsedState(_header(metadata, ((a.key, a.spec) for a in arrays)), arrays)


def combined_header(
    file: FileEntry, skeletons: Sequence[bytes], tensors: Mapping[str, TensorSpec]
) -> bytes | None:
    """The header of a new file that has ``tensors`` of two files, in this order, for a merge.

    ``file``: the first of the two files. The result has the metadata of ``file``. ``skeletons``:
    the bytes outside of tensors in the two files. None if one of the files is a state that is
    nested or has other values than tensors.
    """
    metadata = safetensors_header(skeletons[0], file.path).get("__metadata__", {})
    if file.format == "state":
        states = [decode_state(skeleton, file.path, _Leaf) for skeleton in skeletons]
        every = [item for state in states for item in state.items()]
        if any(not isinstance(leaf, _Leaf) or leaf.key != key for key, leaf in every):
            return None
        leaves = {key: leaf for key, leaf in every if key in tensors}
        metadata["mvc"] = encode(leaves, lambda _, leaf: leaf if isinstance(leaf, _Leaf) else None)
    return _header(metadata, tensors.items())


class _Leaf(NamedTuple):
    tag: str
    key: str


def _header(metadata: Mapping[str, str], tensors: Iterable[tuple[str, TensorSpec]]) -> bytes:
    # Encoded entry by entry, because a list of all entries as objects takes much memory.
    parts = [_json({"__metadata__": metadata})[:-1]]
    end = 0
    for key, spec in tensors:
        parts.append(_json({key: header_entry(spec, end)})[1:-1])
        end += spec.nbytes
    header = header_bytes(",".join(parts) + "}")
    if len(header) - LENGTH_BYTES > MAX_SAFETENSORS_HEADER:
        raise UnsupportedTensor(
            f"the state's plain values exceed {MAX_SAFETENSORS_HEADER} bytes",
            hint="store long lists of numbers as arrays",
        )
    return header


NUMPY = frozenset({"npz", "npy", "hdf5", "keras"})
"""Formats whose own libraries return numpy arrays."""

_json = json.JSONEncoder(separators=(",", ":")).encode


def to_state(entry: PlacedFile, skeleton: bytes, content: Buffers) -> Any:
    """The values of a file: a nested state, or a dictionary {name: tensor}.

    The result is nested if the file stores a Python state, or is a torch file with a dictionary of
    plain data. Tensors of a state have the type (torch or numpy) with which they were committed.
    Tensors of files in the formats ``NUMPY`` are numpy arrays. All other tensors, and dtypes that
    numpy lacks, are torch tensors. If torch is not installed, all tensors are numpy arrays. Strided
    views become contiguous. Raises DamagedData, BadModelFile; NotInstalled if a dtype needs torch.
    """
    reader = _Reader(entry, content)

    def leaf(tag: str, key: str) -> Any:
        array = reader.array(key, "torch" if tag == "torch" else "numpy")
        return array[()] if tag == "scalar" else array

    state, plain = nested_state(entry, skeleton, leaf)
    if plain:
        return state
    library = "numpy" if entry.format in NUMPY else "torch"
    return {key: reader.array(key, library) for key in reader.by_key}


def nested_state(
    file: PlacedFile, skeleton: bytes, leaf: Callable[[str, str], Any]
) -> tuple[Any, bool]:
    """The nested value of a state or torch file, and whether the value is a plain dictionary.

    ``leaf``: see ``decode_state``. For files of other formats, returns (None, False). Raises
    DamagedData, BadModelFile.
    """
    if file.format == "torch":
        from mvc.adapters.files.torch_files import nested

        return nested(file, skeleton, partial(leaf, "torch"))
    if file.format == "state":
        return decode_state(skeleton, file.path, leaf), True
    return None, False


def decode_state(skeleton: bytes, path: str, leaf: Callable[[str, str], Any]) -> Any:
    """The nested state of a file with this skeleton (the bytes outside of tensors).

    The state has the result of ``leaf(tag, key)`` in place of the array with the name ``key``.
    ``tag`` is torch, numpy or scalar. ``path``: the file's path for messages. Raises DamagedData,
    BadModelFile.
    """
    structure = safetensors_header(skeleton, path).get("__metadata__", {}).get("mvc")
    if structure is None:
        raise DamagedData(f"{path} lacks the structure of its state")
    return decode(structure, leaf)


def values(
    entry: FileEntry, content: Buffers, keys: Collection[str] | None, library: str
) -> dict[str, Any]:
    """Maps the names ``keys`` (None: all names) to tensors. ``library``: ``torch`` or ``numpy``.

    If torch is not installed, all tensors are numpy arrays. Raises UnknownPath.
    """
    reader = _Reader(entry, content)
    wanted = [t.key for t in entry.tensors] if keys is None else keys
    missing = [key for key in wanted if key not in reader.by_key]
    if missing:
        raise UnknownPath(
            f"{entry.path} has no tensor {printable(missing[0])}",
            hint="`mvc ls` lists the contents of a version",
        )
    return {key: reader.array(key, library) for key in wanted}


class _Reader:
    """Makes arrays from the bytes of a file's tensors. Caches the storage that was read last."""

    def __init__(self, entry: PlacedFile, content: Buffers) -> None:
        self.by_key = {t.key: t for t in entry.tensors}
        self._path = entry.path
        self._content = content
        self._storage: tuple[int, memoryview] | None = None

    def array(self, key: str, library: str) -> Any:
        tensor = self.by_key.get(key)
        if tensor is None:
            raise DamagedData(f"{self._path} lacks the tensor {key}")
        data = self._bytes(tensor)
        of_torch = library == "torch" or not has_dtype(tensor.spec.dtype, extended=True)
        if of_torch and has_torch():
            return make_tensor(tensor.spec, data)
        return make_array(tensor.spec, data)

    def _bytes(self, tensor: PlacedTensor) -> memoryview:
        if tensor.view is None:
            return memoryview(self._content(tensor.content))
        if self._storage is None or self._storage[0] != tensor.content:
            self._storage = None
            self._storage = (tensor.content, memoryview(self._content(tensor.content)))
        return extract(self._storage[1], tensor.spec, tensor.view)
