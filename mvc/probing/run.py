"""Runs a model once with given threads, determinism and seed, and hashes all that it computes.

The comparison of two such runs shows the first layer whose results differ.
"""

from __future__ import annotations

import platform
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from blake3 import blake3

from mvc.errors import WrongUsage
from mvc.ids import BlobId
from mvc.names import printable
from mvc.probing.hooks import Hooks
from mvc.probing.prints import mapped, print_of, tensors_in
from mvc.probing.summary import Conditions, LayerSelection, Summary, TensorPrint, WeightPrint
from mvc.training.state.parts import kernels, setting, unwrap

Loss = Callable[..., torch.Tensor]
MakeOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]

_SPARSE = b"mvc.probe.sparse.1"  # begins the hashed bytes of a sparse gradient
_RATE = 0.01  # learning rate if the caller gives no optimizer; any rate would do


class NoDeterministicKernel(Exception):
    """torch has no deterministic implementation of an operation.

    ``layer``: the layer that calls the operation; None if unknown.
    """

    def __init__(self, layer: str | None, message: str) -> None:
        super().__init__(message)
        prefix = f"{printable(layer)}: " if layer else ""
        self.text = f"a kernel that is not deterministic: {prefix}{printable(message)[:200]}"


def seed_all(seed: int) -> None:
    """Seeds the global generators of torch (all devices), numpy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


class Subject:
    """A model with its inputs.

    Every run begins with the same weights and inputs. After a run, the weights, gradients and modes
    of the model are as before.

    ``inputs``: a tensor, a tuple or list of arguments, or a mapping of named arguments.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        inputs: Any,
        *,
        training: bool,
        loss: Loss | None,
        target: Any,
        optimizer: MakeOptimizer | None,
    ) -> None:
        self.model = model = unwrap(model)
        self._inputs, self._target = inputs, target
        self._training = training
        self._loss, self._optimizer = loss, optimizer
        for name, tensor in self._weights():
            if torch.nn.parameter.is_lazy(tensor) or tensor.is_meta:
                raise WrongUsage(f"{name} has no values yet", hint="run the model once first")
        with torch.no_grad():
            self._start = [(tensor, tensor.detach().clone()) for _, tensor in self._weights()]
        self._gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
        self._modes = [(module, module.training) for module in model.modules()]

    def _weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.model.named_parameters()
        yield from self.model.named_buffers()

    def run(self, conditions: Conditions, selection: LayerSelection) -> Summary:
        """Computes the output, and in training mode the gradients and one step of the optimizer.

        Raises NoDeterministicKernel, and UnsupportedTensor for tensors whose bits cannot be
        compared.
        """
        args, target = (mapped(value, _copy) for value in (self._inputs, self._target))
        inputs, targets = (_prints(v, n) for v, n in ((args, "the input"), (target, "the target")))
        before = self._ids()
        hooks = Hooks(self.model, selection)
        with self._prepared(conditions, hooks):
            output, loss = self._outcome(args, target)
            gradients = {
                name: _id(p.grad, name)
                for name, p in self.model.named_parameters()
                if p.grad is not None
            }
            after = self._ids()
        return Summary(
            training=self._training,
            conditions=conditions,
            environment=self._environment(),
            only=selection.patterns,
            inputs=inputs,
            target=targets,
            calls=hooks.calls(),
            output=output,
            loss=loss,
            weights={
                name: WeightPrint(id_, gradients.get(name), after.get(name))
                for name, id_ in before.items()
            },
            tensors=hooks.tensors,
        )

    @contextmanager
    def _prepared(self, conditions: Conditions, hooks: Hooks) -> Iterator[None]:
        """Prepares a run; restores the model's state after the block."""
        try:
            with _applied(conditions), hooks:
                for parameter, _ in self._gradients:
                    parameter.grad = None
                self.model.train(self._training)
                yield
        except RuntimeError as error:
            if conditions.deterministic and "deterministic" in str(error):
                raise NoDeterministicKernel(hooks.current, str(error)) from error
            raise
        finally:
            self._restore()

    def _outcome(self, args: Any, target: Any) -> tuple[tuple[TensorPrint, ...], ...]:
        """Runs the model, and in training mode one step of the optimizer.

        Returns the hashes of the output and of the loss.
        """
        with torch.set_grad_enabled(self._training):
            output = _call(self.model, args)
        printed = _prints(output, "the model's output")
        loss = self._loss_of(output, target) if self._training else None
        if loss is None:
            return printed, ()
        loss_prints = _prints(loss, "the loss")
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
            trained = [p for p in self.model.parameters() if p.grad is not None]
            if trained and self._optimizer is not None:
                self._optimizer(trained).step()
            elif trained:
                _descend(trained)
        return printed, loss_prints

    def _loss_of(self, output: Any, target: Any) -> torch.Tensor | None:
        if self._loss is None:
            return _mean_square(output)
        loss = self._loss(output) if target is None else self._loss(output, target)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            kind = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss)
            raise WrongUsage(f"the loss must be a tensor of one number, but is {kind}")
        return loss

    def _ids(self) -> dict[str, BlobId]:
        return {name: _id(tensor, name) for name, tensor in self._weights()}

    def _restore(self) -> None:
        with torch.no_grad():
            for tensor, value in self._start:
                tensor.copy_(value)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        for module, training in self._modes:
            module.training = training

    def _environment(self) -> Mapping[str, str]:
        """Versions, hardware and settings that may change the bits, except the conditions."""
        devices = sorted({_device(tensor) for _, tensor in self._weights()})
        return {
            "torch": setting()["torch"],
            "python": platform.python_version(),
            "machine": platform.machine(),
            "processor": setting()["processor"],
            "device": ", ".join(devices) or "cpu",
            "precision of float32 products": torch.get_float32_matmul_precision(),
            "cudnn.benchmark": str(torch.backends.cudnn.benchmark),
        }


def _device(tensor: torch.Tensor) -> str:
    if tensor.device.type == "cuda":
        return str(torch.cuda.get_device_name(tensor.device))
    return tensor.device.type


def _call(model: torch.nn.Module, args: Any) -> Any:
    if isinstance(args, Mapping):
        return model(**args)
    return model(*args) if isinstance(args, tuple | list) else model(args)


def _copy(tensor: torch.Tensor, _: str) -> torch.Tensor:
    """A copy, because a model may change its input in place."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _id(tensor: torch.Tensor, name: str) -> BlobId:
    ids = [print_of(part, place, name).id for place, part in tensors_in(tensor)]
    return ids[0] if len(ids) == 1 else BlobId(blake3(b"".join([_SPARSE, *ids])).digest())


def _prints(value: Any, of: str) -> tuple[TensorPrint, ...]:
    return tuple(print_of(tensor, place, of) for place, tensor in tensors_in(value))


def _mean_square(output: Any) -> torch.Tensor | None:
    """The loss if the caller gives none: the sum of the mean squares of the output tensors.

    Tensors that require no gradient are omitted. None if no tensor remains.
    """
    parts: Iterable[torch.Tensor] = (tensor for _, tensor in tensors_in(output))
    squares = [p.abs().square().mean() for p in parts if p.requires_grad and p.numel()]
    return torch.stack([s.float() for s in squares]).sum() if squares else None


def _descend(parameters: list[torch.nn.Parameter]) -> None:
    """Makes a step of plain gradient descent.

    It uses no optimizer of torch, because torch would import its compiler, which takes seconds.
    """
    with torch.no_grad():
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.add_(parameter.grad, alpha=-_RATE)


@contextmanager
def _applied(conditions: Conditions) -> Iterator[None]:
    """Seeds the random generators, and sets threads and determinism for a ``with`` block."""
    threads = torch.get_num_threads()
    is_set = conditions.deterministic == torch.are_deterministic_algorithms_enabled()
    with kernels(None if is_set else conditions.deterministic):
        try:
            torch.set_num_threads(conditions.threads)
            if conditions.seed is not None:
                seed_all(conditions.seed)
            yield
        finally:
            torch.set_num_threads(threads)
