"""A parsed model file: the positions of its tensors. The bytes of tensors are read on demand.

A *content* is a range of the file with a tensor or other large data. A *check field* has a checksum
of a range of the file. The *skeleton* is the rest of the file. Contents are sorted by offset and do
not overlap, and check fields are outside of contents. Every byte of the file is in a content, in a
check field or in the skeleton. So the file is restored exactly, even if the parser misread the
skeleton.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import BadModelFile, SourceChanged
from mvc.ids import BlobId
from mvc.io.handles import ReadFile
from mvc.limits import MAX_SKELETON, MAX_TENSORS
from mvc.model.hashing import BlobHasher, blob_id, pieces, zero_blob_id, zeros
from mvc.model.manifest import Check, Content, FileEntry, LogicalTensor, View
from mvc.model.tensor import TensorSpec
from mvc.names import check_key

if TYPE_CHECKING:
    from mvc.lossy.lc.step import Addition


CHECK_BYTES = 4


class Source(Protocol):
    """Random access to existing bytes. ``mvc.io.files.ReadFile`` is a source, for example."""

    def size(self) -> int:
        """Current number of bytes."""

    def read(self, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset`` on, or fewer bytes if the source ends earlier."""

    def read_into(self, offset: int, buffer: memoryview) -> int:
        data = self.read(offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)


class MemorySource(Source):
    """Bytes in memory as a ``Source``."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = memoryview(data)

    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.data[offset : offset + length])


class StoredSource(Source):
    """A file of a version. When the version was committed, no parser could read the file."""


class ParsedContent(Struct, frozen=True, gc=False):
    """A content: ``spec.nbytes`` bytes of the file, beginning at ``offset``."""

    offset: int
    spec: TensorSpec

    @property
    def end(self) -> int:
        return self.offset + self.spec.nbytes


class ParsedTensor(Struct, frozen=True, gc=False):
    """A named tensor of a file. ``content``: index of the content that has the tensor's bytes."""

    key: str
    spec: TensorSpec
    content: int
    view: View | None = None


class FileParts(NamedTuple):
    """What the parser of a format finds in a file."""

    format: str
    contents: tuple[ParsedContent, ...]
    tensors: tuple[ParsedTensor, ...] = ()
    checks: tuple[Check, ...] = ()


class StepFrom(Struct, frozen=True):
    """A content that is a stored tensor plus a lossy step.

    ``base``: the id of the stored tensor. ``coding``: the pipeline that encodes the step.
    """

    base: BlobId
    step: Addition
    coding: str

    def part(self, start: int, length: int) -> Addition:
        """The part of the step that is added to ``length`` bytes of the base from ``start`` on."""
        width = self.step.nbytes // max(1, len(self.step.symbols))
        symbols = self.step.symbols[start // width : (start + length) // width]
        return replace(self.step, symbols=symbols)


class ParsedFile(ABC):
    """One file, or one Python state as a virtual file of ``size`` bytes."""

    path = "the state"
    """The file's name in messages."""
    format: str
    size: int
    contents: tuple[ParsedContent, ...]
    checks: tuple[Check, ...]
    tensors: tuple[ParsedTensor, ...]
    ids: Sequence[BlobId] | None = None
    """Ids of the contents, if they were hashed and not modified since."""
    stored: Mapping[int, BlobId] = MappingProxyType({})
    """For contents that are stored already, and need not be read: maps the index to the id."""
    steps: Mapping[int, StepFrom] | None = None
    """For contents that are stored as a tensor plus a lossy step: maps the content's index to the
    step.
    """

    @abstractmethod
    def read(self, content: int, start: int, out: memoryview) -> None:
        """Fills ``out`` with bytes [start, start + len(out)) of a content.

        Raises SourceChanged if the file has become shorter. Thread-safe.
        """

    def borrow(self, content: int) -> memoryview | None:  # noqa: ARG002
        """The whole content if it is in memory, without a copy; otherwise None."""
        return None

    def copied(self, content: int) -> memoryview:
        """The whole content, in new memory."""
        import numpy as np  # imported late: not needed to detect formats

        out = np.empty(self.contents[content].spec.nbytes, np.uint8).data
        self.read(content, 0, out)
        return out

    def is_hole(self, content: int, start: int, length: int) -> bool:  # noqa: ARG002
        """Whether this range of a content is known to be zero without reading it."""
        return False

    def content_id(self, content: int, buffer: memoryview) -> BlobId:
        """The id of one content.

        ``buffer`` has room for a piece (32 MiB), or for the content if that is smaller.
        """
        if content in self.stored:
            return self.stored[content]
        spec = self.contents[content].spec
        if (borrowed := self.borrow(content)) is not None:
            return blob_id(spec, borrowed, parallel=True)
        if self.is_hole(content, 0, spec.nbytes):
            return zero_blob_id(spec)
        hasher = BlobHasher(spec, parallel=True)
        for start, length in pieces(spec):
            part = zeros(length)
            if not self.is_hole(content, start, length):
                part = buffer[:length]
                self.read(content, start, part)
            hasher.update(part)
        return hasher.done()

    @abstractmethod
    def skeleton(self) -> bytes:
        """All bytes outside of contents, in file order, with check fields set to zero."""


PlacedFile: TypeAlias = ParsedFile | FileEntry
"""A parsed file, or the entry of a file in a manifest (the list of a version's files)."""
PlacedTensor: TypeAlias = ParsedTensor | LogicalTensor


class SourceFile(ParsedFile):
    """A parsed file whose bytes are read from ``source`` on demand."""

    def __init__(self, source: Source, name: str, size: int, parts: FileParts) -> None:
        """Raises BadModelFile or InvalidName if ``parts`` are invalid for this file."""
        self._source = source
        self._name = name
        self.size = size
        self.format, self.contents, self.tensors, self.checks = parts
        _validate(self, name)

    def read(self, content: int, start: int, out: memoryview) -> None:
        read_exactly(self._source, self._name, self.contents[content].offset + start, out)

    def borrow(self, content: int) -> memoryview | None:
        if not isinstance(self._source, MemorySource):
            return None
        part = self.contents[content]
        return self._source.data[part.offset : part.end]

    def is_hole(self, content: int, start: int, length: int) -> bool:
        at = self.contents[content].offset + start
        return isinstance(self._source, ReadFile) and self._source.is_hole(at, length)

    def skeleton(self) -> bytes:
        data = bytearray(self.size - sum(c.spec.nbytes for c in self.contents))
        rest = memoryview(data)
        for start, length in gaps([(c.offset, c.spec.nbytes) for c in self.contents], self.size):
            read_exactly(self._source, self._name, start, rest[:length])
            rest = rest[length:]
        for at in skeleton_places(self.contents, (c.position for c in self.checks)):
            data[at : at + CHECK_BYTES] = bytes(CHECK_BYTES)
        return bytes(data)


def gaps(spans: list[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """The ranges of [0, size) outside of spans, as (start, length).

    ``spans``: sorted pairs of offset and length.
    """
    end = 0
    for offset, length in (*(span for span in spans if span[1]), (size, 0)):
        if offset > end:
            yield end, offset - end
        end = offset + length


def skeleton_places(
    contents: Sequence[ParsedContent | Content], positions: Iterable[int]
) -> Iterator[int]:
    """Converts positions in the file to positions in the skeleton."""
    starts = [content.offset for content in contents]
    before = list(accumulate((content.spec.nbytes for content in contents), initial=0))
    return (at - before[bisect(starts, at)] for at in positions)


def read_exactly(source: Source, name: str, offset: int, out: memoryview) -> None:
    """Fills ``out`` with the bytes from ``offset`` on.

    Raises SourceChanged if the file ends earlier.
    """
    if source.read_into(offset, out) != len(out):
        raise SourceChanged(
            f"{name} became shorter while it was read",
            hint="wait until its writer is done, then try again",
        )


def _validate(parsed: SourceFile, name: str) -> None:
    contents, tensors, size = parsed.contents, parsed.tensors, parsed.size
    fields = [(c.position, c.position + CHECK_BYTES) for c in parsed.checks]
    outside = size - sum(c.spec.nbytes for c in contents)
    problems = {
        "two tensors overlap": _overlap([(c.offset, c.end) for c in contents]),
        "a tensor reaches past the end of the file": any(c.end > size for c in contents),
        f"more than {MAX_SKELETON} bytes are outside its tensors": outside > MAX_SKELETON,
        f"it has more than {MAX_TENSORS} tensors": max(len(contents), len(tensors)) > MAX_TENSORS,
        "a checksum field is inside a tensor": any(stop > size for _, stop in fields)
        or _overlap(sorted([(c.offset, c.end) for c in contents if c.spec.nbytes] + fields)),
        "two tensors have the same name": len({t.key for t in tensors}) != len(tensors),
    }
    for problem, present in problems.items():
        if present:
            raise BadModelFile(f"{name}: {problem}")
    for tensor in tensors:
        check_key(tensor.key)


def _overlap(spans: list[tuple[int, int]]) -> bool:
    """Whether one of these (start, end) spans starts before 0, or before the previous span ends."""
    return any(start < end for (start, _), (_, end) in zip(spans, [(0, 0), *spans], strict=False))
