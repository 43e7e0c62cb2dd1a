"""Reads a tensor that is a view: a part of a larger storage, described by an offset and strides.

As in torch, strides count elements and are not negative. Offset and strides are checked, because
they may come from a damaged repository.
"""

from __future__ import annotations

from mvc.errors import DamagedData
from mvc.model.manifest import View, reach
from mvc.model.tensor import DTYPES, TensorSpec


def c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a row-major tensor, in elements."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements are in row-major order without gaps."""
    if 0 in shape:
        return True
    rows = zip(shape, strides, c_strides(shape), strict=True)
    return all(n == 1 or has == wants for n, has, wants in rows)


def extract(raw: memoryview, spec: TensorSpec, view: View) -> memoryview:
    """The row-major bytes of a tensor that is a view of the storage ``raw``.

    If the tensor is contiguous, the result is a slice of ``raw``, not a copy. Raises DamagedData if
    ``view`` does not match the shape of ``spec``, or exceeds ``raw``.
    """
    raw = raw.cast("B") if raw.nbytes else memoryview(b"")
    if len(view.strides) != len(spec.shape) or view.offset < 0 or min(view.strides, default=0) < 0:
        raise DamagedData("the strides of a tensor do not match its shape")
    first, end = reach(spec, view)
    if end > raw.nbytes:
        raise DamagedData("a tensor reaches outside its storage")
    if is_contiguous(spec.shape, view.strides):
        return raw[first : first + spec.nbytes]
    import numpy as np  # imported late: few reads need numpy

    size = DTYPES[spec.dtype].itemsize
    inside = np.frombuffer(
        raw, np.dtype((np.void, size)), count=(end - first) // size, offset=first
    )
    steps = tuple(s * size for s in view.strides)
    strided = np.lib.stride_tricks.as_strided(inside, spec.shape, steps, writeable=False)
    return np.ascontiguousarray(strided).reshape(-1).view(np.uint8).data
