"""Hashes a file without storing it.

The result is the entry that the file would have in a manifest, the list of a version's files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mvc.adapters.parsed import ParsedFile
from mvc.adapters.views import extract
from mvc.ids import BlobId
from mvc.limits import PIECE
from mvc.model.hashing import blob_id, raw_blob_id
from mvc.model.manifest import Content, FileEntry, LogicalTensor
from mvc.types import Counted, Progress


def hash_file(parsed: ParsedFile, path: str, progress: Progress | None = None) -> FileEntry:
    """The manifest entry that a commit of this file would have. Sets ``parsed.ids``.

    ``progress`` counts hashed bytes. Needs memory for 32 MiB, or for one storage to which views
    refer.
    """
    sizes = [content.spec.nbytes for content in parsed.contents]
    buffer = np.empty(min(PIECE, max(sizes, default=0)), np.uint8).data
    if parsed.ids is None:
        contents = Counted(progress, sum(sizes)).iterate(range(len(sizes)), path, sizes.__getitem__)
        parsed.ids = [parsed.content_id(i, buffer) for i in contents]
    return entry_from(parsed, path, parsed.ids, parsed.skeleton())


def entry_from(parsed: ParsedFile, path: str, ids: Sequence[BlobId], skeleton: bytes) -> FileEntry:
    """The manifest entry of a file. ``ids``: the ids of the contents of the file.

    Reads only storages that tensors refer to by views.
    """
    contents = tuple(
        Content(c.offset, c.spec, id_) for c, id_ in zip(parsed.contents, ids, strict=True)
    )
    return FileEntry(
        path=path,
        format=parsed.format,
        size=parsed.size,
        contents=contents,
        skeleton=raw_blob_id(skeleton) if skeleton else None,
        checks=tuple(parsed.checks),
        tensors=tuple(_logical(parsed, contents)),
    )


def _logical(parsed: ParsedFile, contents: Sequence[Content]) -> Iterator[LogicalTensor]:
    loaded: tuple[int, memoryview] = (-1, memoryview(b""))
    for tensor in parsed.tensors:
        if tensor.view is None:
            id_ = contents[tensor.content].id
        else:
            if loaded[0] != tensor.content:
                loaded = (tensor.content, content_bytes(parsed, tensor.content))
            id_ = blob_id(tensor.spec, extract(loaded[1], tensor.spec, tensor.view))
        yield LogicalTensor(tensor.key, tensor.spec, id_, tensor.content, view=tensor.view)


def content_bytes(parsed: ParsedFile, i: int) -> memoryview:
    """The content with the index ``i``, in memory. If it is already in memory, it is not copied."""
    borrowed = parsed.borrow(i)
    return parsed.copied(i) if borrowed is None else borrowed
