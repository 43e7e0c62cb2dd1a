"""Public functions and classes for states: for tensors, and their bytes, hashes and distances.

Each function or class is imported on first use, so that commands start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.faces import face

if TYPE_CHECKING:
    from mvc.adapters.python.arrays import (
        contiguous,
        tensor_bytes,
        tensor_spec,
    )
    from mvc.adapters.python.state import LazyTensor
    from mvc.adapters.served_version import ServedVersion, decode_served, encode_served
    from mvc.adapters.state_file import StateFile
    from mvc.model.hashing import blob_id
    from mvc.model.tensor import DTYPES
    from mvc.repo.diff.distance import Distance, as_numpy, distance_of

__all__ = [
    "DTYPES",
    "Distance",
    "LazyTensor",
    "ServedVersion",
    "StateFile",
    "as_numpy",
    "blob_id",
    "contiguous",
    "decode_served",
    "distance_of",
    "encode_served",
    "tensor_bytes",
    "tensor_spec",
]

_IN = {
    "DTYPES": "mvc.model.tensor",
    "Distance": "mvc.repo.diff.distance",
    "LazyTensor": "mvc.adapters.python.state",
    "ServedVersion": "mvc.adapters.served_version",
    "StateFile": "mvc.adapters.state_file",
    "as_numpy": "mvc.repo.diff.distance",
    "blob_id": "mvc.model.hashing",
    "contiguous": "mvc.adapters.python.arrays",
    "decode_served": "mvc.adapters.served_version",
    "distance_of": "mvc.repo.diff.distance",
    "encode_served": "mvc.adapters.served_version",
    "tensor_bytes": "mvc.adapters.python.arrays",
    "tensor_spec": "mvc.adapters.python.arrays",
}

__getattr__ = face(__name__, _IN)
