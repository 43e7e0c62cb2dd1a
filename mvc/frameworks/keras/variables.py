"""Names of Keras variables, and a class that copies recorded tensors into variables.

A variable's name is its ``path``, for example ``sequential/dense/kernel``. Several variables of a
model may have the same path, if a subclassed model has layers with the same name. Then the name of
the second variable ends in ``#2``, the name of the third in ``#3``, in Keras's order.

If a layer has no name, Keras makes a name with a number, and continues counting from model to model
within a process. If names of tensors and variables differ only in such numbers, tensors and
variables are matched in order, as Keras's own ``load_weights`` does.
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
    """Maps unique names to the variables."""
    named: dict[str, Any] = {}
    for variable in variables:
        name, number = variable.path, 1
        while name in named:
            number += 1
            name = f"{variable.path}#{number}"
        named[name] = variable
    return named


def weights(model: Any) -> dict[str, Any]:
    """The model's trained and frozen weights, statistics, and buffers of torch modules, by name."""
    return {**by_path(model.weights), **_buffers(model)}


def no_weights(model: Any) -> list[str]:
    """Names of statistics, frozen weights and buffers, which are in ``weights`` but not trained."""
    own = by_path(model.weights)
    return [*(name for name, v in own.items() if not v.trainable), *_buffers(model)]


def _buffers(model: Any) -> dict[str, torch.Tensor]:
    """Buffers of torch modules inside the model.

    Keras does not have variables for these buffers.
    """
    buffers: dict[str, torch.Tensor] = {}
    for layer in layers_of(model):
        module = getattr(layer, "module", None)  # attribute of a TorchModuleWrapper
        if not isinstance(module, torch.nn.Module):
            continue
        path = layer.path or layer.name
        for name, buffer in module.named_buffers():
            if buffers.setdefault(f"{path}/{name}", buffer) is not buffer:
                raise UnsupportedTensor(
                    f"two torch modules of the model have the name {path}",
                    hint="use unique names for their layers",
                )
    return buffers


def stale_gradients(model: Any) -> dict[str, torch.Tensor]:
    """Gradients that Keras does not reset between batches. Maps the position of a weight in
    ``trainable_weights`` to its gradient.

    If several weights have the same path, Keras registers only one of the weights with torch.
    Keras's ``zero_grad`` resets only the gradients of registered weights.
    """
    reached = {id(parameter) for parameter in model.parameters()}
    return {
        str(number): variable.value.grad
        for number, variable in enumerate(model.trainable_weights)
        if id(variable.value) not in reached and variable.value.grad is not None
    }


def set_stale_gradients(model: Any, gradients: Mapping[str, torch.Tensor]) -> None:
    """Sets the gradients that ``stale_gradients`` returned for a model with the same weights."""
    for number, variable in enumerate(model.trainable_weights):
        gradient = gradients.get(str(number))
        variable.value.grad = None if gradient is None else gradient.to(variable.value.device)


def seeds(model: Any) -> dict[str, Any]:
    """States of the layers' seed generators. These are variables that are not weights."""
    own = {id(variable) for variable in model.weights}
    return by_path(v for v in model.variables if id(v) not in own)


def optimizer_variables(optimizer: Any) -> dict[str, Any]:
    """Variables of an optimizer: moments, iterations, learning rate, loss scale.

    If an optimizer wraps another optimizer, Keras does not list all variables of the inner
    optimizer. So variables are also read from the attributes of the optimizers.
    """
    variables = {id(variable): variable for variable in optimizer.variables}
    kind = type(optimizer.variables[0])  # the number of iterations always exists
    for inner in _with_inner(optimizer):
        variables |= {id(v): v for v in vars(inner).values() if isinstance(v, kind)}
    return by_path(variables.values())


def optimizer_kind(optimizer: Any) -> str:
    """The optimizer's class, and the classes of the optimizers that it wraps."""
    name = type(optimizer).__name__
    inner = ", ".join(optimizer_kind(wrapped) for wrapped in inner_optimizers(optimizer))
    return f"{name}({inner})" if inner else name


def _with_inner(optimizer: Any) -> list[Any]:
    inner = [one for wrapped in inner_optimizers(optimizer) for one in _with_inner(wrapped)]
    return [optimizer, *inner]


class Filling:
    """Copies recorded tensors into variables.

    The constructor checks that tensors and variables match. ``apply`` copies the tensors.
    """

    def __init__(self, owner: str, recorded: Mapping[str, Any], current: Mapping[str, Any]) -> None:
        """Raises CannotResume, which names a tensor that is missing, unexpected or of another shape
        or dtype.
        """
        names = list(recorded)
        if recorded.keys() == current.keys():
            names = list(current)
        else:
            _check_names(owner, names, list(current))
        self._pairs = []
        for name, (place, target) in zip(names, current.items(), strict=True):
            value, live = recorded[name], _tensor_of(target)
            if not isinstance(value, torch.Tensor):
                raise CannotResume(f"{name} is not a tensor in the version")
            if live.is_meta:
                raise CannotResume(f"{place} of the {owner} has no data (device meta)")
            if (value.dtype, value.shape) != (live.dtype, live.shape):
                text = f"{_kind(live)} in the {owner}, {_kind(value)} in the version"
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


def _check_names(owner: str, recorded: list[str], current: list[str]) -> None:
    """Raises CannotResume if names differ in more than the numbers that Keras adds to names."""
    theirs, mine = ([_NUMBER.sub("", name) for name in names] for names in (recorded, current))
    for name, plain in zip(current, mine, strict=True):
        if plain not in theirs:
            raise CannotResume(f"the version has no {name}, which the {owner} has")
    for name, plain in zip(recorded, theirs, strict=True):
        if plain not in mine:
            raise CannotResume(f"the version has {name}, which the {owner} does not have")
    if len(recorded) != len(current):
        raise CannotResume(
            f"the {owner} has {len(current)} tensors, but the version has {len(recorded)}"
        )
    for old, new, their, my in zip(recorded, current, theirs, mine, strict=True):
        if their != my:
            raise CannotResume(
                f"the {owner} has {new} where the version has {old}",
                hint="name the layers, so that their order does not matter",
            )


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
