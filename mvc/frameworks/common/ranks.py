"""Trainings in several processes begun by accelerate: sharded states, and random generators.

The generators travel to the process that records in a tensor of bytes, by accelerate's ``gather``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import gather

from mvc.errors import WrongUsage
from mvc.training.state.rng import rng_state

__all__ = ["own_of", "refuse_sharded", "rng_of_others"]


def refuse_sharded() -> None:
    """Raises WrongUsage if no process holds the whole model."""
    kind = getattr(AcceleratorState().distributed_type, "value", "")
    if kind in {"FSDP", "DEEPSPEED", "MEGATRON_LM"}:
        raise WrongUsage(
            f"the training is sharded ({kind}): no process has the whole state",
            hint="commit the folders that it saves",
        )


def rng_of_others() -> list[dict[str, Any]]:
    """``rng_state`` of the processes after the first. A collective: every process must call it."""
    if PartialState().num_processes == 1:
        return []
    own = rng_state()
    packed = _packed(own)
    rows = gather(packed.to(PartialState().device)).cpu().reshape(-1, packed.numel())
    return [_unpacked(row, own) for row in rows[1:]]


def own_of(first: Mapping[str, Any], others: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The stored state of this process, or of the first one if fewer processes saved."""
    index = PartialState().process_index
    return others[index - 1] if 0 < index <= len(others) else first


def _packed(state: Mapping[str, Any]) -> torch.Tensor:
    numpy, python = state["numpy"], state["python"]
    gauss = python["gauss"]
    small = [numpy["position"], numpy["has_gauss"], numpy["cached"], python["version"]]
    numbers = np.array([*small, gauss is not None, gauss or 0.0], np.float64)
    arrays = [torch.from_numpy(a.view(np.uint8)) for a in (numpy["keys"], python["words"], numbers)]
    return torch.cat([state["torch"], *state["cuda"], *arrays])


def _unpacked(row: torch.Tensor, like: Mapping[str, Any]) -> dict[str, Any]:
    """``like`` says how long the parts are: the processes run the same program."""
    numpy, python = like["numpy"], like["python"]
    sizes = [len(part) for part in (like["torch"], *like["cuda"])]
    sizes += [numpy["keys"].nbytes, python["words"].nbytes]
    parts = torch.split(row, [*sizes, len(row) - sum(sizes)])
    drawn, *cuda, keys, words, packed = (part.clone() for part in parts)
    numbers = packed.numpy().view(np.float64).tolist()
    position, has_gauss, cached, version, second, gauss = numbers
    return {
        "torch": drawn,
        "cuda": cuda,
        "numpy": {
            "kind": numpy["kind"],
            "keys": keys.numpy().view(np.uint32),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": cached,
        },
        "python": {
            "version": int(version),
            "words": words.numpy().view(np.uint32),
            "gauss": gauss if second else None,
        },
    }
