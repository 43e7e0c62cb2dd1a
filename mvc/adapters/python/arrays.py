"""Converts numpy arrays and torch tensors to tensor specs (dtype and shape) and bytes, and back.

torch is imported only for torch tensors. If torch is not installed, tensors are returned as numpy
arrays. The package ml_dtypes adds bfloat16 and 8-bit floats to numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.adapters.files.numpy_files import DESCRIPTIONS
from mvc.errors import UnsupportedTensor, need_torch
from mvc.model.tensor import DTYPES, TensorSpec, shared_spec

if TYPE_CHECKING:
    import torch


# Maps quantized dtypes and ``raw`` (bytes) to the dtype of the stored integers.
_INTEGERS = {"qint8": "int8", "quint8": "uint8", "qint32": "int32", "raw": "uint8"}
_DTYPES = {name: np.dtype(text) for text, name in DESCRIPTIONS.items()}
_DTYPES |= {name: _DTYPES[plain] for name, plain in _INTEGERS.items() if name != "raw"}
_EXTENSIONS = {"bfloat16", *(name for name in DTYPES if name.startswith("float8_"))}
"""dtypes that ml_dtypes adds to numpy, by the same names."""


def has_dtype(name: str, *, extended: bool = False) -> bool:
    """Whether numpy has the dtype ``name``. With ``extended``, dtypes of ml_dtypes count, too."""
    return name in _DTYPES or (extended and name in _EXTENSIONS)


@cache
def has_torch() -> bool:
    """Whether torch is installed, without importing it."""
    return find_spec("torch") is not None


def array_spec(array: np.ndarray[Any, Any] | np.generic[Any], place: str) -> TensorSpec:
    """The spec of an array.

    Raises UnsupportedTensor for a dtype that mvc cannot store. ``place``: the array's name in the
    message.
    """
    name = DESCRIPTIONS.get(array.dtype.str)
    if name is None and array.dtype.name in _EXTENSIONS:
        name = array.dtype.name
    if name is None:
        raise UnsupportedTensor(
            f"{place} is a numpy array of dtype {array.dtype.str!r}, which cannot be stored",
            hint="convert it to a little-endian number type first",
        )
    return shared_spec(name, array.shape)


def array_bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """The bytes of a C-contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b"")


def make_array(spec: TensorSpec, data: memoryview) -> np.ndarray[Any, Any]:
    """An array over ``data``, without a copy. It is writable if ``data`` is.

    Raises UnsupportedTensor for an empty tensor whose shape numpy does not support, and
    NotInstalled for a dtype that only torch has.
    """
    dtype = _array_dtype(spec.dtype)
    if not spec.nbytes:
        with _shaped(spec, "numpy"):
            return np.empty(spec.shape, dtype)
    return np.frombuffer(data, dtype).reshape(spec.shape)


def _array_dtype(name: str) -> np.dtype[Any]:
    if name in _EXTENSIONS:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype
    if name not in _DTYPES and name not in _INTEGERS:
        need_torch(f"a tensor of the dtype {name}")
    return _DTYPES[_INTEGERS.get(name, name)]


@contextmanager
def _shaped(spec: TensorSpec, library: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise UnsupportedTensor(
            f"{library} does not support a tensor of the shape {list(spec.shape)}",
            hint="'mvc checkout REV PATH -o FILE' writes the whole file",
        ) from error


def tensor_spec(tensor: torch.Tensor, place: str) -> TensorSpec:
    """The spec of a tensor.

    Raises UnsupportedTensor for a tensor that is sparse, nested, quantized, without data, of a
    subclass such as DTensor, or of a dtype that mvc cannot store. ``place``: the tensor's name in
    the message.
    """
    import torch

    reason, hint = _refusal(tensor)
    if reason:
        raise UnsupportedTensor(f"{place} is {reason}, which cannot be stored exactly", hint=hint)
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise UnsupportedTensor(f"{place} has the dtype {name}, which cannot be stored exactly")
    if tensor.dtype == getattr(torch, "float4_e2m1fn_x2", None) and not tensor.shape:
        raise UnsupportedTensor(
            f"{place} is a packed tensor without dimensions", hint="reshape it to one dimension"
        )
    return shared_spec(name, tuple(int(n) for n in tensor.shape))


def _refusal(tensor: torch.Tensor) -> tuple[str, str]:
    import torch

    kind = type(tensor)
    if torch.nn.parameter.is_lazy(tensor):
        return "a parameter without values", "run the model once to initialize it"
    if tensor.is_nested:
        return "a nested tensor", "store its parts as separate tensors"
    if tensor.layout is not torch.strided:
        return f"a sparse tensor ({tensor.layout})", "use to_dense(), or store indices and values"
    if tensor.is_quantized:
        return "a quantised tensor", "store int_repr(), scale and zero point"
    if tensor.device.type == "meta":
        return "a tensor without data (device meta)", "materialize it before the commit"
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        hint = "save the state with torch.save and commit that file, or commit plain tensors"
        if hasattr(tensor, "full_tensor"):
            hint = (
                "save shards with torch.distributed.checkpoint and mvc.frameworks.dcp.MvcWriter, "
                "or gather them with full_tensor()"
            )
        elif getattr(kind, "dequantize", None) is not torch.Tensor.dequantize:
            hint += ": dequantize() makes one"
        return f"a {kind.__qualname__}", hint
    return "", ""


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as a row-major tensor in this process's memory. Copies only if necessary."""
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The tensor's row-major bytes in this process's memory. Copies only if necessary."""
    return _bytes(contiguous(tensor))


def borrowed_bytes(tensor: torch.Tensor) -> memoryview | None:
    """The bytes in memory, without a copy. None if they are not row-major or not in CPU memory."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        return None
    return None if tensor.is_conj() or tensor.is_neg() else _bytes(tensor.detach())


def _bytes(rows: torch.Tensor) -> memoryview:
    import torch

    if not rows.numel():
        return memoryview(b"")
    # A tensor of one element is contiguous with any stride, but viewing it as bytes needs stride 1.
    flat = rows.as_strided((rows.numel(),), (1,))
    raw: Any = flat.view(torch.uint8).numpy()
    return memoryview(raw)


def make_tensor(spec: TensorSpec, data: memoryview) -> torch.Tensor:
    """A tensor over ``data``. Copies only if ``data`` is not writable.

    Quantized dtypes and ``raw`` become plain integers. Raises UnsupportedTensor for an empty tensor
    whose shape torch does not support.
    """
    import torch

    dtype: torch.dtype = getattr(torch, _INTEGERS.get(spec.dtype, spec.dtype))
    if not spec.nbytes:
        with _shaped(spec, "torch"):  # ``view`` supports more shapes than ``torch.empty``
            return torch.empty(0, dtype=dtype).view(spec.shape)
    buffer = bytearray(data) if data.readonly else data
    return torch.frombuffer(buffer, dtype=torch.uint8).view(dtype).reshape(spec.shape)
