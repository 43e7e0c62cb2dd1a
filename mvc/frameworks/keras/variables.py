"""Keras variables by name, and kept tensors back into them.

A variable goes by its ``path``, such as ``sequential/dense/kernel``. Where a model has several
of one path (layers of one name in a subclassed model), the second is ``...#2``, and so on in the
order in which Keras lists them.

Keras numbers the names that it gives by itself, and counts on from model to model within a
process. So where names differ in nothing but such numbers, tensors and variables belong together
in order, as they do for Keras's own ``load_weights``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from mvc.errors import CannotResume, UnsupportedTensor
from mvc.frameworks.keras.internals import inner_optimizers, layers_of

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
    """What the model is: trained and frozen weights, statistics, buffers of torch modules."""
    return {**by_path(model.weights), **_buffers(model)}


def no_weights(model: Any) -> list[str]:
    """Of ``weights`` those that are not trained: statistics, what is frozen, buffers."""
    own = by_path(model.weights)
    return [*(name for name, v in own.items() if not v.trainable), *_buffers(model)]


def _buffers(model: Any) -> dict[str, torch.Tensor]:
    """Buffers of torch modules inside the model; Keras has no variables for these."""
    found: dict[str, torch.Tensor] = {}
    for layer in layers_of(model):
        module = getattr(layer, "module", None)  # of a TorchModuleWrapper
        if not isinstance(module, torch.nn.Module):
            continue
        path = layer.path or layer.name
        for name, buffer in module.named_buffers():
            if found.setdefault(f"{path}/{name}", buffer) is not buffer:
                raise UnsupportedTensor(
                    f"two torch modules of the model go by the name {path}",
                    hint="give the layers that hold them names of their own",
                )
    return found


def stale_gradients(model: Any) -> dict[str, torch.Tensor]:
    """Gradients that the next batch will add to, by position among the trained weights.

    Of several weights of one path Keras registers a single one with torch. Its ``zero_grad``
    does not reach the others, so that their gradients add up over the batches.
    """
    reached = {id(parameter) for parameter in model.parameters()}
    return {
        str(number): variable.value.grad
        for number, variable in enumerate(model.trainable_weights)
        if id(variable.value) not in reached and variable.value.grad is not None
    }


def set_stale_gradients(model: Any, kept: Mapping[str, torch.Tensor]) -> None:
    """Sets the result of ``stale_gradients``. Check first that the weights are the same."""
    for number, variable in enumerate(model.trainable_weights):
        gradient = kept.get(str(number))
        variable.value.grad = None if gradient is None else gradient.to(variable.value.device)


def seeds(model: Any) -> dict[str, Any]:
    """States of the seed generators of layers: variables that are no weights."""
    own = {id(variable) for variable in model.weights}
    return by_path(v for v in model.variables if id(v) not in own)


def optimizer_variables(optimizer: Any) -> dict[str, Any]:
    """Moments, iterations, learning rate, loss scale.

    Keras does not list all variables of an optimizer inside another, such as the running product
    of Nadam in a LossScaleOptimizer; they are found as attributes.
    """
    found = {id(variable): variable for variable in optimizer.variables}
    kind = type(optimizer.variables[0])  # there is always the number of iterations
    for each in _with_inner(optimizer):
        found |= {id(v): v for v in vars(each).values() if isinstance(v, kind)}
    return by_path(found.values())


def optimizer_kind(optimizer: Any) -> str:
    """The optimizer's class, and the classes of the optimizers that it wraps."""
    name = type(optimizer).__name__
    inner = ", ".join(optimizer_kind(each) for each in inner_optimizers(optimizer))
    return f"{name}({inner})" if inner else name


def _with_inner(optimizer: Any) -> list[Any]:
    inner = [one for each in inner_optimizers(optimizer) for one in _with_inner(each)]
    return [optimizer, *inner]


class Filling:
    """Stored tensors and the variables they belong to. The constructor checks, ``apply`` copies."""

    def __init__(self, what: str, kept: Mapping[str, Any], here: Mapping[str, Any]) -> None:
        """Raises CannotResume naming what is missing, unexpected or of another shape or dtype."""
        names = list(kept)
        if kept.keys() == here.keys():
            names = list(here)
        else:
            _check_names(what, names, list(here))
        self._pairs = []
        for name, (place, target) in zip(names, here.items(), strict=True):
            value, live = kept[name], _tensor_of(target)
            if not isinstance(value, torch.Tensor):
                raise CannotResume(f"{name} is no tensor in the version")
            if live.is_meta:
                raise CannotResume(f"{place} of the {what} has no data (device meta)")
            if (value.dtype, value.shape) != (live.dtype, live.shape):
                text = f"{_kind(live)} in the {what}, {_kind(value)} in the version"
                raise CannotResume(f"{place} is {text}")
            self._pairs.append((live, value))

    def apply(self) -> None:
        with torch.no_grad():
            for live, value in self._pairs:
                live.copy_(value)


def tensors(named: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of variables."""
    return {name: _tensor_of(target) for name, target in named.items()}


def _tensor_of(target: Any) -> torch.Tensor:
    tensor: torch.Tensor = target if isinstance(target, torch.Tensor) else target.value
    return tensor


def _check_names(what: str, kept: list[str], here: list[str]) -> None:
    """Raises CannotResume for names that differ in more than Keras's numbers."""
    theirs, mine = ([_NUMBER.sub("", name) for name in names] for names in (kept, here))
    for name, plain in zip(here, mine, strict=True):
        if plain not in theirs:
            raise CannotResume(f"the version has no {name}, which the {what} has")
    for name, plain in zip(kept, theirs, strict=True):
        if plain not in mine:
            raise CannotResume(f"the version has {name}, which the {what} does not have")
    if len(kept) != len(here):
        raise CannotResume(f"the {what} has {len(here)} tensors, the version {len(kept)}")
    for old, new, their, my in zip(kept, here, theirs, mine, strict=True):
        if their != my:
            raise CannotResume(
                f"the {what} has {new} where the version has {old}",
                hint="give the layers names, so that their order does not matter",
            )


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
