"""What deterministic kernels cost: each layer of a training is timed with them, and with any."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mvc.probing.hooks import layers_of
from mvc.probing.prints import tensors_in

_OFTEN = 0.9  # of the pairs of runs
_OWN, _RUN, _ALL = 0.05, 0.01, 0.05  # of the layer's time, of the run's, of what the run is slower
_TIMED = "_layer_cost_timed"


@dataclass(frozen=True)
class LayerCost:
    """What the calls of a layer take in a run, in seconds, without the layers inside it.

    Medians over the runs, (forward, backward): with ``any`` kernels and with ``deterministic``
    ones. ``slower``: the share of pairs of runs in which the deterministic one took longer.
    """

    layer: str
    type: str
    any: tuple[float, float]
    deterministic: tuple[float, float]
    slower: float

    @property
    def extra(self) -> float:
        """Seconds that deterministic kernels take longer."""
        return sum(self.deterministic) - sum(self.any)


@dataclass(frozen=True)
class DeterminismCost:
    """What a run takes with ``any`` kernels and with ``deterministic`` ones: median seconds.

    ``layers`` are those that ran, the one that costs most first.
    """

    any: float
    deterministic: float
    layers: tuple[LayerCost, ...]

    @property
    def slow(self) -> tuple[LayerCost, ...]:
        """The layers that deterministic kernels slow down, in nearly every pair of runs."""
        least = max(_RUN * self.any, _ALL * (self.deterministic - self.any))
        return tuple(
            each
            for each in self.layers
            if each.slower >= _OFTEN and each.extra > max(_OWN * sum(each.any), least)
        )


def cost_of(model: nn.Module, run: Callable[[nn.Module], Tensor], pairs: int) -> DeterminismCost:
    """Times runs in pairs; ``run`` calls a copy of the model and returns the loss."""
    model = deepcopy(model).train()
    before = torch.are_deterministic_algorithms_enabled()
    watches: tuple[list[Stopwatch], list[Stopwatch]] = [], []
    try:
        for number in range(pairs + 1):
            for deterministic in (False, True) if number % 2 else (True, False):
                torch.use_deterministic_algorithms(deterministic)
                watch = Stopwatch(model)
                watch.time(run)
                if number:  # in the first pair memory is allocated and kernels are chosen
                    watches[deterministic].append(watch)
    finally:
        torch.use_deterministic_algorithms(before)
    layers = [
        _layer_cost(watches, layer, type(module).__qualname__)
        for layer, module in layers_of(model).items()
        if any(watch.seconds[0][layer] for watch in watches[0])
    ]
    free, strict = (median(watch.total for watch in runs) for runs in watches)
    return DeterminismCost(free, strict, tuple(sorted(layers, key=lambda each: -each.extra)))


def _layer_cost(watches: Sequence[Sequence[Stopwatch]], layer: str, kind: str) -> LayerCost:
    free, strict = (
        [(watch.seconds[0][layer], watch.seconds[1][layer]) for watch in runs] for runs in watches
    )
    slower = sum(sum(b) > sum(a) for a, b in zip(free, strict, strict=True))
    return LayerCost(layer, kind, _medians(free), _medians(strict), slower=slower / len(free))


def _medians(runs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return median(forward for forward, _ in runs), median(backward for _, backward in runs)


class Stopwatch:
    """Seconds of each layer in one run, (forward, backward), without those of the layers inside it.

    Backward, a layer takes from when the gradient of its output has arrived until that of another
    layer's has, as autograd computes one after the other. ``total``: of the whole run.
    """

    def __init__(self, model: nn.Module) -> None:
        self.seconds = defaultdict[str, float](float), defaultdict[str, float](float)
        self.total = 0.0
        self._model = model
        self._on_gpu = any(parameter.is_cuda for parameter in model.parameters())
        self._open: list[tuple[str, float, float]] = []  # layer, when it began, seconds inside it
        self._backward: tuple[str, float] | None = None  # layer, since when

    def time(self, run: Callable[[nn.Module], Tensor]) -> None:
        """One run, forward and backward."""
        self._model.zero_grad(set_to_none=True)
        with self._hooked():
            began = self._now()
            run(self._model).backward()  # type: ignore[no-untyped-call]
            self._close(self._now())
            self.total = self._now() - began

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        handles: list[RemovableHandle] = []
        for name, module in layers_of(self._model).items():
            handles += (
                module.register_forward_pre_hook(partial(self._enter, name)),
                module.register_forward_hook(partial(self._leave, name)),
            )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _now(self) -> float:
        if self._on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def _enter(self, layer: str, _module: nn.Module, _args: Any) -> None:
        self._open.append((layer, self._now(), 0.0))

    def _leave(self, layer: str, _module: nn.Module, _args: Any, output: Any) -> None:
        now = self._now()
        while (call := self._open.pop())[0] != layer:
            pass  # a call that an exception ended
        _, began, inside = call
        self.seconds[0][layer] += now - began - inside
        if self._open:
            outer, since, so_far = self._open[-1]
            self._open[-1] = outer, since, so_far + now - began
        for _, tensor in tensors_in(output):
            # what a layer inside has returned is timed there, unless it was changed since
            if tensor.requires_grad and getattr(tensor, _TIMED, None) != tensor._version:
                setattr(tensor, _TIMED, tensor._version)
                tensor.register_hook(partial(self._arrived, layer))

    def _arrived(self, layer: str, _gradient: Tensor) -> None:
        now = self._now()
        self._close(now)
        self._backward = layer, now

    def _close(self, now: float) -> None:
        if self._backward is not None:
            layer, since = self._backward
            self.seconds[1][layer] += now - since
            self._backward = None
