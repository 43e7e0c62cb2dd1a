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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from mvc.errors import CannotResume, UnsupportedTensor

__all__ = [
    "Filling",
    "buffers",
    "by_path",
    "no_weights",
    "optimizer_kind",
    "optimizer_variables",
    "seeds",
    "set_stale_gradients",
    "stale_gradients",
    "weights",
]

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


def no_weights(model: Any) -> list[str]:
    """Of ``weights`` those that are not trained: statistics, what is frozen, ``buffers``."""
    own = by_path(model.weights)
    return [*(name for name, v in own.items() if not v.trainable), *buffers(model)]


def buffers(model: Any) -> dict[str, torch.Tensor]:
    """Buffers of torch modules inside the model; Keras has no variables for these."""
    found: dict[str, torch.Tensor] = {}
    for layer in model._flatten_layers():
        module = getattr(layer, "module", None)  # of a TorchModuleWrapper
        if isinstance(module, torch.nn.Module):
            for name, buffer in module.named_buffers():
                key = f"{layer.path or layer.name}/{name}"
                if key in found and found[key] is not buffer:
                    raise UnsupportedTensor(
                        f"two torch modules of the model go by the name {layer.path or layer.name}",
                        hint="give the layers that hold them names of their own",
                    )
                found[key] = buffer
    return found


def stale_gradients(model: Any) -> dict[str, torch.Tensor]:
    """Gradients that the next batch will add to, by position among the trained weights.

    Of several weights of one path Keras registers a single one with torch. Its ``zero_grad``
    does not reach the others, so that their gradients add up over the batches.
    """
    reached = {id(parameter) for parameter in model.parameters()}
    found = {}
    for number, variable in enumerate(model.trainable_weights):
        tensor = variable.value
        if id(tensor) not in reached and tensor.grad is not None:
            found[str(number)] = tensor.grad
    return found


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

    An optimizer that is built by one that wraps it may have variables that Keras lists nowhere,
    such as the running product of Nadam inside of a LossScaleOptimizer; they are found as
    attributes.
    """
    found = list(optimizer.variables)
    known = {id(variable) for variable in found}
    kind = type(found[0])  # there is always the number of iterations
    for each in _with_inner(optimizer):
        for value in vars(each).values():
            if isinstance(value, kind) and id(value) not in known:
                known.add(id(value))
                found.append(value)
    return by_path(found)


def optimizer_kind(optimizer: Any) -> str:
    """The optimizer's class, and the classes of the optimizers that it wraps."""
    name = type(optimizer).__name__
    inner = ", ".join(optimizer_kind(each) for each in _inner(optimizer))
    return f"{name}({inner})" if inner else name


def _inner(optimizer: Any) -> list[Any]:
    one = getattr(optimizer, "inner_optimizer", None)  # of a LossScaleOptimizer
    return list(getattr(optimizer, "_inner_optimizers", [])) if one is None else [one]


def _with_inner(optimizer: Any) -> Iterator[Any]:
    yield optimizer
    for each in _inner(optimizer):
        yield from _with_inner(each)


class Filling:
    """Stored tensors and the variables they belong to. The constructor checks, ``apply`` copies."""

    def __init__(self, what: str, kept: Mapping[str, Any], here: Mapping[str, Any]) -> None:
        """Raises CannotResume naming what is missing, unexpected or of another shape or dtype."""
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
    theirs, mine = _plain(kept), _plain(here)
    for name, plain in zip(here, mine, strict=True):
        if plain not in theirs:
            return CannotResume(f"the version has no {name}, which the {what} has")
    for name, plain in zip(kept, theirs, strict=True):
        if plain not in mine:
            return CannotResume(f"the version has {name}, which the {what} does not have")
    if len(kept) != len(here):
        return CannotResume(f"the {what} has {len(here)} tensors, the version {len(kept)}")
    pairs = zip(kept, here, theirs, mine, strict=True)
    old, new = next((k, h) for k, h, their, my in pairs if their != my)
    return CannotResume(
        f"the {what} has {new} where the version has {old}",
        hint="give the layers names, so that their order does not matter",
    )


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
