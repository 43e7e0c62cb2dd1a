"""Which tensors of a model are trained together, and where each lies in the vector.

The vector is float32: the trained parameters in the order of ``named_parameters``, then the
float32 buffers (statistics of BatchNorm, say). All other tensors are *carried*, not averaged:
frozen parameters and integer buffers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from blake3 import blake3
from msgspec import Struct
from numpy.typing import NDArray

from mvc.errors import CannotDistribute

Vector = NDArray[np.float32]
Carried = Mapping[str, torch.Tensor]
_Shape: TypeAlias = tuple[int, ...]


class ModelLayout(Struct, frozen=True):
    """``keys``: every name of the ``state_dict`` with the name of the tensor that it stands for
    (another one for tied weights). ``trained`` and ``statistics``: names and shapes in the order
    of the vector. ``carried``: names, shapes and dtypes of all other tensors.
    """

    keys: tuple[tuple[str, str], ...]
    trained: tuple[tuple[str, _Shape], ...]
    statistics: tuple[tuple[str, _Shape], ...]
    carried: tuple[tuple[str, _Shape, str], ...]

    @classmethod
    def of(cls, model: torch.nn.Module) -> Self:
        """The layout of a live model. Raises CannotDistribute for one that cannot be trained so."""
        named: dict[int, str] = {}
        trained, statistics, carried = [], [], []
        for name, parameter in model.named_parameters():
            named[id(parameter)] = name
            if not parameter.requires_grad:
                carried.append((name, tuple(parameter.shape), str(parameter.dtype)))
            elif parameter.dtype != torch.float32:
                raise CannotDistribute(
                    f"the parameter {name} is {parameter.dtype}: only float32 is trained together",
                    hint="keep the model in float32, with torch.autocast for the forward pass",
                )
            else:
                trained.append((name, tuple(parameter.shape)))
        if not trained:
            raise CannotDistribute("the model has no parameter that is trained")
        live = model.state_dict(keep_vars=True)
        stored = {id(value) for value in live.values()}
        for name, buffer in model.named_buffers():
            if id(buffer) not in stored:
                continue
            named[id(buffer)] = name
            if buffer.dtype == torch.float32:
                statistics.append((name, tuple(buffer.shape)))
            else:
                carried.append((name, tuple(buffer.shape), str(buffer.dtype)))
        keys = tuple((key, named[id(value)]) for key, value in live.items() if id(value) in named)
        return cls(keys, tuple(trained), tuple(statistics), tuple(carried))

    @property
    def vector(self) -> tuple[tuple[str, _Shape], ...]:
        return self.trained + self.statistics

    @property
    def measured(self) -> int:
        """How many numbers of the vector are trained parameters; they come first."""
        return sum(math.prod(shape) for _, shape in self.trained)

    @property
    def length(self) -> int:
        return sum(math.prod(shape) for _, shape in self.vector)

    @property
    def digest(self) -> bytes:
        """16 bytes that differ if names, shapes or dtypes do."""
        return blake3(repr((self.vector, self.carried)).encode()).digest(16)

    def describe(self) -> list[str]:
        """A line for every tensor, in order."""
        described = [*((*each, "torch.float32") for each in self.vector), *self.carried]
        return [f"{name} {dtype[6:]} {list(shape)}" for name, shape, dtype in described]

    # -- a live model ----------------------------------------------------------------------

    def read(self, model: torch.nn.Module) -> Vector:
        live = _named(model)
        flat = torch.cat([live[name].detach().reshape(-1) for name, _ in self.vector])
        if flat.is_cuda:  # pinned memory is copied to at full speed
            flat = torch.empty(flat.shape, pin_memory=True).copy_(flat)
        copy: Vector = flat.cpu().numpy()
        return copy

    def write(self, model: torch.nn.Module, vector: Vector) -> None:
        write_tensors(model, self._cut(vector))

    def carried_of(self, model: torch.nn.Module) -> Carried:
        """Copies of the tensors that are not averaged."""
        live = _named(model)
        return {name: live[name].detach().cpu().clone() for name, *_ in self.carried}

    # -- a state -----------------------------------------------------------------------------

    def state(self, vector: Vector, carried: Carried) -> dict[str, torch.Tensor]:
        """What ``load_state_dict`` takes."""
        tensors = {**carried, **self._cut(vector)}
        return {key: tensors[name] for key, name in self.keys}

    def _cut(self, vector: Vector) -> dict[str, torch.Tensor]:
        found, start = {}, 0
        for name, shape in self.vector:
            end = start + math.prod(shape)
            found[name] = torch.from_numpy(np.array(vector[start:end], np.float32)).reshape(shape)
            start = end
        return found

    def split(self, state: Mapping[str, Any]) -> tuple[Vector, dict[str, torch.Tensor]]:
        """The vector and the carried tensors of a state. Raises CannotDistribute."""
        tensors = {name: state[key] for key, name in self.keys if key in state}
        wanted = [*((n, s, "torch.float32") for n, s in self.vector), *self.carried]
        for name, shape, dtype in wanted:
            there = tensors.get(name)
            if there is None or tuple(there.shape) != shape or str(there.dtype) != dtype:
                raise CannotDistribute(
                    f"the version to go on from does not fit the model: {name}",
                    hint="train the model that it holds, or leave resume out",
                )
        flat = [tensors[name].reshape(-1) for name, _ in self.vector]
        return torch.cat(flat).numpy(), {name: tensors[name] for name, *_ in self.carried}


def write_tensors(model: torch.nn.Module, tensors: Carried) -> None:
    """Sets tensors of a live model by their names."""
    live = _named(model)
    with torch.no_grad():
        for name, value in tensors.items():
            live[name].copy_(value)


def _named(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
