"""Times every layer of a model while it runs, forward and backward."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import torch
from torch.utils.hooks import RemovableHandle

from mvc.probing.hooks import layers_of
from mvc.probing.prints import tensors_in

_TIMED = "_mvc_probe_timed"


class Stopwatch:
    """Seconds of each layer in one run, without those of the layers inside it.

    Backward, a layer takes from when the gradient of its output has arrived until that of another
    layer's has, as autograd computes one after the other. ``total``: of the whole run.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.seconds = defaultdict[str, float](float), defaultdict[str, float](float)
        self.total = 0.0
        self._layers = layers_of(model)
        self._on_gpu = any(parameter.is_cuda for parameter in model.parameters())
        self._open: list[tuple[str, float, float]] = []  # layer, when it began, seconds inside it
        self._backward: tuple[str, float] | None = None  # layer, since when
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        for name, module in self._layers.items():
            self._handles += (
                module.register_forward_pre_hook(partial(self._enter, name)),
                module.register_forward_hook(partial(self._leave, name)),
            )
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    @property
    def current(self) -> str | None:
        if self._backward is not None:
            return self._backward[0]
        return self._open[-1][0] if self._open else None

    @contextmanager
    def forward(self) -> Iterator[None]:
        began = self._now()
        yield
        self.total += self._now() - began

    @contextmanager
    def backward(self) -> Iterator[None]:
        began = self._now()
        yield
        self._close(self._now())
        self.total += self._now() - began

    def _now(self) -> float:
        if self._on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def _enter(self, layer: str, _module: torch.nn.Module, _args: Any) -> None:
        self._open.append((layer, self._now(), 0.0))

    def _leave(self, layer: str, _module: torch.nn.Module, _args: Any, output: Any) -> None:
        now = self._now()
        while (call := self._open.pop())[0] != layer:
            pass  # a call that an exception ended
        _, began, inside = call
        self.seconds[0][layer] += now - began - inside
        if self._open:
            outer, since, so_far = self._open[-1]
            self._open[-1] = outer, since, so_far + now - began
        for _, tensor in tensors_in(output) if torch.is_grad_enabled() else ():
            # what a layer inside has returned is timed there, unless it was changed since
            if tensor.requires_grad and getattr(tensor, _TIMED, None) != tensor._version:
                setattr(tensor, _TIMED, tensor._version)
                tensor.register_hook(partial(self._arrived, layer))

    def _arrived(self, layer: str, _gradient: torch.Tensor) -> None:
        now = self._now()
        self._close(now)
        self._backward = layer, now

    def _close(self, now: float) -> None:
        if self._backward is not None:
            layer, since = self._backward
            self.seconds[1][layer] += now - since
            self._backward = None
