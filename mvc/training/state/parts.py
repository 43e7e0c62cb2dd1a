"""What the full state of a training is, as the nested mappings that a commit takes.

The model's own state is one path, such as ``model.safetensors``, so that what is deployed is
a plain mapping of tensors. Everything else is another, ``model.training.safetensors``. The two
are kept in one commit; the second says of which model (Merkle root) it is the state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Protocol

import torch

from mvc.adapters.python.state import from_state
from mvc.errors import WrongUsage
from mvc.training.state.component_types import described
from mvc.training.state.optimizers import optimizer_state
from mvc.training.state.rng import rng_state
from mvc.training.unwrap import without_wrappers

__all__ = [
    "PARTS",
    "PRODUCTION",
    "SCHEMA",
    "Parts",
    "Source",
    "no_weights",
    "setting",
    "tied_names",
    "training_path",
]

SCHEMA = "mvc.training/1"
PRODUCTION = "mvc.training.lossy.production/1"
"""Beside production weights: ``weights`` are the training weights, or None; ``pipeline`` made
the one of the other; ``of`` is the schema of all the rest. Who does not know it must not resume.
"""
PARTS = ("model", "optimizer", "scheduler", "scaler", "rng")


def training_path(name: str) -> str:
    """The path beside the model's: ``a/model.training.safetensors`` for ``a/model.safetensors``."""
    path = PurePosixPath(name)
    return str(path.with_name(f"{path.stem}.training{path.suffix}"))


class Source(Protocol):
    """What a Recorder asks for states. Tensors may be the live ones; they are copied."""

    @property
    def weights(self) -> bool:
        """Whether there is a model's state, or only that of its training."""

    def model_state(self) -> dict[str, Any]:
        """The model's tensors by name; empty without ``weights``."""

    def training_state(self, step: int, batch: Any) -> dict[str, Any]:
        """Everything else, after step ``step``; the form that ``Parts.training_state`` gives."""


@dataclass(frozen=True)
class Parts:
    """The objects whose state is taken; ``rng`` says whether the random generators' is, too.

    Of a compiled or data-parallel ``model`` it is the module inside.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | None = None
    scheduler: Any = None
    scaler: Any = None
    rng: bool = True
    weights: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", without_wrappers(self.model))

    @classmethod
    def chosen(
        cls,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        scheduler: Any,
        scaler: Any,
        include: Sequence[str] | None,
    ) -> Parts:
        """Everything passed and the random generators, or what ``include`` names: one or more."""
        passed = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
        if include is None:
            return cls(model, optimizer, scheduler, scaler)
        names = [include] if isinstance(include, str) else list(include)
        if not names:
            raise WrongUsage("include names nothing", hint="it takes " + ", ".join(PARTS))
        for name in names:
            if name not in PARTS:
                raise WrongUsage(f"include names {name!r}", hint="it takes " + ", ".join(PARTS))
            if name != "rng" and passed[name] is None:
                raise WrongUsage(f"include names the {name}, but none was passed")
        return cls(
            model,
            optimizer if "optimizer" in names else None,
            scheduler if "scheduler" in names else None,
            scaler if "scaler" in names else None,
            "rng" in names,
            "model" in names,
        )

    def exact(self) -> list[str]:
        """Names of the tensors that a lossy pipeline leaves as they are."""
        return no_weights(self.model)

    def model_state(self) -> dict[str, Any]:
        """The model's tensors (its own, not copies) by name; empty if it is not included."""
        return dict(self.model.state_dict()) if self.weights else {}

    def training_state(self, step: int, batch: Any) -> dict[str, Any]:
        """Everything else; a part that is not included is None."""
        return {
            "schema": SCHEMA,
            "step": step,
            "batch": batch,
            "tied": tied_names(self.model),
            "buffers": passing_buffers(self.model),
            "setting": setting(),
            "kinds": {"scheduler": described(self.scheduler), "scaler": described(self.scaler)},
            "optimizer": optimizer_state(self.model, self.optimizer) if self.optimizer else None,
            "scheduler": self.scheduler.state_dict() if self.scheduler is not None else None,
            "scaler": self.scaler.state_dict() if self.scaler is not None else None,
            "rng": rng_state() if self.rng else None,
        }


def no_weights(model: torch.nn.Module) -> list[str]:
    """Names of the tensors of ``state_dict`` that are no parameters: buffers, extra state."""
    trained = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    others = {name: v for name, v in model.state_dict().items() if name not in trained}
    return [tensor.key for tensor in from_state(others).tensors]


def tied_names(model: torch.nn.Module) -> list[list[str]]:
    """Names that stand for one and the same parameter, in groups."""
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return sorted(sorted(names) for names in groups.values() if len(names) > 1)


def passing_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Buffers that are no part of ``state_dict`` (``persistent=False``)."""
    found = {}
    for prefix, module in model.named_modules():
        for name in sorted(module._non_persistent_buffers_set):
            buffer = module._buffers.get(name)
            if buffer is not None:
                found[f"{prefix}.{name}" if prefix else name] = buffer
    return found


def setting() -> Mapping[str, str]:
    """What else the bits of the next step depend on."""
    return {
        "torch": str(torch.__version__),
        "threads": str(torch.get_num_threads()),
        "processor": str(torch.backends.cpu.get_cpu_capability()),
    }
