"""Hooks that hash inputs and outputs of every layer while a model runs.

Gradients are recorded by hooks of tensors, not by torch's full backward hooks of layers: a model
with full backward hooks fails if it changes the output of a layer in place, as a ResNet does. Each
layer receives a view of its input, and the gradient of the view is recorded. This is the gradient
through this layer only, even if other layers have the same input. A view shares memory with the
input, so the model computes the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Self

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch.utils.hooks import RemovableHandle

from mvc.ids import BlobId
from mvc.probing.prints import mapped, print_of, tensors_in
from mvc.probing.summary import WHOLE, LayerCall, LayerSelection, TensorPrint
from mvc.state import contiguous

_SOURCE = "_mvc_probe_source"
_CONTAINERS = (torch.nn.Module.forward, torch.nn.Sequential.forward)


def layers_of(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Maps names to the modules that are recorded: all except the model itself and containers.

    A container has no ``forward`` of its own: Sequential, ModuleList, ModuleDict. A module with
    several names is recorded under the first name. TorchScript modules call no hooks, so they are
    left out. If no module remains, the model itself is recorded.
    """
    layers = {}
    for name, module in model.named_modules():
        scripted = isinstance(module, torch.jit.ScriptModule)
        if name and not scripted and type(module).forward not in _CONTAINERS:
            layers[name] = module
    is_single = not layers and not isinstance(model, torch.jit.ScriptModule)
    return {WHOLE: model} if is_single else layers


class _Gradients(Struct):
    """Hooks on one input of a layer. ``of_view`` is on the view that the layer receives.

    ``of_source`` is on the input, and is used only if the layer changes the input in place.
    """

    source: torch.Tensor
    version: int
    of_view: RemovableHandle
    of_source: RemovableHandle | None


class _Open:
    """A call of a layer that has not returned yet."""

    def __init__(self, layer: str, began: int) -> None:
        self.layer, self.began = layer, began
        self.prints: dict[str, list[TensorPrint]] = {
            part: [] for part in ("input", "output", "grad_input", "grad_output")
        }
        self.gradients: list[_Gradients] = []


class Hooks:
    """Records the calls of a model's layers between ``__enter__`` and ``__exit__``.

    ``tensors``: maps the ids of tensors to the tensors. Empty if ``selection`` selects all layers.
    """

    def __init__(self, model: torch.nn.Module, selection: LayerSelection) -> None:
        self._layers = layers_of(model)
        self._selection = selection
        self._clock, self._gradients, self._forward = count(), count(), count()
        self._calls: Counter[str] = Counter()
        self._open: list[_Open] = []
        self._done: list[tuple[dict[str, Any], _Open]] = []
        self._handles: list[RemovableHandle] = []
        self.tensors: dict[BlobId, torch.Tensor] = {}

    def __enter__(self) -> Self:
        for name, module in self._layers.items():
            self._handles += (
                module.register_forward_pre_hook(partial(self._enter, name), with_kwargs=True),
                module.register_forward_hook(partial(self._leave, name), with_kwargs=True),
            )
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    @property
    def current(self) -> str | None:
        return self._open[-1].layer if self._open else None

    def calls(self) -> tuple[LayerCall, ...]:
        """The selected calls that have returned, in the order in which they returned."""
        calls_ = []
        for facts, call in self._done:
            if self._selection.has(facts["layer"], facts["forward"]):
                prints: dict[str, Any] = {part: tuple(p) for part, p in call.prints.items()}
                calls_.append(LayerCall(**facts, **prints))
        return tuple(calls_)

    def _enter(
        self, layer: str, _: torch.nn.Module, args: Any, kwargs: Any
    ) -> tuple[Any, Any] | None:
        call = _Open(layer, next(self._clock))
        self._open.append(call)
        if not self._selection.has(layer):
            return None
        self._record(call, "input", {**dict(enumerate(args)), **kwargs})
        if not torch.is_grad_enabled():
            return None
        views: dict[int, torch.Tensor] = {}
        args, kwargs = mapped((args, kwargs), partial(self._view, call, views))
        return args, kwargs

    def _view(
        self, call: _Open, views: dict[int, torch.Tensor], tensor: torch.Tensor, place: str
    ) -> torch.Tensor:
        """The view of an input. A layer that receives a tensor twice gets the same view twice."""
        if not tensor.requires_grad or tensor.layout is not torch.strided:
            return tensor
        if id(tensor) in views:
            return views[id(tensor)]
        view = tensor.view_as(tensor)
        source = getattr(tensor, _SOURCE, tensor)
        setattr(view, _SOURCE, source)
        record = self._gradient(call, "grad_input", place.partition(".")[2])
        of_view: RemovableHandle = view.register_hook(record)  # type: ignore[no-untyped-call]
        in_place = None if source.is_leaf else source.register_hook(record)
        call.gradients.append(_Gradients(source, source._version, of_view, in_place))
        views[id(tensor)] = view
        return view

    def _leave(
        self, layer: str, module: torch.nn.Module, _args: Any, _kwargs: Any, output: Any
    ) -> None:
        while (call := self._open.pop()).layer != layer:
            pass  # calls that an exception ended, for example in torch.utils.checkpoint
        self._calls[layer] += 1
        facts = {
            "layer": layer, "type": type(module).__qualname__, "call": self._calls[layer],
            "forward": next(self._forward), "began": call.began, "ended": next(self._clock),
        }  # fmt: skip
        self._done.append((facts, call))
        for gradient in call.gradients:
            changed = gradient.source._version != gradient.version
            unused = (
                gradient.of_view
                if changed and gradient.of_source is not None
                else gradient.of_source
            )
            if unused is not None:
                unused.remove()
        call.gradients.clear()
        if not self._selection.has(layer):
            return
        self._record(call, "output", output)
        if torch.is_grad_enabled():
            for place, tensor in tensors_in(output):
                if tensor.requires_grad:
                    tensor.register_hook(self._gradient(call, "grad_output", place))

    def _record(self, call: _Open, part: str, value: Any) -> None:
        for place, tensor in tensors_in(value):
            call.prints[part].append(self._print(call, tensor, place))

    def _gradient(self, call: _Open, part: str, place: str) -> Callable[[torch.Tensor], None]:
        """A hook that records a gradient when it arrives."""

        def record(gradient: torch.Tensor) -> None:
            print_ = self._print(call, gradient, place)
            call.prints[part].append(replace(print_, at=next(self._gradients)))

        return record

    def _print(self, call: _Open, tensor: torch.Tensor, place: str) -> TensorPrint:
        print_ = print_of(tensor, place, call.layer)
        if not self._selection.every and print_.id not in self.tensors:
            self.tensors[print_.id] = contiguous(tensor).clone()
        return print_
