"""Converts a model to the flat float32 vector that a distributed training averages, and back.

The vector contains the trained parameters in the order of ``named_parameters``, then the float32
buffers (for example statistics of BatchNorm). The remaining tensors (frozen parameters and integer
buffers) are *carried*: each version stores these tensors, but they are not averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from blake3 import blake3
from msgspec import Struct
from numpy.typing import NDArray

from mvc.distributed.codecs import VectorLayout
from mvc.errors import CannotDistribute

Vector = NDArray[np.float32]
Carried = Mapping[str, torch.Tensor]


class ModelLayout(Struct, frozen=True):
    """``keys``: maps each name in ``state_dict`` to the name of a tensor. With tied weights, two
    names have the same tensor.

    ``vector`` and ``carried`` map names of tensors to tensors without data (on the device
    ``meta``). ``flat``: the length and dtype of the vector.
    """

    keys: dict[str, str]
    vector: Carried
    carried: Carried
    flat: VectorLayout

    @classmethod
    def of(cls, model: torch.nn.Module) -> Self:
        """The layout of a model. Raises CannotDistribute for an unsupported model."""
        live = model.state_dict(keep_vars=True)
        stored = {id(value) for value in live.values()}
        named = {name: value for name, value in _named(model).items() if id(value) in stored}
        trained, statistics, carried = {}, {}, {}
        for name, value in named.items():
            empty = value.detach().to("meta")
            if value.requires_grad and value.dtype != torch.float32:
                raise CannotDistribute(
                    f"the parameter {name} is {value.dtype}: mvc averages only float32 parameters",
                    hint="keep the model in float32, with torch.autocast for the forward pass",
                )
            if value.requires_grad:
                trained[name] = empty
            elif isinstance(value, torch.nn.Parameter) or value.dtype != torch.float32:
                carried[name] = empty
            else:
                statistics[name] = empty
        if not trained:
            raise CannotDistribute("the model has no trainable parameter")
        names = {id(value): name for name, value in named.items()}
        keys = {key: names[id(value)] for key, value in live.items() if id(value) in names}
        vector = {**trained, **statistics}
        measured, length = (sum(x.numel() for x in part.values()) for part in (trained, vector))
        digest = blake3("\n".join(_described({**vector, **carried})).encode()).digest(16)
        flat = VectorLayout(length, measured, np.dtype(np.float32), digest)
        return cls(keys, vector, carried, flat)

    def describe(self) -> list[str]:
        """One line of text for every tensor: its name, dtype and shape."""
        return _described({**self.vector, **self.carried})

    # -- a model ---------------------------------------------------------------------------

    def read(self, model: torch.nn.Module) -> Vector:
        live = _named(model)
        flat = torch.cat([live[name].detach().reshape(-1) for name in self.vector])
        if flat.is_cuda:  # copying to pinned memory is faster
            flat = torch.empty(flat.shape, pin_memory=True).copy_(flat)
        copy: Vector = flat.cpu().numpy()
        return copy

    def write(self, model: torch.nn.Module, vector: Vector, carried: Carried | None = None) -> None:
        live = _named(model)
        with torch.no_grad():
            for name, value in {**self._cut(vector), **(carried or {})}.items():
                live[name].copy_(value)

    def carried_of(self, model: torch.nn.Module) -> Carried:
        """Copies of the carried tensors."""
        live = _named(model)
        return {name: live[name].detach().cpu().clone() for name in self.carried}

    # -- a state -----------------------------------------------------------------------------

    def state(self, vector: Vector, carried: Carried) -> dict[str, torch.Tensor]:
        """The state of a model with these tensors, for ``load_state_dict``."""
        tensors = {**carried, **self._cut(vector)}
        return {key: tensors[name] for key, name in self.keys.items()}

    def _cut(self, vector: Vector) -> dict[str, torch.Tensor]:
        ends = np.cumsum([value.numel() for value in self.vector.values()])
        parts = np.split(vector, ends[:-1])
        return {
            name: torch.from_numpy(part.copy()).reshape(value.shape)
            for (name, value), part in zip(self.vector.items(), parts, strict=True)
        }

    def split(self, state: Mapping[str, Any]) -> tuple[Vector, dict[str, torch.Tensor]]:
        """The vector and the carried tensors of a state. Raises CannotDistribute if a tensor of the
        model is missing or has another dtype or shape.
        """
        tensors = {name: state[key] for key, name in self.keys.items() if key in state}
        for name, wanted in {**self.vector, **self.carried}.items():
            current = tensors.get(name)
            if current is None or (current.shape, current.dtype) != (wanted.shape, wanted.dtype):
                raise CannotDistribute(
                    f"the version to resume from does not match the model: {name}",
                    hint="train the model of that version, or remove resume",
                )
        flat = torch.cat([tensors[name].reshape(-1) for name in self.vector])
        return flat.numpy(), {name: tensors[name] for name in self.carried}


def _named(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _described(tensors: Carried) -> list[str]:
    return [f"{name} {str(x.dtype)[6:]} {list(x.shape)}" for name, x in tensors.items()]
