"""Reads contents (the bytes of tensors) on demand from the files of a version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path

from msgspec import Struct

from mvc.adapters.parsed import FileParts, ParsedContent, SourceFile
from mvc.errors import DamagedData
from mvc.io.files import FileSystem
from mvc.io.handles import ReadFile
from mvc.model.manifest import FileEntry
from mvc.names import printable
from mvc.repo.content.contents import ReadPart
from mvc.store.recovery.recover import Available


@contextmanager
def contents_in(
    fs: FileSystem, files: Mapping[Path, FileEntry]
) -> Iterator[tuple[dict[bytes, Available], dict[bytes, ReadPart]]]:
    """Yields two mappings from content ids: to the contents, and to functions that read contents.

    The first mapping contains skeletons, too. A skeleton is the bytes of a file outside tensors.
    ``files``: maps a path to the entry of its file. A file is opened when it is first read.
    """
    with ExitStack() as stack:
        contents, parts = dict[bytes, Available](), dict[bytes, ReadPart]()
        for path, entry in files.items():
            opened = cache(lambda path=path: stack.enter_context(fs.open_read(path)))
            for content in entry.contents:
                stored = _InFile(opened, content.offset, content.spec.nbytes)
                contents[content.id], parts[content.id] = stored, stored.read_into
            if entry.skeleton is not None:
                contents[entry.skeleton] = _Skeleton(cache(partial(_skeleton, opened, entry)))
        yield contents, parts


def _skeleton(opened: Callable[[], ReadFile], entry: FileEntry) -> memoryview:
    contents = tuple(ParsedContent(c.offset, c.spec) for c in entry.contents)
    parts = FileParts(entry.format, contents, (), entry.checks)
    return memoryview(SourceFile(opened(), entry.path, entry.size, parts).skeleton())


class _Skeleton(Struct, frozen=True):
    read: Callable[[], memoryview]

    def __getitem__(self, part: slice, /) -> memoryview:
        return self.read()[part]


class _InFile(Struct, frozen=True):
    opened: Callable[[], ReadFile]
    offset: int
    nbytes: int

    def __getitem__(self, part: slice, /) -> memoryview:
        start, stop, _ = part.indices(self.nbytes)
        data = memoryview(bytearray(max(0, stop - start)))
        self.read_into(start, data)
        return data

    def read_into(self, start: int, out: memoryview) -> None:
        """Fills ``out`` with the bytes of the content from ``start`` on. Raises DamagedData."""
        file = self.opened()
        if file.read_into(self.offset + start, out) != len(out):
            raise DamagedData(f"{printable(str(file.path))} became shorter")
