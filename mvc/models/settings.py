"""Sets torch's threads, kernels and precision as in a recorded environment, for a replay."""

from __future__ import annotations

from contextlib import suppress
from operator import attrgetter
from typing import Any

import torch

from mvc.errors import CannotRetrain
from mvc.models.environment import SETTINGS, Environment


def apply_settings(recorded: Environment) -> None:
    """Applies the settings of a recorded environment to this process.

    Skips a setting that this torch does not support. Call this before torch computes anything,
    because torch's first operation fixes the number of interop threads. Raises CannotRetrain for an
    invalid thread count or an unknown dtype.
    """
    threads, settings = recorded.sections.get("threads", {}), recorded.sections.get("settings", {})
    with suppress(RuntimeError):
        torch.set_num_interop_threads(_number(threads.get("between_operations")))
    with suppress(RuntimeError):
        torch.set_num_threads(_number(threads.get("torch")))
    warn = bool(settings.get("deterministic_warns_only"))
    torch.use_deterministic_algorithms(bool(settings.get("deterministic")), warn_only=warn)
    for name, place in SETTINGS.items():
        if settings.get(name) is not None:
            owner, _, attribute = place.rpartition(".")
            with suppress(RuntimeError, AttributeError):
                setattr(attrgetter(owner)(torch), attribute, bool(settings[name]))
    if settings.get("matmul_precision") is not None:
        with suppress(RuntimeError):
            torch.set_float32_matmul_precision(str(settings["matmul_precision"]))
    dtype = getattr(torch, str(settings.get("default_dtype", "float32")), None)
    if not isinstance(dtype, torch.dtype):
        raise CannotRetrain(f"this torch has no dtype {settings.get('default_dtype')}")
    torch.set_default_dtype(dtype)


def _number(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= 4096:
        raise CannotRetrain(f"the recorded environment has an invalid thread count: {value!r}")
    return value
