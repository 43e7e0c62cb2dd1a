"""load: a version's weights go into a live module, in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mvc.errors import DoesNotFit

__all__ = ["Loaded", "load"]

_SHOWN = 10


@dataclass(frozen=True)
class Loaded:
    """What did not fit: keys that the version lacks (``missing``), and that the module lacks."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


def load(model: torch.nn.Module, state: Any, *, strict: bool = True) -> Loaded:
    """Copies ``state``, a flat mapping of tensors, into the module's parameters and buffers.

    Everything is compared first: where it raises, the module is as it was. Raises DoesNotFit,
    listing every tensor whose shape or dtype differs, and with ``strict`` every key that only
    one side has.
    """
    if not isinstance(state, Mapping):
        raise DoesNotFit(f"the version holds a {type(state).__name__}, not named tensors")
    here = model.state_dict()
    missing = tuple(key for key in here if key not in state)
    unexpected = tuple(key for key in state if key not in here)
    wrong = [
        f"{key}: {_kind(state[key])} in the version, {_kind(mine)} in the model"
        for key, mine in here.items()
        if key in state and isinstance(mine, torch.Tensor) and _kind(state[key]) != _kind(mine)
    ]
    if strict:
        wrong += [f"{key}: the version lacks it" for key in missing]
        wrong += [f"{key}: the model lacks it" for key in unexpected]
    if wrong:
        more = f"; and {len(wrong) - _SHOWN:,} more" if len(wrong) > _SHOWN else ""
        raise DoesNotFit(
            f"the version does not fit the model: {'; '.join(wrong[:_SHOWN])}{more}",
            hint="make the model as it was when the version was committed; strict=False loads "
            "what both have, if shapes and dtypes agree",
        )
    fitting = {
        key: value
        if isinstance(value, torch.Tensor) or not isinstance(here[key], torch.Tensor)
        else torch.as_tensor(value)
        for key, value in state.items()
        if key in here
    }
    model.load_state_dict(fitting, strict=False)
    return Loaded(missing, unexpected)


def _kind(value: Any) -> str:
    """``float32 (2, 3)``, of torch tensors and numpy arrays alike."""
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
