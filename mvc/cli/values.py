"""The values of one tensor for people and for numpy. The only part of the program with arrays."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from mvc.adapters.python.arrays import has_dtype, make_array
from mvc.model.tensor import TensorSpec
from mvc.repo.diff.distance import to_float64

__all__ = ["array", "npy", "summary", "text"]

Array = np.ndarray[Any, Any]


def array(spec: TensorSpec, data: memoryview) -> Array:
    """A tensor's bytes as numpy holds them; torch is not needed.

    What numpy has no type for becomes float32 (complex64), which holds each value exactly;
    packed 4-bit numbers come as a last dimension of two.
    """
    if has_dtype(spec.dtype):
        return make_array(spec, data)
    numbers = to_float64(data, spec.dtype).astype(np.float32)
    if spec.dtype == "complex32":
        return numbers.view(np.complex64).reshape(spec.shape)
    if numbers.size != spec.elements:
        return numbers.reshape((*spec.shape, 2))
    return numbers.reshape(spec.shape)


def npy(values: Array) -> tuple[bytes, memoryview]:
    """The parts of a .npy file (format 1.0)."""
    head = io.BytesIO()
    described = np.lib.format.header_data_from_array_1_0(values)
    np.lib.format.write_array_header_1_0(head, described)
    return head.getvalue(), np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def summary(values: Array) -> dict[str, float]:
    """Least, greatest, mean, standard deviation of the finite elements; zeros; not finite."""
    if not values.size or values.dtype.kind not in "fiub":
        return {}
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    found: dict[str, float] = {}
    if finite.size:
        found = {
            "min": float(finite.min()),
            "max": float(finite.max()),
            "mean": float(finite.mean(dtype=np.float64)),
            "std": float(finite.std(dtype=np.float64)),
        }
    found["zeros"] = int(values.size - np.count_nonzero(values))
    if finite.size != values.size:
        found["not finite"] = int(values.size - finite.size)
    return found


def text(values: Array, *, width: int, full: bool) -> str:
    """As numpy prints it: the corners of a large array, all of it where ``full``."""
    threshold = max(values.size, 1) if full else 1000
    return np.array2string(values, max_line_width=width, threshold=threshold, separator=" ")
