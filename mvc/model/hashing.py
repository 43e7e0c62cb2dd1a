"""BLAKE3-256 with domain tags and length-prefixed parts.

Every identity in mvc is ``digest(tag, part, ...)``: the tag keeps kinds apart,
the lengths keep parts apart (docs/format.md, "Identities").
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import lru_cache

from blake3 import blake3

from mvc.canonical import Writer, encode_uint
from mvc.errors import MvcError
from mvc.ids import BlobId
from mvc.limits import PIECE
from mvc.model.tensor import TensorSpec
from mvc.types import Bytes

_TAG_BLOB = b"mvc.blob.1"
# blake3 starts its own threads; below this size they cost more than they save.
_PARALLEL_BYTES = 1 << 20
ONE_CALL = 64 << 10
"""Up to this size, one call with copied bytes is faster than a hasher."""
# Never written: the system maps it to one shared page, which stays in the cache.
_ZEROS = memoryview(bytes(PIECE))


def digest(tag: bytes, *parts: bytes) -> bytes:
    """32 bytes over (tag, parts), each prefixed by its length."""
    counted = [encode_uint(len(tag)), tag]
    for part in parts:
        counted += (encode_uint(len(part)), part)
    return blake3(b"".join(counted)).digest()


_first_process = lru_cache(maxsize=1)(os.getpid)


def hash_threads(*, parallel: bool) -> int:
    """Thread count for ``blake3``; 1 in a forked process, which would wait for threads it lacks."""
    return blake3.AUTO if parallel and _first_process() == os.getpid() else 1


@lru_cache(maxsize=1024)
def _prefix(spec: TensorSpec) -> bytes:
    writer = Writer().blob(_TAG_BLOB).text(spec.dtype)
    writer.blob(Writer().uints(spec.shape).done())
    return writer.uint(spec.nbytes).done()


class BlobHasher:
    """The param hash of a tensor, fed in row-major little-endian pieces.

    BLAKE3-256 over (tag, dtype name, shape, bytes). Dtype and shape are included so that zeros of
    shape (2, 3) and (3, 2) differ (seeds.md 4f, trap 1).
    """

    def __init__(self, spec: TensorSpec, *, parallel: bool = False) -> None:
        self._hasher = blake3(
            _prefix(spec),
            max_threads=hash_threads(parallel=parallel and spec.nbytes >= _PARALLEL_BYTES),
        )

    def update(self, data: Bytes) -> None:
        self._hasher.update(data)

    def done(self) -> BlobId:
        return BlobId(self._hasher.digest())


def blob_id(spec: TensorSpec, data: Bytes, *, parallel: bool = False) -> BlobId:
    """The param hash of a whole tensor."""
    if spec.nbytes <= ONE_CALL:
        return BlobId(blake3(_prefix(spec) + data).digest())
    hasher = BlobHasher(spec, parallel=parallel)
    hasher.update(data)
    return hasher.done()


def raw_blob_id(data: Bytes) -> BlobId:
    """The id of bytes outside of tensors (dtype ``raw``)."""
    view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
    return blob_id(TensorSpec("raw", (view.nbytes,)), view, parallel=True)


def zeros(length: int) -> memoryview:
    """``length`` zero bytes, at most a piece, of one shared buffer: do not write to them."""
    return _ZEROS[:length]


@lru_cache(maxsize=256)
def zero_blob_id(spec: TensorSpec) -> BlobId:
    """The param hash of a tensor of zeros."""
    hasher = BlobHasher(spec, parallel=True)
    for start in range(0, spec.nbytes, PIECE):
        hasher.update(zeros(min(PIECE, spec.nbytes - start)))
    return hasher.done()


def pieces(spec: TensorSpec) -> Iterator[tuple[int, int]]:
    """(start, length) of every piece of a content; one empty piece for an empty content."""
    for start in range(0, max(spec.nbytes, 1), PIECE):
        yield start, min(PIECE, spec.nbytes - start)


def verify_pieces(
    id_: bytes, spec: TensorSpec, read: Callable[[int, int], memoryview], wrong: MvcError
) -> Iterator[tuple[int, memoryview]]:
    """Yields (start, bytes) of every piece of a content, hashing them.

    ``read(start, length)`` returns a piece. Raises ``wrong`` after the last one if the hash is not
    ``id_``; until then the bytes are unverified.
    """
    hasher = BlobHasher(spec, parallel=True)
    for start, length in pieces(spec):
        part = read(start, length)
        hasher.update(part)
        yield start, part
    if hasher.done() != id_:
        raise wrong
