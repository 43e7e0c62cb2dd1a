"""Finds the master of a copy in lower precision: a bf16 tensor that is a rounded fp32 tensor.

Both are new in the same commit, so the parent has no base for the copy. A sample of the elements
decides; the delta against the rounded master is zeros, which take almost no space.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from blake3 import blake3

from mvc.adapters.parsed import ParsedFile
from mvc.codecs import cast
from mvc.ids import BlobId
from mvc.limits import PIECE
from mvc.model.tensor import DTYPES, TensorSpec, shared_spec
from mvc.store.graph.search import Link
from mvc.types import Bytes

__all__ = ["PrecisionCopies"]

_SAMPLE = 4096  # elements that must agree
_WIDE = ("float32", "float64")


@dataclass(frozen=True, slots=True)
class _Master:
    """A tensor of this commit whose file is still open: a base for its copies."""

    id: BlobId
    spec: TensorSpec
    parsed: ParsedFile
    content: int

    def chain(self, start: int) -> tuple[Link, ...]:  # noqa: ARG002
        """Nothing: it is stored by this commit."""
        return ()

    def piece(self, start: int) -> memoryview:
        """The whole tensor; it is not larger than a piece."""
        return self._read(start, self.spec.nbytes - start)

    def sample(self, elements: int) -> memoryview:
        return self._read(0, elements * DTYPES[self.spec.dtype].itemsize)

    def _read(self, start: int, length: int) -> memoryview:
        borrowed = self.parsed.borrow(self.content)
        if borrowed is not None:
            return borrowed[start : start + length]
        out = np.empty(length, np.uint8).data
        self.parsed.read(self.content, start, out)
        return out


class PrecisionCopies:
    """The float32 and float64 tensors of one commit, found by their rounded first elements.

    The first elements of each master are rounded once per narrower dtype and indexed by hash, so
    that a search is one look-up.
    """

    def __init__(self) -> None:
        self._masters: dict[TensorSpec, list[_Master]] = {}
        self._rounded: dict[tuple[TensorSpec, str], _Rounded] = {}

    def add(self, parsed: ParsedFile, content: int, id_: BlobId) -> None:
        spec = parsed.contents[content].spec
        if spec.dtype in _WIDE and 0 < spec.nbytes <= PIECE:
            self._masters.setdefault(spec, []).append(_Master(id_, spec, parsed, content))

    def forget(self, parsed: ParsedFile) -> None:
        """Drops the tensors of a file, before it is closed."""
        kept = {
            spec: [m for m in masters if m.parsed is not parsed]
            for spec, masters in self._masters.items()
        }
        self._masters = {spec: masters for spec, masters in kept.items() if masters}
        self._rounded.clear()

    def find(self, spec: TensorSpec, data: memoryview) -> _Master | None:
        """The first master whose first elements, rounded, equal those of ``data``; None if none."""
        for wide in _WIDE:
            if cast.supported(wide, spec.dtype):
                masters = self._masters.get(shared_spec(wide, spec.shape), [])
                found = self._find(masters, spec, data) if masters else None
                if found is not None:
                    return found
        return None

    def _find(self, masters: list[_Master], spec: TensorSpec, data: memoryview) -> _Master | None:
        rounded = self._rounded.setdefault((masters[0].spec, spec.dtype), _Rounded())
        count = min(_SAMPLE, spec.elements)
        rounded.catch_up(masters, spec.dtype, count)
        return rounded.by_hash.get(_hash(data[: count * DTYPES[spec.dtype].itemsize]))


@dataclass(slots=True)
class _Rounded:
    """PrecisionCopies of one spec by the hash of their beginning, rounded to one dtype."""

    by_hash: dict[bytes, _Master] = field(default_factory=dict)
    seen: int = 0

    def catch_up(self, masters: list[_Master], dtype: str, count: int) -> None:
        """Indexes the masters added since the last search."""
        for master in masters[self.seen :]:
            rounded = cast.cast(master.sample(count), master.spec.dtype, dtype)
            self.by_hash.setdefault(_hash(rounded), master)
        self.seen = len(masters)


def _hash(sample: Bytes) -> bytes:
    return blake3(sample).digest(16)
