"""A parsed file as the store reads it: contents by position, and their bytes on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from mvc.ids import BlobId
from mvc.lossy.lc.step import Addition
from mvc.model.tensor import TensorSpec


class _Content(Protocol):
    @property
    def spec(self) -> TensorSpec: ...


class MadeFrom(Protocol):
    """How a content was made: the stored blob ``base`` plus a step, coded by ``coding``."""

    @property
    def base(self) -> BlobId: ...
    @property
    def coding(self) -> str: ...
    def part(self, start: int, length: int) -> Addition:
        """What is added to so many bytes of the base."""
        ...


class FileContents(Protocol):
    """A parsed file, as ``mvc.adapters.parsed.ParsedFile`` is one."""

    @property
    def contents(self) -> Sequence[_Content]: ...
    @property
    def ids(self) -> Sequence[BlobId] | None: ...
    @property
    def steps(self) -> Mapping[int, MadeFrom] | None: ...
    def read(self, content: int, start: int, out: memoryview) -> None: ...
    def borrow(self, content: int) -> memoryview | None: ...
    def is_hole(self, content: int, start: int, length: int) -> bool: ...
    def content_id(self, content: int, buffer: memoryview) -> BlobId:
        """The id of one content; ``buffer`` holds a piece of it, or the whole if that is less."""
        ...
