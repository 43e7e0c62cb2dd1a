"""Files to commit from memory, such as the file that stores a ``state_dict``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from msgspec import Struct

from mvc.adapters.files.detect import opaque
from mvc.adapters.hashing import content_bytes, hash_file
from mvc.adapters.parsed import MemorySource, ParsedFile, StepFrom
from mvc.adapters.python.arrays import array_bytes, has_dtype, make_array
from mvc.adapters.python.state import from_state, to_state
from mvc.adapters.replaced import ReplacedFile
from mvc.adapters.views import extract
from mvc.ids import BlobId, Root
from mvc.model.manifest import FileEntry, LogicalTensor
from mvc.model.tensor import DTYPES, TensorSpec
from mvc.names import DEFAULT_STATE

if TYPE_CHECKING:
    from mvc.lossy.reducer import Array, Arrays, Reducer

Specs: TypeAlias = Mapping[str, TensorSpec]


class FileArrays(Struct, frozen=True):
    """Tensors of a file as arrays. ``arrays``: maps the name of a tensor to its array.

    If numpy does not have the dtype of a tensor, such as bfloat16, the array has unsigned integers,
    and ``dtypes`` maps the tensor's name to the dtype. ``contents``: maps the tensor's name to the
    number of its content. The contents of a file are its separately stored parts.
    """

    arrays: dict[str, Array]
    dtypes: dict[str, str]
    contents: dict[str, int]

    @classmethod
    def of(cls, parsed: ParsedFile) -> FileArrays:
        """The tensors of a file, without empty tensors and without views (parts of contents).

        Of tied tensors, only the first is included.
        """
        result = cls({}, {}, {})
        seen: set[int] = set()
        for tensor in parsed.tensors:
            spec = parsed.contents[tensor.content].spec
            if tensor.view is not None or tensor.content in seen or not spec.nbytes:
                continue
            seen.add(tensor.content)
            result.arrays[tensor.key] = array_of(spec, content_bytes(parsed, tensor.content))
            result.contents[tensor.key] = tensor.content
            if not has_dtype(spec.dtype):
                result.dtypes[tensor.key] = spec.dtype
        return result


def array_of(spec: TensorSpec, data: memoryview) -> Array:
    """``data`` as an array. If numpy does not have the dtype, the array has unsigned integers."""
    if has_dtype(spec.dtype):
        return make_array(spec, data)
    words = np.dtype(f"<u{DTYPES[spec.dtype].itemsize}")
    return np.frombuffer(data, words).reshape(spec.shape)


class StateFile:
    """A file that ``Repository.commit({path: file})`` stores unchanged.

    The file shares the memory of the original state: do not modify the state before the commit.
    """

    def __init__(self, parsed: ParsedFile) -> None:
        self.parsed = parsed

    @classmethod
    def of(cls, state: Mapping[Any, Any]) -> Self:
        """A file that stores a state: nested mappings and lists of tensors and plain values.

        Raises InvalidName, and UnsupportedTensor for a value that cannot be stored exactly.
        """
        return cls(from_state(state))

    @classmethod
    def of_bytes(cls, data: bytes) -> Self:
        """A file that stores bytes. It has no tensors."""
        return cls(opaque(MemorySource(data)))

    @cached_property
    def entry(self) -> FileEntry:
        """The file's entry in a manifest, except for its path."""
        return hash_file(self.parsed, DEFAULT_STATE)

    @property
    def root(self) -> Root:
        """The Merkle root of the file's tensors."""
        return self.entry.state.root

    @property
    def approximated(self) -> frozenset[str]:
        """The names of the tensors that are stored as lossy deltas."""
        steps = self.parsed.steps or {}
        return frozenset(t.key for t in self.parsed.tensors if t.content in steps)

    def arrays(self) -> FileArrays:
        """The file's tensors as arrays. The arrays share the file's memory if possible: do not
        modify them.
        """
        return FileArrays.of(self.parsed)

    def with_arrays(self, arrays: Arrays) -> StateFile:
        """A file in which these arrays replace the tensors of the same names."""
        places = {tensor.key: tensor.content for tensor in self.parsed.tensors}
        replaced = {places[name]: array_bytes(array) for name, array in arrays.items()}
        return StateFile(ReplacedFile(self.parsed, replaced, {}))

    def reduced(
        self,
        reducer: Reducer,
        before: Callable[[Specs], Arrays],
        ids: Mapping[str, BlobId],
        *,
        loss: float | None = None,
    ) -> StateFile:
        """A file with lossy tensors, computed by ``reducer`` from this file and an older version.

        ``before``: takes dtypes and shapes by name, and returns the tensors of the older version
        that match. ``ids``: the ids of all tensors of the older version. The lossy tensors are
        stored as deltas from the tensors with these ids.
        """
        current = self.arrays()
        specs = {name: self.parsed.contents[i].spec for name, i in current.contents.items()}
        specs = {name: s for name, s in specs.items() if reducer.may_change(name, s.dtype)}
        training = {name: current.arrays[name] for name in specs}
        reduction = reducer.reduce(
            before(specs) or None, training, loss=loss, dtypes=current.dtypes
        )
        contents, coding = current.contents, reducer.pipeline.text
        steps = {contents[n]: StepFrom(ids[n], s, coding) for n, s in reduction.steps.items()}
        replaced = {
            contents[n]: array_bytes(a) for n, a in reduction.arrays.items() if a is not training[n]
        }
        return StateFile(ReplacedFile(self.parsed, replaced, steps))

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """The dtypes and shapes of the file's tensors, by name."""
        return {tensor.key: tensor.spec for tensor in self.parsed.tensors}

    @property
    def in_memory(self) -> bool:
        """Whether tensors are in memory. Always False after ``with_arrays`` and ``reduced``."""
        borrowed = (self.parsed.borrow(i) is not None for i in range(len(self.parsed.contents)))
        return self.parsed.steps is None and any(borrowed)

    def nested(self) -> Any:
        """The state as ``checkout`` returns it. The tensors are copies.

        Exception: tensors that ``with_arrays`` or ``reduced`` replaced share memory with this file.
        """
        return to_state(self.parsed, self.parsed.skeleton(), self.parsed.copied)

    def tensor_bytes(self, tensor: LogicalTensor) -> memoryview:
        """The bytes of a tensor of ``entry`` in row-major order. Copies only if necessary."""
        data = content_bytes(self.parsed, tensor.content)
        return data if tensor.view is None else extract(data, tensor.spec, tensor.view)


def root_of(state: Any) -> Root:
    """The Merkle root (a hash) that a commit of this state would have. States with equal bits have
    equal roots.
    """
    return StateFile.of(state).root
