"""numpy arrays to and from tensor specs and bytes.

numpy has no bfloat16 and no 8-bit floats of its own; those dtypes exist as torch tensors only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mvc.adapters.files.numpy_files import DESCRIPTIONS
from mvc.errors import UnsupportedTensor
from mvc.model.tensor import TensorSpec, shared_spec

__all__ = ["array_bytes", "array_spec", "has_dtype", "make_array"]

_DTYPES = {name: np.dtype(text) for text, name in DESCRIPTIONS.items()}
# torch's quantised integers are plain integers to numpy.
_DTYPES |= {"qint8": np.dtype("i1"), "quint8": np.dtype("u1"), "qint32": np.dtype("<i4")}


def has_dtype(name: str) -> bool:
    """Whether numpy has a dtype for these numbers."""
    return name in _DTYPES


def array_spec(array: np.ndarray[Any, Any] | np.generic[Any], place: str) -> TensorSpec:
    """Raises UnsupportedTensor naming ``place`` for any dtype that has no exact name here."""
    name = DESCRIPTIONS.get(array.dtype.str)
    if name is None:
        raise UnsupportedTensor(
            f"{place} is a numpy array of dtype {array.dtype.str!r}, which cannot be kept",
            hint="convert it to a little-endian number type first",
        )
    return shared_spec(name, array.shape)


def array_bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """The bytes of a C-contiguous array, without a copy."""
    if not array.nbytes:
        return memoryview(b"")
    return array.reshape(-1).view(np.uint8).data


def make_array(spec: TensorSpec, data: memoryview) -> np.ndarray[Any, Any]:
    """An array over ``data``, without a copy; as writable as ``data`` is."""
    dtype = _DTYPES[spec.dtype]
    if not spec.nbytes:
        return np.empty(spec.shape, dtype)
    return np.frombuffer(data, dtype).reshape(spec.shape)
