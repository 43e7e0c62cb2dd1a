"""The module that is trained, out of what was put around it.

``torch.compile`` and the data-parallel wrappers put a prefix before every name. A version holds
the names of the module itself, so that it fits both it and every wrapper.
"""

from __future__ import annotations

import torch

__all__ = ["PREFIXES", "unwrap"]

PREFIXES = ("_orig_mod.", "module.")


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """The module inside ``torch.compile``, DataParallel, DistributedDataParallel, in any order."""
    while True:
        inner = _inner(model)
        if inner is None:
            return model
        model = inner


def _inner(model: torch.nn.Module) -> torch.nn.Module | None:
    # By name, because importing the compiler takes longer than a small training.
    if type(model).__name__ == "OptimizedModule" and type(model).__module__.startswith("torch."):
        return model._modules["_orig_mod"]
    if isinstance(model, torch.nn.DataParallel | torch.nn.parallel.DistributedDataParallel):
        inner: torch.nn.Module = model.module
        return inner
    return None
