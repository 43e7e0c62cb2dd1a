"""Computes ids: the id of a tensor or another object is a BLAKE3-256 hash of its content.

An id is the hash of a tag and of the parts of the object. The tag names the kind of the object, so
objects of different kinds have different ids. The length of each part is hashed before the part. So
the parts ``ab, c`` and the parts ``a, bc`` have different ids (docs/format.md, "Identities").
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
# blake3 starts threads. For fewer bytes than this, threads take more time than they save.
_PARALLEL_BYTES = 1 << 20
ONE_CALL = 64 << 10
"""A tensor of at most this size is copied and hashed in one call, which is faster."""
# The operating system maps this buffer, which is never changed, to one page of zeros.
_ZEROS = memoryview(bytes(PIECE))


def digest(tag: bytes, *parts: bytes) -> bytes:
    """The BLAKE3 hash (32 bytes) of the tag and the parts, each preceded by its length."""
    counted = [encode_uint(len(tag)), tag]
    for part in parts:
        counted += (encode_uint(len(part)), part)
    return blake3(b"".join(counted)).digest()


_first_process = lru_cache(maxsize=1)(os.getpid)


def hash_threads(*, parallel: bool) -> int:
    """Thread count for ``blake3``.

    In a forked process the count is 1: blake3 would wait for threads of its parent.
    """
    return blake3.AUTO if parallel and _first_process() == os.getpid() else 1


@lru_cache(maxsize=1024)
def _prefix(spec: TensorSpec) -> bytes:
    writer = Writer().blob(_TAG_BLOB).text(spec.dtype)
    writer.blob(Writer().uints(spec.shape).done())
    return writer.uint(spec.nbytes).done()


class BlobHasher:
    """Computes the id of a tensor from pieces of its bytes (row-major, little-endian).

    The id is the hash of a tag, the dtype name, the shape and the bytes. So zeros of shape (2, 3)
    and zeros of shape (3, 2) have different ids.
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
    """The id of a tensor with these bytes."""
    if spec.nbytes <= ONE_CALL:
        return BlobId(blake3(_prefix(spec) + data).digest())
    hasher = BlobHasher(spec, parallel=parallel)
    hasher.update(data)
    return hasher.done()


def raw_blob_id(data: Bytes) -> BlobId:
    """The id of bytes that are not a tensor. Such bytes have the dtype ``raw``."""
    view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
    return blob_id(TensorSpec("raw", (view.nbytes,)), view, parallel=True)


def zeros(length: int) -> memoryview:
    """``length`` zero bytes, at most ``PIECE``. The buffer is shared and must not be changed."""
    return _ZEROS[:length]


@lru_cache(maxsize=256)
def zero_blob_id(spec: TensorSpec) -> BlobId:
    """The id of a tensor of zeros."""
    hasher = BlobHasher(spec, parallel=True)
    for start in range(0, spec.nbytes, PIECE):
        hasher.update(zeros(min(PIECE, spec.nbytes - start)))
    return hasher.done()


def pieces(spec: TensorSpec) -> Iterator[tuple[int, int]]:
    """Divides a tensor's bytes into pieces of at most ``PIECE`` bytes. Yields (start, length).

    An empty tensor has one empty piece.
    """
    for start in range(0, max(spec.nbytes, 1), PIECE):
        yield start, min(PIECE, spec.nbytes - start)


def verify_pieces(
    id_: bytes, spec: TensorSpec, read: Callable[[int, int], memoryview], wrong: MvcError
) -> Iterator[tuple[int, memoryview]]:
    """Yields (start, bytes) of every piece of a tensor. Raises ``wrong`` if its id is not ``id_``.

    ``read(start, length)``: returns a piece. ``wrong`` is raised after the last piece, so the
    caller must not trust any piece before the end of the iteration.
    """
    hasher = BlobHasher(spec, parallel=True)
    for start, length in pieces(spec):
        part = read(start, length)
        hasher.update(part)
        yield start, part
    if hasher.done() != id_:
        raise wrong
