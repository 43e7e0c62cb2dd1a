"""Collects the full state of a PyTorch training, so that the training can be resumed.

A commit stores the state of the model as one file, such as ``model.safetensors``, which can be
deployed. It stores the rest (optimizer, scheduler, random generators) as a second file,
``model.training.safetensors``. This file contains the Merkle root (a hash of all tensors) of the
first file, so that both files are known to belong together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from msgspec import Struct
from msgspec.structs import force_setattr

from mvc.errors import WrongUsage
from mvc.state import StateFile
from mvc.training.state.component_types import component_type
from mvc.training.state.optimizers import optimizer_state
from mvc.training.state.rng import rng_state

SCHEMA = "mvc.training/1"
PRODUCTION = "mvc.training.lossy.production/1"
"""The schema of a training state in a version of production weights (docs/commands.md#words).

This training state has fields that other training states lack. ``weights``: the training weights,
or None. ``pipeline``: the pipeline that computed the production weights. ``of``: the schema of all
other fields. Code that does not know this schema must not resume.
"""
PARTS = ("model", "optimizer", "scheduler", "scaler", "rng")
PREFIXES = ("_orig_mod.", "module.")
"""Prefixes that ``torch.compile`` and data-parallel wrappers add to every name."""


class StateSource(Protocol):
    """Provides the states that a Recorder commits. The Recorder copies the tensors."""

    @property
    def weights(self) -> bool:
        """Whether the model is recorded. If false, only the rest of the state is recorded."""

    def model_state(self) -> dict[str, Any]:
        """Maps names to the model's tensors; empty if ``weights`` is false."""

    def training_state(self, step: int, batch: Any) -> dict[str, Any]:
        """The state except the model, after ``step``, as ``TrainingParts.training_state``."""


class TrainingParts(Struct, frozen=True):
    """The parts of a training whose states are recorded.

    ``rng``: whether to record the random generators. ``weights``: whether to record the model. A
    compiled or data-parallel ``model`` is unwrapped.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | None = None
    scheduler: Any = None
    scaler: Any = None
    rng: bool = True
    weights: bool = True

    def __post_init__(self) -> None:
        force_setattr(self, "model", unwrap(self.model))

    @classmethod
    def chosen(
        cls,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        scheduler: Any,
        scaler: Any,
        include: Sequence[str] | None,
    ) -> TrainingParts:
        """All passed objects and the random generators; with ``include``, only the named parts.

        Raises WrongUsage for an unknown name, a part that was not passed, or an empty ``include``.
        """
        if include is None:
            return cls(model, optimizer, scheduler, scaler)
        names = included(include)
        passed = {"optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
        for name in names:
            if name in passed and passed[name] is None:
                raise WrongUsage(f"include names the {name}, but none was passed")
        chosen = {part: value for part, value in passed.items() if part in names}
        return cls(model, **chosen, rng="rng" in names, weights="model" in names)

    def exact(self) -> list[str]:
        """Names of the tensors that a lossy pipeline must not change."""
        return no_weights(self.model)

    def model_state(self) -> dict[str, Any]:
        """Maps names to the model's tensors, without copies; empty if the model is not included."""
        return dict(self.model.state_dict()) if self.weights else {}

    def training_state(self, step: int, batch: Any) -> dict[str, Any]:
        """The training state except the model. A part that is not included is None."""
        return {
            "schema": SCHEMA,
            "step": step,
            "batch": batch,
            "tied": tied_names(self.model),
            "buffers": passing_buffers(self.model),
            "setting": setting(),
            "kinds": {
                "scheduler": component_type(self.scheduler),
                "scaler": component_type(self.scaler),
            },
            "optimizer": optimizer_state(self.model, self.optimizer) if self.optimizer else None,
            "scheduler": self.scheduler.state_dict() if self.scheduler is not None else None,
            "scaler": self.scaler.state_dict() if self.scaler is not None else None,
            "rng": rng_state() if self.rng else None,
        }


def included(include: Sequence[str] | None, parts: Sequence[str] = PARTS) -> tuple[str, ...]:
    """The parts that ``include`` names; all parts if ``include`` is None.

    Raises WrongUsage for an unknown name, and for an empty ``include``.
    """
    names = (include,) if isinstance(include, str) else tuple(parts if include is None else include)
    wrong = [repr(name) for name in names if name not in parts]
    if wrong or not names:
        named = wrong[0] if wrong else "nothing"
        raise WrongUsage(f"include names {named}", hint="use some of " + ", ".join(parts))
    return names


def no_weights(model: torch.nn.Module) -> list[str]:
    """Names in ``state_dict`` that are not parameters: buffers, extra state."""
    trained = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    exact = {name: v for name, v in model.state_dict().items() if name not in trained}
    return list(StateFile.of(exact).specs)


def tied_names(model: torch.nn.Module) -> list[list[str]]:
    """Groups of names that share one parameter."""
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return sorted(sorted(names) for names in groups.values() if len(names) > 1)


def passing_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Maps names to the buffers that are not in ``state_dict`` (``persistent=False``)."""
    buffers = {}
    for prefix, module in model.named_modules():
        for name in sorted(module._non_persistent_buffers_set):
            buffer = module._buffers.get(name)
            if buffer is not None:
                buffers[f"{prefix}.{name}" if prefix else name] = buffer
    return buffers


def setting() -> Mapping[str, str]:
    """Conditions that affect the bits of the next step, but are not in the state."""
    return {
        "torch": str(torch.__version__),
        "threads": str(torch.get_num_threads()),
        "processor": str(torch.backends.cpu.get_cpu_capability()),
    }


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """The module inside ``torch.compile``, DataParallel and DistributedDataParallel wrappers.

    The wrappers may be nested in any order. Versions have the names of the inner module, so the
    next training may load a version without wrappers, or with other wrappers.
    """
    while True:
        # Compares the name of the class, because importing torch's compiler is slow.
        kind = type(model)
        if kind.__name__ == "OptimizedModule" and kind.__module__.startswith("torch."):
            model = model.get_submodule("_orig_mod")
        elif isinstance(model, torch.nn.DataParallel | torch.nn.parallel.DistributedDataParallel):
            model = model.module
        else:
            return model


@contextmanager
def kernels(deterministic: bool | None) -> Iterator[None]:
    """During the block, restricts torch to deterministic kernels (True), or allows all kernels
    (False).

    None changes nothing.
    """
    before = _kernels()
    try:
        if deterministic is not None and before != (deterministic, False):
            # This call imports torch's compiler, which takes seconds.
            torch.use_deterministic_algorithms(deterministic)
        yield
    finally:
        if _kernels() != before:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _kernels() -> tuple[bool, bool]:
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warns
