"""Hashes a parsed file into its entry, without storing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mvc.adapters.parsed import ParsedFile, ParsedTensor
from mvc.adapters.python.state import from_state
from mvc.adapters.views import extract
from mvc.errors import MvcError
from mvc.ids import BlobId, Root
from mvc.limits import PIECE
from mvc.model.hashing import BlobHasher, blob_id, raw_blob_id, zero_blob_id, zeros
from mvc.model.manifest import Content, FileEntry, LogicalTensor
from mvc.model.names import DEFAULT_STATE
from mvc.model.tensor import TensorSpec

__all__ = ["entry_from", "hash_content", "hash_file", "pieces", "root_of", "verify_pieces", "whole"]


def root_of(state: Any) -> Root:
    """The Merkle root that a commit of this state would have: equal bits, equal root."""
    return hash_file(from_state(state), DEFAULT_STATE).state.root


def hash_file(parsed: ParsedFile, path: str) -> FileEntry:
    """The entry that a commit of this file would make.

    Takes the memory of one piece, or of one storage that views refer to.
    """
    largest = max((c.spec.nbytes for c in parsed.contents), default=0)
    buffer = np.empty(min(PIECE, largest), np.uint8).data
    ids = [hash_content(parsed, i, buffer) for i in range(len(parsed.contents))]
    skeleton = parsed.skeleton()
    return entry_from(parsed, path, ids, skeleton, lambda i: whole(parsed, i))


def entry_from(
    parsed: ParsedFile,
    path: str,
    ids: Sequence[BlobId],
    skeleton: bytes,
    whole: Callable[[int], memoryview],
) -> FileEntry:
    """An entry from the contents' ids. ``whole`` reads a raw content that views refer to."""
    contents = tuple(
        Content(c.offset, c.spec, id_) for c, id_ in zip(parsed.contents, ids, strict=True)
    )
    return FileEntry(
        path,
        parsed.format,
        parsed.size,
        contents,
        raw_blob_id(skeleton) if skeleton else None,
        tuple(parsed.checks),
        tuple(_logical(parsed.tensors, contents, whole)),
    )


def _logical(
    tensors: Sequence[ParsedTensor], contents: Sequence[Content], whole: Callable[[int], memoryview]
) -> Iterator[LogicalTensor]:
    loaded: tuple[int, memoryview] = (-1, memoryview(b""))
    for tensor in tensors:
        if tensor.view is None:
            id_ = contents[tensor.content].id
        else:
            if loaded[0] != tensor.content:
                loaded = (tensor.content, whole(tensor.content))
            id_ = blob_id(tensor.spec, extract(loaded[1], tensor.spec, tensor.view))
        yield LogicalTensor(tensor.key, tensor.spec, id_, tensor.content, tensor.view)


def pieces(spec: TensorSpec) -> Iterator[tuple[int, int]]:
    """(start, length) of every piece of a blob; one empty piece for an empty blob."""
    for start in range(0, max(spec.nbytes, 1), PIECE):
        yield start, min(PIECE, spec.nbytes - start)


def verify_pieces(
    id_: bytes, spec: TensorSpec, read: Callable[[int, int], memoryview], wrong: MvcError
) -> Iterator[tuple[int, memoryview]]:
    """Yields (start, bytes) of every piece of a blob, hashing them on the way.

    ``read(start, length)`` returns a piece. After the last one ``wrong`` is raised if the hash
    is not ``id_``; until then the bytes are not verified.
    """
    hasher = BlobHasher(spec, parallel=True)
    for start, length in pieces(spec):
        part = read(start, length)
        hasher.update(part)
        yield start, part
    if hasher.done() != id_:
        raise wrong


def hash_content(parsed: ParsedFile, i: int, buffer: memoryview) -> BlobId:
    """The id of one content; ``buffer`` holds a piece of it, or the whole if that is less."""
    spec = parsed.contents[i].spec
    if (borrowed := parsed.borrow(i)) is not None:
        return blob_id(spec, borrowed, parallel=True)
    if parsed.is_hole(i, 0, spec.nbytes):
        return zero_blob_id(spec)
    hasher = BlobHasher(spec, parallel=True)
    for start, length in pieces(spec):
        part = zeros(length)
        if not parsed.is_hole(i, start, length):
            part = buffer[:length]
            parsed.read(i, start, part)
        hasher.update(part)
    return hasher.done()


def whole(parsed: ParsedFile, i: int) -> memoryview:
    """One content in memory, borrowed where it lies there already."""
    if (borrowed := parsed.borrow(i)) is not None:
        return borrowed
    out = np.empty(parsed.contents[i].spec.nbytes, np.uint8).data
    parsed.read(i, 0, out)
    return out
