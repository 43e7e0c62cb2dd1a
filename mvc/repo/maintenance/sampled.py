"""How large a coding would be, from a sample of the objects themselves."""

from __future__ import annotations

from collections.abc import Mapping

from mvc.codecs.patch import encode_patch
from mvc.codecs.pipeline import Pipeline
from mvc.limits import PIECE
from mvc.model.tensor import TensorSpec
from mvc.repo.context import Context
from mvc.store.writing.choose import BasePiece, Policy, choose

__all__ = ["Sampler"]

_UNBOUNDED = 1 << 30


class Sampler:
    """Estimates stored bytes; reads the first piece (at most 32 MiB) of an object.

    ``specs``: every blob that may be asked for; what is not in it is a manifest.
    """

    def __init__(self, context: Context, specs: Mapping[bytes, TensorSpec]) -> None:
        self._recovery = context.store.recovery
        self._specs = specs
        pipeline = Pipeline.parse(context.config.get("commit.pipeline")).coding()
        self._policy = Policy(pipeline, _UNBOUNDED, float("inf"))

    def full(self, id_: bytes) -> int:
        """Bytes of a full record."""
        return self._estimate(id_, None)

    def delta(self, id_: bytes, base: bytes) -> int:
        """Bytes of a delta, or of the full record that would be stored instead."""
        return self._estimate(id_, base)

    def _estimate(self, id_: bytes, base: bytes | None) -> int:
        spec = self._specs.get(id_)
        if spec is None:
            old = self._recovery.manifest(base) if base is not None else b""
            return len(encode_patch(memoryview(self._recovery.manifest(id_)), memoryview(old)))
        base_spec = None if base is None else self._specs.get(base)
        piece = None
        if base is not None and base_spec is not None and base_spec.dtype == spec.dtype:
            piece = BasePiece(self._piece(base, base_spec), 0, 0)
        new = self._piece(id_, spec)
        choice = choose(spec, new, base_spec if piece else None, piece, self._policy)[0]
        return round(choice.share * spec.nbytes)

    def _piece(self, id_: bytes, spec: TensorSpec) -> memoryview:
        out = memoryview(bytearray(min(PIECE, spec.nbytes)))
        self._recovery.piece(id_, 0, out)
        return out
