"""Estimates how a commit would store a tensor, by encoding one piece of the tensor's bytes."""

from __future__ import annotations

from mvc.limits import PIECE
from mvc.model.tensor import TensorSpec
from mvc.store.writing.bases import Recovers
from mvc.store.writing.full_or_delta import BasePiece, Choice, Policy, choose, converted, lines_up


def sampled(
    recovery: Recovers,
    policy: Policy,
    blob: tuple[bytes, TensorSpec],
    base: tuple[bytes, TensorSpec] | None,
    *,
    start: int = 0,
) -> Choice:
    """How a commit would store the piece of ``blob`` at byte ``start``: in full or as a delta.

    ``blob``, ``base``: id, dtype and shape of the tensor, and of the tensor from which to compute a
    delta. The result includes the estimated size.
    """
    spec, under = blob[1], None
    if base is not None and lines_up(base[1], spec, start):
        under = BasePiece(base[0], converted(_piece(recovery, base, start), base[1], spec))
    new = _piece(recovery, blob, start)
    return choose(spec, new, base and base[1], under, policy=policy)[0]


def _piece(recovery: Recovers, blob: tuple[bytes, TensorSpec], start: int) -> memoryview:
    out = memoryview(bytearray(min(PIECE, blob[1].nbytes - start)))
    recovery.piece(blob[0], start, out)
    return out
