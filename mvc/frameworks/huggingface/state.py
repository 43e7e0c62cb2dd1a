"""What a version of a Trainer's training holds beside the Recorder's own parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState

from mvc.errors import WrongUsage
from mvc.frameworks.common.epoch_order import order_generator, order_seed, set_order_seed
from mvc.frameworks.common.ranks import rng_of_others
from mvc.training.state.parts import TrainingParts
from mvc.training.state.rng import rng_state

__all__ = ["TrainerSource", "differences", "parts_of", "refuse_sharded"]

_SHARDED = {"FSDP", "DEEPSPEED", "MEGATRON_LM"}


def refuse_sharded() -> None:
    """Raises WrongUsage if no process holds the whole model."""
    kind = getattr(AcceleratorState().distributed_type, "value", "")
    if kind in _SHARDED:
        raise WrongUsage(
            f"the training is sharded ({kind}): no process has the whole state",
            hint="commit the folders that it saves",
        )


def parts_of(live: Mapping[str, Any], include: Sequence[str] | None) -> TrainingParts:
    """The objects of an event without their wrappers; the optimizer's has the scaler."""
    optimizer, scaler = live["optimizer"], getattr(live["optimizer"], "scaler", None)
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return TrainingParts.chosen(live["model"], optimizer, live["lr_scheduler"], scaler, include)


class TrainerSource:
    """What the Recorder asks for states.

    ``epoch_rng``: the generators as the epoch began; ``others``: those of the processes after
    the first, as they are now.
    """

    def __init__(self, parts: TrainingParts, args: Any, state: Any, loader: Any) -> None:
        self.weights = parts.weights
        self.epoch_rng: Mapping[str, Any] | None = rng_state()
        self.others: list[dict[str, Any]] = []
        self.data_draws = False
        self.from_the_beginning = bool(args.ignore_data_skip)
        self._parts = parts
        self._state = state
        self._loader = loader
        config = getattr(parts.model, "config", None)
        to_json = getattr(config, "to_json_string", None)
        self._config = to_json() if callable(to_json) else None
        self.run = {
            "processes": int(args.world_size),
            "batch size": int(args.train_batch_size),
            "gradient accumulation": int(args.gradient_accumulation_steps),
            "batches an epoch": _length(loader),
            "mixed precision": str(AcceleratorState().mixed_precision),
            "steps in all": int(state.max_steps),
            "learning-rate schedule": _text(args.lr_scheduler_type),
            "schedule options": _text(args.lr_scheduler_kwargs or {}),
            "warmup steps": int(args.get_warmup_steps(int(state.max_steps))),
        }

    def exact(self) -> list[str]:
        """Names of the tensors that a lossy pipeline leaves as they are."""
        return self._parts.exact()

    def model_state(self) -> dict[str, Any]:
        """The model's tensors by name."""
        return self._parts.model_state()

    def training_state(self, step: int, batch: Any) -> dict[str, Any]:
        """The parts, the Trainer's own state without its list of logs, and the data's order."""
        trainer = dataclasses.asdict(dataclasses.replace(self._state, log_history=[]))
        return {
            **self._parts.training_state(step, batch),
            "trainer": trainer,
            "config": self._config,
            "epoch_rng": self.epoch_rng,
            "others": self.others,
            "order_seed": order_seed(self._loader),
            "own_order": order_generator(self._loader) is not None,
            "data_draws": self.data_draws,
            "run": self.run,
        }

    def gather(self) -> None:
        """Gathers the generators of the other processes. Every process must call it."""
        if self._parts.rng:
            self.others = rng_of_others()

    def restore(self, kept: Mapping[str, Any]) -> None:
        """The order of the data."""
        if kept["order_seed"] is not None:
            set_order_seed(self._loader, kept["order_seed"])


def differences(kept: Mapping[str, Any], source: TrainerSource) -> tuple[str, ...]:
    """Why the resumed training will not have the bits of the uninterrupted one."""
    found = [
        f"{what}: {source.run.get(what)}, not {value}"
        for what, value in kept["run"].items()
        if source.run.get(what) != value
    ]
    if source.from_the_beginning:
        found.append("data: ignore_data_skip begins the epoch anew")
    if kept["own_order"]:
        found.append("data: their order comes from a generator of its own, which is not kept")
    if kept["data_draws"]:
        found.append("data: the next batches draw random numbers of their own")
    return tuple(found)


def _text(value: Any) -> str:
    return str(getattr(value, "value", value))


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None
