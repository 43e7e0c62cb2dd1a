"""Sources in memory, and the way from a parsed file to an entry and back to bytes."""

from __future__ import annotations

from collections.abc import Iterator

from mvc.adapters.files.assemble import assemble
from mvc.adapters.files.detect import parse_file
from mvc.adapters.parsed import ParsedFile
from mvc.adapters.views import extract
from mvc.model.hashing import blob_id, raw_blob_id
from mvc.model.manifest import Content, FileEntry, LogicalTensor, Manifest


class MemorySource:
    """Bytes that answer like an open file; ``shrink`` plays a file cut under the reader."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        assert offset >= 0 and length >= 0
        return self.data[offset : offset + length]

    def read_into(self, offset: int, buffer: memoryview) -> int:
        assert offset >= 0
        piece = self.data[offset : offset + len(buffer)]
        buffer[: len(piece)] = piece
        return len(piece)


def content_bytes(parsed: ParsedFile, index: int) -> bytes:
    out = bytearray(parsed.contents[index].spec.nbytes)
    parsed.read(index, 0, memoryview(out))
    borrowed = parsed.borrow(index)
    assert borrowed is None or bytes(borrowed) == bytes(out)
    return bytes(out)


def to_entry(parsed: ParsedFile, path: str = "model") -> tuple[FileEntry, bytes, list[bytes]]:
    """The manifest entry, skeleton and contents, checked against the manifest's own reader."""
    blobs = [content_bytes(parsed, i) for i in range(len(parsed.contents))]
    contents = tuple(
        Content(c.offset, c.spec, blob_id(c.spec, b))
        for c, b in zip(parsed.contents, blobs, strict=True)
    )
    tensors = []
    for t in parsed.tensors:
        if t.view is None:
            assert t.spec == contents[t.content].spec
            id_ = contents[t.content].id
        else:
            id_ = blob_id(t.spec, extract(memoryview(blobs[t.content]), t.spec, t.view))
        tensors.append(LogicalTensor(t.key, t.spec, id_, t.content, t.view))
    skeleton = parsed.skeleton()
    entry = FileEntry(
        path,
        parsed.format,
        parsed.size,
        contents,
        raw_blob_id(skeleton) if skeleton else None,
        parsed.checks,
        tuple(tensors),
    )
    manifest = Manifest([entry])
    assert Manifest.decode(manifest.encoded).entries == (entry,)
    return entry, skeleton, blobs


def rebuild(entry: FileEntry, skeleton: bytes, blobs: list[bytes], piece: int = 1000) -> bytes:
    out = bytearray(entry.size)
    written = 0

    def write_at(position: int, data: memoryview | bytes) -> None:
        nonlocal written
        written = max(written, position + len(data))
        out[position : position + len(data)] = data

    def content(index: int, left: int) -> Iterator[memoryview]:
        while left > 0:
            view = memoryview(blobs[index])
            yield from (view[i : i + piece] for i in range(0, len(view), piece))
            index, left = index + 1, left - len(view)

    assemble(entry, skeleton, content, write_at)
    assert written == entry.size == len(out)
    return bytes(out)


def round_trip(data: bytes, name: str = "model") -> FileEntry:
    """Parses ``data``, asserts that the parts give back the same bytes, returns the entry."""
    entry, skeleton, blobs = to_entry(parse_file(MemorySource(data), name))
    assert rebuild(entry, skeleton, blobs) == data
    return entry


def by_key(entry: FileEntry) -> dict[str, LogicalTensor]:
    """An entry's tensors by their keys."""
    return {tensor.key: tensor for tensor in entry.tensors}
