"""Finds tensors of a commit that are copies of another tensor in lower precision.

An example is a bf16 copy of an fp32 tensor, its *master*. The copy is stored as a delta from the
rounded master. If the copy equals the rounded master, this delta is all zeros and takes almost no
space. To find the master, only the first elements are compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3
from msgspec import Struct, field

from mvc.codecs import cast
from mvc.ids import BlobId
from mvc.limits import PIECE
from mvc.model.hashing import blob_id
from mvc.model.tensor import DTYPES, TensorSpec, shared_spec
from mvc.store.graph.search import Link
from mvc.types import Bytes

if TYPE_CHECKING:
    from mvc.adapters.parsed import ParsedFile


_SAMPLE = 4096  # number of elements, from the first, that are compared to find a master
_TINY = 64  # masters with fewer bytes are not used: a delta would save nothing
_WIDE = ("float32", "float64")


class Master(Struct, frozen=True):
    """A tensor of the running commit, as the base of its copies. Its file is open.

    ``content``: the index of the tensor in the file.
    """

    id: BlobId
    spec: TensorSpec
    file: ParsedFile
    content: int

    def chain(self, start: int) -> tuple[Link, ...]:  # noqa: ARG002
        """Empty: the master is stored by this commit, so its chain is not known yet."""
        return ()

    def piece(self, start: int) -> memoryview:
        """The complete tensor, which is at most one piece (32 MiB)."""
        return self.read(start, self.spec.nbytes - start)

    def cached(self, link: Link, start: int) -> None:
        """None, because ``chain`` is empty."""

    def read(self, start: int, length: int) -> memoryview:
        borrowed = self.file.borrow(self.content)
        if borrowed is not None:
            return borrowed[start : start + length]
        out = np.empty(length, np.uint8).data
        self.file.read(self.content, start, out)
        return out

    def changed(self) -> bool:
        """Whether the caller has modified the tensor since it was hashed."""
        return blob_id(self.spec, self.read(0, self.spec.nbytes), parallel=True) != self.id


class PrecisionCopies:
    """The possible masters of a commit. ``find`` finds the master of a copy.

    For each narrower dtype, the first elements of each master are rounded and hashed. A copy has a
    master if its first elements have the same hash.
    """

    def __init__(self) -> None:
        self._masters: dict[TensorSpec, list[Master]] = {}
        self._rounded: dict[tuple[TensorSpec, str], _Rounded] = {}

    def add(self, file: ParsedFile, content: int, id_: BlobId) -> None:
        spec = file.contents[content].spec
        if spec.dtype in _WIDE and _TINY <= spec.nbytes <= PIECE:
            self._masters.setdefault(spec, []).append(Master(id_, spec, file, content))

    def forget(self, file: ParsedFile) -> None:
        """Forgets the tensors of a file. Call it before the file is closed."""
        for spec in {content.spec for content in file.contents} & self._masters.keys():
            left = [master for master in self._masters.pop(spec) if master.file is not file]
            if left:
                self._masters[spec] = left
        self._rounded.clear()

    def find(self, spec: TensorSpec, data: memoryview) -> Master | None:
        """The first master whose first elements, after rounding, are equal to those of ``data``."""
        if spec.nbytes < _TINY // 2:
            return None
        for wide in _WIDE:
            if cast.supported(wide, spec.dtype):
                masters = self._masters.get(shared_spec(wide, spec.shape))
                if masters and (master := self._rounded_to(spec, masters, data)):
                    return master
        return None

    def _rounded_to(
        self, spec: TensorSpec, masters: list[Master], data: memoryview
    ) -> Master | None:
        rounded = self._rounded.setdefault((masters[0].spec, spec.dtype), _Rounded())
        count = min(_SAMPLE, spec.elements)
        for master in masters[rounded.seen :]:
            sample = master.read(0, count * DTYPES[master.spec.dtype].itemsize)
            narrow = cast.cast(sample, master.spec.dtype, spec.dtype)
            rounded.by_hash.setdefault(_sample_hash(narrow), master)
        rounded.seen = len(masters)
        return rounded.by_hash.get(_sample_hash(data[: count * DTYPES[spec.dtype].itemsize]))


class _Rounded(Struct):
    """``by_hash``: maps the hash of the rounded first elements of a master to the master.

    ``seen``: how many masters, from the first, were hashed.
    """

    by_hash: dict[bytes, Master] = field(default_factory=dict)
    seen: int = 0


def _sample_hash(sample: Bytes) -> bytes:
    return blake3(sample).digest(16)
