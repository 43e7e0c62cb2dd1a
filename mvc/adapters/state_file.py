"""A file of a version on its way to a commit: a state, bytes, or a model file that was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from msgspec import Struct

from mvc.adapters.files.detect import opaque
from mvc.adapters.hashing import hash_file, whole
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
    """Tensors of a file as arrays, by name.

    A tensor whose dtype numpy lacks is an array of unsigned integers, and ``dtypes`` has its
    dtype. ``contents`` has the position of each tensor's content in the file.
    """

    arrays: dict[str, Array]
    dtypes: dict[str, str]
    contents: dict[str, int]

    @classmethod
    def of(cls, parsed: ParsedFile) -> FileArrays:
        """The tensors with elements that are whole contents, not views into a raw storage."""
        made = cls({}, {}, {})
        seen: set[int] = set()
        for tensor in parsed.tensors:
            spec = parsed.contents[tensor.content].spec
            if tensor.view is not None or tensor.content in seen or not spec.nbytes:
                continue
            seen.add(tensor.content)
            made.arrays[tensor.key] = array_of(spec, whole(parsed, tensor.content))
            made.contents[tensor.key] = tensor.content
            if not has_dtype(spec.dtype):
                made.dtypes[tensor.key] = spec.dtype
        return made


def array_of(spec: TensorSpec, data: memoryview) -> Array:
    """An array over ``data``: of unsigned integers where numpy lacks the dtype."""
    if has_dtype(spec.dtype):
        return make_array(spec, data)
    words = np.dtype(f"<u{DTYPES[spec.dtype].itemsize}")
    return np.frombuffer(data, words).reshape(spec.shape)


class StateFile:
    """What ``Repository.commit({path: file})`` stores as it is.

    It is hashed at most once and refers to the memory that it was made of: nobody may write there
    before it is committed.
    """

    def __init__(self, parsed: ParsedFile) -> None:
        self.parsed = parsed

    @classmethod
    def of(cls, state: Mapping[Any, Any]) -> Self:
        """A state: mappings and lists of tensors and plain values.

        Raises UnsupportedTensor for what cannot be kept exactly, and InvalidName.
        """
        return cls(from_state(state))

    @classmethod
    def of_bytes(cls, data: bytes) -> Self:
        """A file without tensors."""
        return cls(opaque(MemorySource(data)))

    @cached_property
    def entry(self) -> FileEntry:
        """What the version's manifest says of the file, but for its path."""
        return hash_file(self.parsed, DEFAULT_STATE)

    @property
    def root(self) -> Root:
        """The Merkle root of its tensors."""
        return self.entry.state.root

    @property
    def approximated(self) -> frozenset[str]:
        """The names of the tensors that are stored as approximate steps."""
        steps = self.parsed.steps or {}
        return frozenset(t.key for t in self.parsed.tensors if t.content in steps)

    def arrays(self) -> FileArrays:
        """Its tensors as arrays, which share the file's memory if possible; do not modify them."""
        return FileArrays.of(self.parsed)

    def with_arrays(self, arrays: Arrays) -> StateFile:
        """The file with these arrays in the place of the tensors of their names."""
        places = {tensor.key: tensor.content for tensor in self.parsed.tensors}
        made = {places[name]: array_bytes(array) for name, array in arrays.items()}
        return StateFile(ReplacedFile(self.parsed, made, {}))

    def reduced(
        self,
        reducer: Reducer,
        before: Callable[[Specs], Arrays],
        ids: Mapping[str, BlobId],
        *,
        loss: float | None = None,
    ) -> StateFile:
        """The file as ``reducer`` makes it after a stored version of it.

        ``before`` gives that version's tensors of these names, dtypes and shapes, as far as it has
        them, and ``ids`` has the ids of all: what is approximated is stored as a step from there.
        """
        given = self.arrays()
        specs = {name: self.parsed.contents[i].spec for name, i in given.contents.items()}
        specs = {name: s for name, s in specs.items() if reducer.may_change(name, s.dtype)}
        training = {name: given.arrays[name] for name in specs}
        made = reducer.reduce(before(specs) or None, training, loss=loss, dtypes=given.dtypes)
        contents, coding = given.contents, reducer.pipeline.text
        steps = {contents[n]: StepFrom(ids[n], s, coding) for n, s in made.steps.items()}
        replaced = {
            contents[n]: array_bytes(a) for n, a in made.arrays.items() if a is not training[n]
        }
        return StateFile(ReplacedFile(self.parsed, replaced, steps))

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """The dtypes and shapes of its tensors, by name."""
        return {tensor.key: tensor.spec for tensor in self.parsed.tensors}

    @property
    def in_memory(self) -> bool:
        """Whether it lies in memory: it is not read or put together, or made of steps, only now."""
        lies = (self.parsed.borrow(i) is not None for i in range(len(self.parsed.contents)))
        return self.parsed.steps is None and any(lies)

    def nested(self) -> Any:
        """The state as ``checkout`` returns it, in memory of its own but for what was replaced."""
        return to_state(self.parsed, self.parsed.skeleton(), self.parsed.copied)

    def tensor_bytes(self, tensor: LogicalTensor) -> memoryview:
        """The row-major bytes of a tensor of ``entry``, borrowed where they lie so in memory."""
        data = whole(self.parsed, tensor.content)
        return data if tensor.view is None else extract(data, tensor.spec, tensor.view)


def root_of(state: Any) -> Root:
    """The Merkle root that a commit of this state would have: equal bits, equal root."""
    return StateFile.of(state).root
