"""The dtypes that mvc stores, and the spec of a tensor: its dtype and its shape.

The dtypes have the names of torch (``float32``, ``bfloat16``, ...). The bytes of a file outside its
tensors have the dtype ``raw``.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from msgspec import Struct
from msgspec.structs import force_setattr

from mvc.errors import DamagedData
from mvc.limits import MAX_DIMENSIONS
from mvc.types import FIRST_RELEASE as FIRST


class DType(Struct, frozen=True):
    """A dtype. ``itemsize``: number of bytes of an element.

    ``width``: number of bytes of the integers that a delta subtracts. ``feature``: the feature of
    the repository format that a program needs to read this dtype.
    """

    name: str
    itemsize: int
    width: int
    feature: str
    floating: bool = False


_FLOAT8 = ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
_ROWS = (
    DType("raw", 1, 1, FIRST),
    DType("bool", 1, 1, FIRST),
    *(DType(f"{sign}int{8 * n}", n, n, FIRST) for sign in ("", "u") for n in (1, 2, 4, 8)),
    DType("float64", 8, 8, FIRST, floating=True),
    DType("float32", 4, 4, FIRST, floating=True),
    DType("float16", 2, 2, FIRST, floating=True),
    DType("bfloat16", 2, 2, FIRST, floating=True),
    *(DType(f"float8_{name}", 1, 1, FIRST, floating=True) for name in _FLOAT8),
    DType("float4_e2m1fn_x2", 1, 1, FIRST, floating=True),
    DType("complex32", 4, 2, FIRST, floating=True),
    DType("complex64", 8, 4, FIRST, floating=True),
    DType("complex128", 16, 8, FIRST, floating=True),
    DType("qint8", 1, 1, FIRST),
    DType("quint8", 1, 1, FIRST),
    DType("qint32", 4, 4, FIRST),
)
DTYPES = {row.name: row for row in _ROWS}
"""Maps the name of each supported dtype to the dtype."""


class TensorSpec(Struct, frozen=True, gc=False):
    """The dtype name and the shape of one tensor. A scalar has an empty shape."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int = 0  # computed from the dtype and the shape; faster to read than a property

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise DamagedData(f"unknown dtype {self.dtype!r}")
        if len(self.shape) > MAX_DIMENSIONS or any(not 0 <= n < 1 << 63 for n in self.shape):
            raise DamagedData(f"a shape is outside the limits: {len(self.shape)} dimensions")
        force_setattr(self, "nbytes", self.elements * DTYPES[self.dtype].itemsize)
        if self.nbytes >= 1 << 63:
            raise DamagedData("a shape's product overflows")

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def width(self) -> int:
        return DTYPES[self.dtype].width

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@lru_cache(maxsize=4096)
def shared_spec(dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    """A cached TensorSpec. A model may have 100,000 tensors, but has few different shapes."""
    return TensorSpec(dtype, shape)
