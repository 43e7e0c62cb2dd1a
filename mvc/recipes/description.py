"""Describes a training as a recipe, from which a replay can run the training again.

The recipe is stored in the version that results from the training. ``Description`` also collects
the files that are attached to this version: the source code, the states of the training's objects,
and how the model is built. The *service* is the code that trains the model: a function, or the
method ``train`` of an object.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from blake3 import blake3

from mvc.errors import CannotRecord, MvcError, WrongUsage
from mvc.ids import Root
from mvc.models import environment
from mvc.models.models import NAME, Architecture, StoredModel, describe
from mvc.models.sources import sources_of
from mvc.recipes.dataset import Used
from mvc.recipes.making import making_of
from mvc.recipes.recipe import BaseState, Model, Recipe, Result
from mvc.recipes.service import START, Describer
from mvc.training.state.parts import passing_buffers, unwrap
from mvc.training.state.rng import rng_state


class Description:
    """Describes the model, the data sets and the objects of a training in their current state.

    An object that is used several times is described once. ``path``: the path of the model's file
    in the version. Raises CannotRecord for an object that cannot be rebuilt in a replay.
    """

    def __init__(self, source: torch.nn.Module | Architecture, data: Used, path: str) -> None:
        model: Any = source.model if isinstance(source, Architecture) else source
        self._model: torch.nn.Module = model
        self._data, self._path = data, path
        self.describer = Describer(self._model, data.places)
        self._stored: StoredModel | None = None
        self._files: Mapping[str, bytes] = {}
        self._model_value = self._built_by(source)

    def _built_by(self, source: torch.nn.Module | Architecture) -> Any:
        """Returns the call that builds the model, as a value of the recipe.

        Also describes the model for ``load_model``, if ``load_model`` can build this model.
        """
        making = None if isinstance(source, Architecture) else making_of(self._model)
        state = self._model.state_dict()
        if making is None:
            self._stored, self._files = describe(source, state, self._path)
            call = f"{self._stored.module}:{self._stored.name}"
            return self.describer.model(call, self._stored.arguments)
        value = self.describer.constructed_model()
        with suppress(MvcError, ValueError, TypeError):  # ``load_model`` cannot build every model
            bound = inspect.signature(making.call).bind(*making.args, **making.keywords)
            built = Architecture(making.call, bound.arguments)
            self._stored, self._files = describe(built, state, self._path)
        return value

    def recipe(
        self, base: BaseState, service: Any, arguments: Mapping[str, Any]
    ) -> tuple[Recipe, dict[str, Any]]:
        """Returns the recipe and the attachments. Call it right before the training, because it
        reads the states of the random generators.

        The hash of the resulting weights is not known yet: the recipe has zeros in its place.
        ``service`` and ``arguments`` (of the call of the service) are values that ``describer`` has
        returned.
        """
        describer, model = self.describer, self._model
        sources = sources_of(describer.classes, values=True)
        packages = {**(self._stored.packages if self._stored else {}), **sources.packages}
        files = {**self._files, **sources.files}
        current = environment.capture()
        describer.states[START] = {"rng": rng_state(), "buffers": passing_buffers(model)}
        describer.finish()
        attached = {
            environment.NAME: current.encoded,
            **({NAME: self._stored.encoded} if self._stored else {}),
            **files,
            **describer.states,
        }
        recipe = Recipe(
            makes=Result(self._path, Root(bytes(32))),
            base=base,
            data=self._data.data,
            model=Model(
                self._model_value,
                frozen=tuple(n for n, p in model.named_parameters() if not p.requires_grad),
                evaluating=tuple(n for n, m in model.named_modules() if not m.training),
                device=str(next((p.device for p in model.parameters()), torch.device("cpu"))),
            ),
            objects=tuple(describer.objects),
            service=service,
            arguments=arguments,
            packages=dict(sorted(packages.items())),
            code={name: blake3(data).hexdigest() for name, data in sorted(files.items())},
            seconds=0.0,
            steps=0,
        )
        return recipe, attached


def refuse_model(model: Any) -> None:
    """Raises CannotRecord for a model that a replay could not rebuild identically.

    Raises WrongUsage if ``model`` is not a module.
    """
    if not isinstance(model, torch.nn.Module):
        hooks = "a class" if isinstance(model, type) else f"of type {type(model).__qualname__}"
        raise WrongUsage(f"model is {hooks}: it must be a torch.nn.Module object")
    if unwrap(model) is not model:
        raise CannotRecord(
            f"the model is wrapped ({type(model).__qualname__})",
            hint="pass the inner module, and wrap this module in the training function",
        )
    for name, module in model.named_modules():
        shown = f"the module {name}" if name else "the model"
        for hooks in _HOOKS:
            if getattr(module, hooks, None):
                raise CannotRecord(
                    f"{shown} has hooks, which a recipe cannot record",
                    hint="register the hooks in the training function",
                )
    tensors = (*model.named_parameters(), *model.named_buffers())
    for name, tensor in tensors:
        if not tensor.is_contiguous():
            raise CannotRecord(
                f"{name} is not contiguous, and its order in memory would not be restored",
                hint="choose the memory format in the training function",
            )
    devices = sorted({str(tensor.device) for _, tensor in tensors})
    if len(devices) > 1:
        raise CannotRecord(
            f"the model is on several devices: {', '.join(devices)}",
            hint="move the model to one device",
        )


def refuse_process_group() -> None:
    """Raises CannotRecord in a distributed training, because a replay runs in one process."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise CannotRecord(
            "this process is in a torch.distributed process group, which a recipe cannot record",
            hint="train without init_process_group; or commit the model without a recipe",
        )


_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
    "_state_dict_hooks", "_state_dict_pre_hooks",
)  # fmt: skip
