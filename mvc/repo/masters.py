"""Copies in lower precision beside their masters: a bf16 tensor that is its fp32 one, rounded.

Both are new in one commit, so the master cannot be found in the parent. A sample
tells; the cast leaves a residue of zeros, which costs next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mvc.adapters.parsed import ParsedFile
from mvc.codecs import cast
from mvc.ids import BlobId
from mvc.limits import SLAB
from mvc.model.tensor import DTYPES, TensorSpec
from mvc.store.choose import BasePiece

__all__ = ["Masters"]

_SAMPLE = 4096  # elements that must agree


@dataclass(frozen=True)
class _Master:
    """A tensor of this commit, still at hand in its file: a base for its copies."""

    id: BlobId
    spec: TensorSpec
    parsed: ParsedFile
    content: int

    def piece(self, start: int) -> BasePiece:
        """The tensor whole: it is not larger than a piece."""
        return BasePiece(self._read(start, self.spec.nbytes - start), 0, 0)

    def sample(self, elements: int) -> memoryview:
        return self._read(0, elements * DTYPES[self.spec.dtype].itemsize)

    def _read(self, start: int, length: int) -> memoryview:
        borrowed = self.parsed.borrow(self.content)
        if borrowed is not None:
            return borrowed[start : start + length]
        out = np.empty(length, np.uint8).data
        self.parsed.read(self.content, start, out)
        return out


class Masters:
    """The floating tensors of one commit that wide copies may be made of."""

    def __init__(self) -> None:
        self._by_shape: dict[tuple[int, ...], list[_Master]] = {}

    def add(self, parsed: ParsedFile, content: int, id_: BlobId) -> None:
        spec = parsed.contents[content].spec
        if spec.dtype in {"float32", "float64"} and 0 < spec.nbytes <= SLAB:
            self._by_shape.setdefault(spec.shape, []).append(_Master(id_, spec, parsed, content))

    def forget(self, parsed: ParsedFile) -> None:
        """The file is about to be closed."""
        for shape, masters in self._by_shape.items():
            self._by_shape[shape] = [m for m in masters if m.parsed is not parsed]

    def find(self, spec: TensorSpec, data: memoryview) -> _Master | None:
        """The tensor whose beginning, rounded, is the beginning of ``data``."""
        count = min(_SAMPLE, spec.elements)
        wanted = data[: count * DTYPES[spec.dtype].itemsize]
        for master in self._by_shape.get(spec.shape, []):
            if cast.supported(master.spec.dtype, spec.dtype):
                rounded = cast.cast(master.sample(count), master.spec.dtype, spec.dtype)
                if memoryview(rounded) == wanted:
                    return master
        return None
