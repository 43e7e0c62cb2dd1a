"""The trainings that the contract of the callbacks runs, one module for each framework.

``runs(NAME)`` is ``tests.frameworks.NAME_runs``, which has

- ``EPOCH`` steps an epoch; ``LOGS``: whether each step has a loss; ``ENDS``: whether the end of an
  epoch is a version of its own;
- ``recorder(repo, every=1, **options)``: a callback;
- ``train(folder, steps, recording=None, *, resume=None, seed=3, act=None, wide=False)``: a training
  with new objects up to step ``steps``, every bit of which depends on what resuming restores;
  ``act(step, tensors)`` is called when a step is over, before its version is taken. ``resume`` is
  a revision; "" means the one that the callback takes by itself.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch

import mvc
from mvc.ids import CommitId
from tests.frameworks.need import need
from tests.training.runs import bits_of, tensor_bits

__all__ = [
    "MODEL", "NAMES", "PIPELINE", "TRAINING", "Act", "Trained", "bits_of_all", "buffers",
    "commit_of", "digests", "disturb", "runs",
]  # fmt: skip

NAMES = {
    "accelerate": ["accelerate"], "huggingface": ["transformers", "accelerate"],
    "keras": ["keras"], "lightning": ["lightning", "lightning.pytorch"],
}  # fmt: skip

PIPELINE = "vsol-0-fast"
MODEL, TRAINING = "model.safetensors", "model.training.safetensors"
Act = Callable[[int, Iterable[torch.Tensor]], object]


class Trained(NamedTuple):
    """Every bit that goes on; what of the model is not trained; what the callback went on from."""

    bits: dict[str, bytes]
    exact: list[str]
    resumed: Any = None


def runs(name: str) -> Any:
    """The module of a framework; skips the test without it."""
    os.environ["KERAS_BACKEND"] = "torch"
    need(*NAMES[name])
    return import_module(f"tests.frameworks.{name}_runs")


def digests(tensors: Iterable[torch.Tensor]) -> set[str]:
    """By content alone: frameworks name tensors each in their own way."""
    return {hashlib.sha256(bits_of(tensor)).hexdigest()[:20] for tensor in tensors}


def buffers(model: torch.nn.Module) -> list[str]:
    """Names in the state that are no parameters."""
    trained = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return [name for name in model.state_dict() if name not in trained]


def bits_of_all(
    model: torch.nn.Module, optimizers: Iterable[Any], *, generators: bool = True
) -> dict[str, bytes]:
    """Weights, buffers outside the state, moments, learning rates, random generators."""
    found = tensor_bits(model.state_dict()) | tensor_bits(dict(model.named_buffers()))
    names = {id(p): n for n, p in model.named_parameters()}
    for each in optimizers:
        optimizer = getattr(each, "optimizer", each)
        for parameter, values in optimizer.state.items():
            moments = {k: torch.as_tensor(v) for k, v in values.items() if v is not None}
            found |= {f"{names[id(parameter)]}/{k}": bits_of(v) for k, v in moments.items()}
        rates = [group["lr"] for group in optimizer.param_groups]
        found[f"rates {len(found)}"] = repr(rates).encode()
    if generators:
        found["torch"] = bits_of(torch.get_rng_state())
        found["numpy"] = np.asarray(np.random.get_state(legacy=True)[1]).tobytes()
        found["python"] = repr(random.getstate()).encode()
    return found


def disturb(seed: int = 99) -> None:
    """Whatever is not restored is other than it was."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def commit_of(repo: mvc.Repository, step: int) -> CommitId:
    """The newest version of a step."""
    return next(e.id for e in repo.log() if e.commit.message.split(" (")[0] == f"step {step}")
