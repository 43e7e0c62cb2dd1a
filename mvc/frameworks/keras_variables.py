"""Keras variables by name, and kept tensors back into them.

A variable goes by its ``path``, such as ``sequential/dense/kernel``. Where a model has several
of one path (layers of one name in a subclassed model), the second is ``...#2``, and so on in the
order in which Keras lists them, which follows from how the model is built.

Keras numbers the names that it gives by itself, and counts on from model to model within a
process: the same network is ``dense``, ``dense_1`` once and ``dense_2``, ``dense_3`` later. So
where names differ in nothing but such numbers, tensors and variables belong together in order,
as they do for Keras's own ``load_weights``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from mvc.errors import CannotResume

__all__ = ["Filling", "buffers", "by_path", "optimizer_kind", "seeds", "weights"]

_NUMBER = re.compile(r"_\d+(?=[/_#]|$)")


def by_path(variables: Iterable[Any]) -> dict[str, Any]:
    """The variables under names that are all different."""
    named: dict[str, Any] = {}
    for variable in variables:
        name, number = variable.path, 1
        while name in named:
            number += 1
            name = f"{variable.path}#{number}"
        named[name] = variable
    return named


def weights(model: Any) -> dict[str, Any]:
    """Trained and frozen weights and statistics, and ``buffers``: what the model is."""
    return {**by_path(model.weights), **buffers(model)}


def buffers(model: Any) -> dict[str, torch.Tensor]:
    """Buffers of torch modules inside the model; Keras has no variables for these."""
    found: dict[str, torch.Tensor] = {}
    for layer in model._flatten_layers():
        module = getattr(layer, "module", None)  # of a TorchModuleWrapper
        if isinstance(module, torch.nn.Module):
            for name, buffer in module.named_buffers():
                key = f"{layer.path}/{name}"
                if key in found and found[key] is not buffer:
                    raise CannotResume(
                        f"two torch modules of the model go by the name {layer.path}",
                        hint="give the layers that hold them names of their own",
                    )
                found[key] = buffer
    return found


def seeds(model: Any) -> dict[str, Any]:
    """States of the seed generators of layers: variables that are no weights."""
    own = {id(variable) for variable in model.weights}
    return by_path(v for v in model.variables if id(v) not in own)


def optimizer_kind(optimizer: Any) -> str:
    """Its class, and the class of the one that it wraps."""
    inner = getattr(optimizer, "inner_optimizer", None)
    name = type(optimizer).__name__
    return name if inner is None else f"{name}({optimizer_kind(inner)})"


class Filling:
    """Kept tensors and where they go. Making it checks, ``apply`` changes."""

    def __init__(self, what: str, kept: Mapping[str, Any], here: Mapping[str, Any]) -> None:
        """Raises CannotResume naming what is missing, too many or of another shape or dtype."""
        names = list(kept)
        if kept.keys() == here.keys():
            names = list(here)
        elif _plain(kept) != _plain(here):
            raise _strange(what, names, list(here))
        self._pairs = []
        for name, (place, target) in zip(names, here.items(), strict=True):
            value, live = kept[name], tensor_of(target)
            if not isinstance(value, torch.Tensor):
                raise CannotResume(f"{name} is no tensor in the version")
            if live.is_meta:
                raise CannotResume(f"{place} of the {what} has no data (device meta)")
            if (value.dtype, value.shape) != (live.dtype, live.shape):
                raise CannotResume(
                    f"{place} is {_kind(live)} in the {what}, {_kind(value)} in the version"
                )
            self._pairs.append((live, value))

    def apply(self) -> None:
        """Copies the bits."""
        with torch.no_grad():
            for live, value in self._pairs:
                live.copy_(value)


def tensor_of(target: Any) -> torch.Tensor:
    """The tensor of a variable; a tensor itself."""
    tensor: torch.Tensor = target if isinstance(target, torch.Tensor) else target.value
    return tensor


def _plain(names: Iterable[str]) -> list[str]:
    return [_NUMBER.sub("", name) for name in names]


def _strange(what: str, kept: Sequence[str], here: Sequence[str]) -> CannotResume:
    for name in here:
        if name not in kept:
            return CannotResume(f"the version has no {name}, which the {what} has")
    extra = next(name for name in kept if name not in here)
    return CannotResume(f"the version has {extra}, which the {what} does not have")


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
