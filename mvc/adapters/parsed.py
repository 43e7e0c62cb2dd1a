"""A parsed file: the places of its tensors, and its bytes on demand.

Invariant: contents are sorted by offset and do not overlap, check fields lie
outside them, and contents, check fields and skeleton make up every byte of the
file. So the file is restored exactly even if the parser misread the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from mvc.errors import BadModelFile, SourceChanged
from mvc.io.handles import ReadFile
from mvc.limits import MAX_SKELETON, MAX_TENSORS
from mvc.model.manifest import Check, View
from mvc.model.names import check_key
from mvc.model.tensor import TensorSpec

__all__ = [
    "FileParts",
    "ParsedContent",
    "ParsedFile",
    "ParsedTensor",
    "Source",
    "SourceFile",
    "gaps",
    "read_exactly",
]

CHECK_BYTES = 4


class Source(Protocol):
    """Random access to existing bytes, such as ``mvc.io.files.ReadFile``."""

    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes: ...

    def read_into(self, offset: int, buffer: memoryview) -> int: ...


@dataclass(frozen=True, slots=True)
class ParsedContent:
    """A blob that fills ``spec.nbytes`` bytes of the file from ``offset``."""

    offset: int
    spec: TensorSpec

    @property
    def end(self) -> int:
        return self.offset + self.spec.nbytes


@dataclass(frozen=True, slots=True)
class ParsedTensor:
    """A named tensor; as ``manifest.LogicalTensor``, before anything is hashed."""

    key: str
    spec: TensorSpec
    content: int
    view: View | None = None


@dataclass(frozen=True, slots=True)
class FileParts:
    """The result of a format's parser."""

    format: str
    contents: tuple[ParsedContent, ...]
    tensors: tuple[ParsedTensor, ...] = ()
    checks: tuple[Check, ...] = ()


class ParsedFile(ABC):
    """One file, or one Python state seen as a file of ``size`` bytes."""

    format: str
    size: int
    contents: tuple[ParsedContent, ...]
    checks: tuple[Check, ...]
    tensors: tuple[ParsedTensor, ...]

    @abstractmethod
    def read(self, content: int, start: int, out: memoryview) -> None:
        """Fills ``out`` with bytes [start, start + len(out)) of a content.

        Raises SourceChanged if the file has become shorter. Safe in several threads.
        """

    def borrow(self, content: int) -> memoryview | None:
        """The whole content as it lies in memory, without a copy, or None."""
        del content
        return None

    def is_hole(self, content: int, start: int, length: int) -> bool:
        """Whether this range of a content is known to be zero without being read."""
        del content, start, length
        return False

    @abstractmethod
    def skeleton(self) -> bytes:
        """Every byte outside the contents, in file order, with check fields set to zero."""


class SourceFile(ParsedFile):
    """A parsed file whose bytes are read from ``source`` when asked for."""

    def __init__(self, source: Source, name: str, size: int, parts: FileParts) -> None:
        """Raises BadModelFile or InvalidName if ``parts`` break the invariant above."""
        self._source = source
        self._name = name
        self.size = size
        self.format = parts.format
        self.contents = parts.contents
        self.checks = parts.checks
        self.tensors = parts.tensors
        _validate(self, name)

    def read(self, content: int, start: int, out: memoryview) -> None:
        read_exactly(self._source, self._name, self.contents[content].offset + start, out)

    def is_hole(self, content: int, start: int, length: int) -> bool:
        file = self._source
        at = self.contents[content].offset + start
        return isinstance(file, ReadFile) and file.is_hole(at, length)

    def skeleton(self) -> bytes:
        outside = gaps([(c.offset, c.spec.nbytes) for c in self.contents], self.size)
        data = bytearray(self.size - sum(c.spec.nbytes for c in self.contents))
        fields = sorted(c.position for c in self.checks)
        done = at = 0
        for start, length in outside:
            read_exactly(self._source, self._name, start, memoryview(data)[done : done + length])
            while at < len(fields) and fields[at] < start + length:
                place = done + fields[at] - start
                data[place : place + CHECK_BYTES] = bytes(CHECK_BYTES)
                at += 1
            done += length
        return bytes(data)


def gaps(spans: list[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """(start, length) of every run of bytes in [0, size) outside sorted (offset, length) spans."""
    end = 0
    for offset, length in spans:
        if not length:
            continue
        if offset > end:
            yield end, offset - end
        end = offset + length
    if size > end:
        yield end, size - end


def read_exactly(source: Source, name: str, offset: int, out: memoryview) -> None:
    """Fills ``out`` from ``offset``, or raises SourceChanged: the size was known before."""
    if source.read_into(offset, out) != len(out):
        raise SourceChanged(
            f"{name} became shorter while it was read",
            hint="wait until whatever writes it is done, then try again",
        )


def _validate(parsed: SourceFile, name: str) -> None:
    end = 0
    spans: list[tuple[int, int]] = []
    for content in parsed.contents:
        if content.offset < end:
            raise BadModelFile(f"{name}: two tensors lie over each other")
        end = content.end
        spans.append((content.offset, content.spec.nbytes))
    if end > parsed.size:
        raise BadModelFile(f"{name}: a tensor reaches past the end of the file")
    if parsed.size - sum(n for _, n in spans) > MAX_SKELETON:
        raise BadModelFile(f"{name}: more than {MAX_SKELETON} bytes lie outside its tensors")
    if len(parsed.contents) > MAX_TENSORS or len(parsed.tensors) > MAX_TENSORS:
        raise BadModelFile(f"{name}: it has more than {MAX_TENSORS} tensors")
    _validate_checks(parsed, name, spans)
    for tensor in parsed.tensors:
        check_key(tensor.key)
    if len({t.key for t in parsed.tensors}) != len(parsed.tensors):
        raise BadModelFile(f"{name}: two tensors have one name")


def _validate_checks(parsed: SourceFile, name: str, spans: list[tuple[int, int]]) -> None:
    marks = [(o, o + n) for o, n in spans if n]
    marks += [(c.position, c.position + CHECK_BYTES) for c in parsed.checks]
    marks.sort()
    end = 0
    for start, stop in marks:
        if start < end or stop > parsed.size:
            raise BadModelFile(f"{name}: a checksum field lies inside a tensor")
        end = stop
