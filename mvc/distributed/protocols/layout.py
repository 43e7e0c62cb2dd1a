"""What the vector of a model holds."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.errors import WrongUsage


class VectorLayout(Struct, frozen=True):
    """What the flat vector of a model holds: parameters first, then statistics of its layers.

    ``measured``: how many numbers are parameters. The statistics (running means and variances of
    BatchNorm) are averaged as they are, without codec and outer step, and safe functions do not see
    them. ``digest``: 16 bytes that tell this network from others. Integer buffers and the state of
    the optimizer are not part of the vector: they stay where they are.
    """

    length: int
    measured: int
    dtype: np.dtype[Any]
    digest: bytes

    @staticmethod
    def of(
        model: NDArray[Any], measured: int | None = None, digest: bytes = bytes(16)
    ) -> VectorLayout:
        """Raises WrongUsage unless the model is a flat vector of finite float32 or float64."""
        if model.ndim != 1 or model.dtype not in (np.float32, np.float64) or not len(model):
            shape = "x".join(map(str, model.shape)) or "()"
            raise WrongUsage(
                f"a model is {model.dtype} {shape}: it must be a flat vector of float32 or float64"
            )
        if not np.isfinite(model).all():
            raise WrongUsage("the model holds numbers that are not finite")
        measured = len(model) if measured is None else measured
        if not 0 < measured <= len(model) or len(digest) != 16:
            raise WrongUsage(f"{measured} of {len(model)} numbers cannot be parameters")
        return VectorLayout(len(model), measured, model.dtype, digest)
