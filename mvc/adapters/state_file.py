"""A file of a version on its way to a commit: a state, bytes, or a model file that was read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self

from mvc.adapters.files.detect import opaque
from mvc.adapters.hashing import hash_finally, whole
from mvc.adapters.parsed import MemorySource, ParsedFile
from mvc.adapters.python.state import from_state, to_state
from mvc.adapters.views import extract
from mvc.ids import Root
from mvc.model.manifest import FileEntry, LogicalTensor
from mvc.names import DEFAULT_STATE


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
        return hash_finally(self.parsed, DEFAULT_STATE)

    @property
    def root(self) -> Root:
        """The Merkle root of its tensors."""
        return self.entry.state.root

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of its tensors, in the order of the file."""
        return tuple(tensor.key for tensor in self.parsed.tensors)

    @property
    def in_memory(self) -> bool:
        """Whether it lies in memory: it is not read or put together, or made of steps, only now."""
        lies = (self.parsed.borrow(i) is not None for i in range(len(self.parsed.contents)))
        return self.parsed.steps is None and any(lies)

    def nested(self) -> Any:
        """The state as ``checkout`` returns it; it borrows the file's memory where it can."""
        return to_state(self.entry, self.parsed.skeleton(), lambda i: whole(self.parsed, i))

    def tensor_bytes(self, tensor: LogicalTensor) -> memoryview:
        """The row-major bytes of a tensor of ``entry``, borrowed where they lie so in memory."""
        data = whole(self.parsed, tensor.content)
        return data if tensor.view is None else extract(data, tensor.spec, tensor.view)


def root_of(state: Any) -> Root:
    """The Merkle root that a commit of this state would have: equal bits, equal root."""
    return StateFile.of(state).root
