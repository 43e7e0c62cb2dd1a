"""The random generators of every process of a training, brought to the one that records.

They travel as numbers in a tensor of bytes, by accelerate's own ``gather``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from accelerate.state import PartialState
from accelerate.utils import gather

from mvc.training.state.rng import rng_state

__all__ = ["own_of", "rng_of_others"]

# numpy: position, has_gauss, cached; Python: version, whether there is a second number, it
_NUMBERS = struct.Struct("<qqdqqd")


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
    numbers = _NUMBERS.pack(
        numpy["position"],
        numpy["has_gauss"],
        numpy["cached"],
        python["version"],
        gauss is not None,
        gauss or 0.0,
    )
    arrays = [numpy["keys"].tobytes(), python["words"].tobytes(), numbers]
    plain = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in arrays]
    return torch.cat([state["torch"], *state["cuda"], *plain])


def _unpacked(row: torch.Tensor, like: Mapping[str, Any]) -> dict[str, Any]:
    """``like`` says how long the parts are: the processes run the same program."""
    numpy, python = like["numpy"], like["python"]
    sizes = [
        *(len(part) for part in (like["torch"], *like["cuda"])),
        numpy["keys"].nbytes,
        python["words"].nbytes,
        _NUMBERS.size,
    ]
    drawn, *cuda, keys, words, packed = (part.clone() for part in torch.split(row, sizes))
    position, has_gauss, cached, version, second, gauss = _NUMBERS.unpack(packed.numpy().tobytes())
    return {
        "torch": drawn,
        "cuda": cuda,
        "numpy": {
            "kind": numpy["kind"],
            "keys": keys.numpy().view(np.uint32),
            "position": position,
            "has_gauss": has_gauss,
            "cached": cached,
        },
        "python": {
            "version": version,
            "words": words.numpy().view(np.uint32),
            "gauss": gauss if second else None,
        },
    }
