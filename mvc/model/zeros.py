"""Zero bytes that take no memory: one shared buffer that is never written to."""

from __future__ import annotations

from functools import lru_cache

from mvc.ids import BlobId
from mvc.limits import PIECE
from mvc.model.hashing import BlobHasher
from mvc.model.tensor import TensorSpec

__all__ = ["zero_blob_id", "zeros"]

# The system backs memory that was only ever read by one page, which stays in the cache.
_ZEROS = memoryview(bytes(PIECE))


def zeros(length: int) -> memoryview:
    """``length`` bytes, at most a piece, that must not be written to."""
    return _ZEROS[:length]


@lru_cache(maxsize=256)
def zero_blob_id(spec: TensorSpec) -> BlobId:
    """The param hash of a tensor of zeros."""
    hasher = BlobHasher(spec, parallel=True)
    for start in range(0, spec.nbytes, PIECE):
        hasher.update(zeros(min(PIECE, spec.nbytes - start)))
    return hasher.done()
