"""Which tensors of a model are trained together, and where each lies in the vector.

The vector is float32: the trained parameters in the order of ``named_parameters``, then the
float32 buffers (statistics of BatchNorm, say). All other tensors are *carried*, not averaged:
frozen parameters and integer buffers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from blake3 import blake3
from msgspec import Struct, convert
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save

from mvc.errors import BadMessage, CannotDistribute

Vector = NDArray[np.float32]
Carried = Mapping[str, torch.Tensor]
_Shape: TypeAlias = tuple[int, ...]


class ModelLayout(Struct, frozen=True, array_like=True):
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

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """A layout that another process described. Raises BadMessage."""
        try:
            made = convert(value, cls)
            names = {name for name, *_ in (*made.vector, *made.carried)}
            shapes = [shape for _, shape in made.vector] + [shape for _, shape, _ in made.carried]
            sizes = [size for shape in shapes for size in shape]
            sound = made.measured > 0 and min(sizes) >= 0
            if not sound or not {name for _, name in made.keys} <= names:
                raise ValueError
        except ValueError as error:
            raise BadMessage("the description of a model cannot be read") from error
        return made

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

    def difference(self, other: Self) -> str | None:
        """The first tensor in which another model differs, in words; None if none does."""
        here = {name: rest for name, *rest in (*self.vector, *self.carried)}
        there = {name: rest for name, *rest in (*other.vector, *other.carried)}
        for name in [*there, *here]:
            a, b = here.get(name), there.get(name)
            if a is None:
                return f"it has {name}, which the others lack"
            if b is None:
                return f"it lacks {name}"
            if a != b:
                return f"its {name} is {_text(b)}, the others' is {_text(a)}"
        if self.digest != other.digest:
            return "its tensors have another order"
        return None

    # -- a live model ----------------------------------------------------------------------

    def read(self, model: torch.nn.Module) -> Vector:
        live = _named(model)
        flat = [live[name].detach().reshape(-1).cpu() for name, _ in self.vector]
        copy: Vector = torch.cat(flat).numpy()
        return copy

    def write(self, model: torch.nn.Module, vector: Vector) -> None:
        write_tensors(model, self._cut(vector))

    def pack(self, model: torch.nn.Module) -> bytes:
        """The carried tensors of a live model as safetensors."""
        live = _named(model)
        return save({name: live[name].detach().cpu().clone() for name, *_ in self.carried})

    def unpack(self, data: bytes) -> dict[str, torch.Tensor]:
        """Carried tensors that another process sent. Raises BadMessage."""
        try:
            found = load(data)
        except (SafetensorError, ValueError, KeyError) as error:
            raise BadMessage("the tensors of a model cannot be read") from error
        there = {(name, tuple(t.shape), str(t.dtype)) for name, t in found.items()}
        if there != set(self.carried):
            raise BadMessage("the tensors that a worker sent are not those of its model")
        return found

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


def _text(described: Sequence[Any]) -> str:
    shape = "x".join(map(str, described[0])) or "a number"
    return " ".join([shape, *(str(each).removeprefix("torch.") for each in described[1:])])
