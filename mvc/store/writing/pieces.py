"""Encodes pieces of new objects, before they are written to disk as members of records.

An object, such as a tensor's bytes, is stored in pieces of at most 32 MiB. A piece is encoded in
chunks of 1 MiB. The *coding* of a piece names its encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from msgspec import Struct

from mvc.codecs.optim import Prediction
from mvc.codecs.patch import encode_patch
from mvc.codecs.payload import pack_chunks
from mvc.codecs.streams import gathered
from mvc.limits import CHUNK
from mvc.lossy.lc.step import Addition
from mvc.model.tensor import TensorSpec
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.predicted import encode_predicted
from mvc.store.graph.search import Link
from mvc.store.packs.records import BLOB, Coding, Member
from mvc.store.writing.full_or_delta import fitted
from mvc.store.writing.proof import Sampling, prove_chunks, prove_patch
from mvc.types import Bytes

_NO_RAW = (memoryview(b""), None)


class NextBase(Protocol):
    """Memory for a copy of a new tensor's bytes, from which the next commit computes its delta."""

    @property
    def buffer(self) -> memoryview:
        """Memory for all bytes of the tensor."""

    def stored(self, start: int, chain: tuple[Link, ...]) -> None:
        """Called for every piece. ``start``: its offset. ``chain``: as ``Graph.chain`` returns.

        A chain lists the objects that must be decoded one after another to recover a piece.
        """


class Encoded(Struct, frozen=True, gc=False):
    """An encoded chunk, with the methods of a future whose result is the chunk."""

    data: Bytes

    def result(self) -> list[Bytes]:
        return [self.data]

    def cancel(self) -> None:
        """Does nothing, because the chunk is encoded already."""


class Piece(Struct, frozen=True, gc=False):
    """One piece of a new object: ``data`` is the bytes from ``start`` on."""

    id: bytes
    spec: TensorSpec
    start: int
    data: memoryview


class Waiting(Struct, kw_only=True):
    """A piece whose chunks are being encoded for an open record. ``text``: the coding.

    ``base``: first bytes of the id of the object from which the piece is a delta. ``inputs``: the
    same, for objects from which the piece is predicted. ``raw``: the bytes of the piece and of its
    base. ``under``: the chain of the base. ``step``: a lossy delta to add to the base.
    ``next_base``: where to copy the bytes of the piece after encoding.
    """

    kind: int = BLOB
    id: bytes
    start: int = 0
    nbytes: int
    text: str
    base: bytes = b""
    width: int = 1
    chunks: Sequence[Future[list[Bytes]] | Encoded] = ()  # each encodes some chunks
    raw: tuple[memoryview, memoryview | None]
    under: tuple[Link, ...] = ()
    next_base: NextBase | None = None
    copied: bool = False
    step: Addition | None = None
    inputs: tuple[bytes, ...] = ()

    @property
    def is_encoded(self) -> bool:
        """Whether all chunks were encoded directly, not by another thread."""
        return bool(self.chunks) and all(isinstance(chunk, Encoded) for chunk in self.chunks)


def encode_chunk(
    pipeline: Pipeline,
    new: memoryview,
    base: memoryview | None,
    *,
    width: int,
    allocate: Callable[[int], memoryview],
    sampling: Sampling,
    keep: memoryview | None = None,
) -> Bytes:
    """Encodes the bytes ``new`` of one chunk into memory from ``allocate``.

    If ``sampling`` selects the chunk, it is decoded and compared. Finally, ``new`` is copied to
    ``keep``, which may be the memory of ``base``.
    """
    encoded = gathered(pipeline.encode_parts(new, base, width), allocate)
    sampling.chunk(pipeline, encoded, new, base, width=width)
    if keep is not None:
        keep[:] = new
    return encoded


def encode_proven_step(
    pipeline: Pipeline,
    prediction: Prediction,
    new: memoryview,
    *,
    sources: Sequence[memoryview],
    width: int,
    allocate: Callable[[int], memoryview],
    sampling: Sampling,
) -> Bytes:
    """As ``encode_chunk``, for a chunk that ``prediction`` predicts. Always verifies the chunk.

    ``sources``: the base, and then the inputs of the prediction.
    """
    parts, known = encode_predicted(pipeline, prediction, new, sources=sources, width=width)
    encoded = gathered(parts, allocate)
    sampling.predicted(
        pipeline, prediction, encoded, new, sources=sources, width=width, known=known
    )
    return encoded


def encode_proven_patch(new: memoryview, base: memoryview, extra: bytes = b"") -> bytes:
    """As ``encode_patch``. Then decodes the patch and compares the result with ``new``."""
    patch = encode_patch(new, base, extra)
    prove_patch(patch, new, base, extra)
    return patch


def group_member(piece: Waiting) -> tuple[memoryview, memoryview | None, int]:
    """The bytes, the base and the width of a piece that is encoded together with other pieces.

    If the base has another length than the piece, the base is cut or filled with zeros.
    """
    new, base = piece.raw
    return new, None if base is None else fitted(base, len(new)), piece.width


def copy_to_next_base(piece: Waiting) -> None:
    """Copies the raw bytes of an encoded piece to its ``next_base``, if any, and releases them."""
    if piece.next_base is not None and not piece.copied:
        piece.next_base.buffer[piece.start : piece.start + piece.nbytes] = piece.raw[0]
        piece.copied = True
    piece.raw = _NO_RAW


def payload_of(piece: Waiting) -> Sequence[Bytes]:
    """Waits until all chunks of a piece are encoded, and returns the encoded bytes in parts."""
    chunks = [chunk for some in piece.chunks for chunk in some.result()]
    if Coding.of(piece.text).transform == "patch":
        return chunks
    payload = pack_chunks(chunks, piece.width, CHUNK)
    prove_chunks(payload, piece.nbytes, piece.width)
    return payload


def placed(piece: Waiting, check: bytes, stored: int, at: int = 0) -> Member:
    """The piece as a member of a record. Its encoded bytes are at byte ``at`` of the record's body.

    ``check``: the checksum of the encoded bytes. ``stored``: the number of encoded bytes.
    """
    return Member(
        kind=piece.kind, id=piece.id, start=piece.start, nbytes=piece.nbytes,
        coding=Coding.of(piece.text), base=piece.base, at=at, stored=stored, check=check,
        inputs=piece.inputs,
    )  # fmt: skip


def report_chain(piece: Waiting, sequence: int, stored: int) -> None:
    """Reports the chain of a piece to its ``next_base``, if any.

    ``sequence``: number of the operation that will publish the piece. ``stored``: number of encoded
    bytes of the piece.
    """
    if piece.next_base is not None:
        depth, under = (
            (piece.under[-1].depth + 1, piece.under[-1].stored) if piece.under else (0, 0)
        )
        in_run = bool(piece.under) and piece.under[-1].predicted
        link = Link(
            piece.id, sequence, depth, stored=under + stored, nbytes=piece.nbytes,
            predicted=in_run or Coding.of(piece.text).predicted,
        )  # fmt: skip
        piece.next_base.stored(piece.start, (*piece.under, link))
