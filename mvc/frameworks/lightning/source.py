"""The state of a Lightning training, in the form in which a Recorder keeps it.

The model is a plain mapping of tensors. Beside it lies what ``mvc.training.state.parts`` describes,
with a part ``lightning`` of its own: what the Trainer would put in a checkpoint, without what is
kept elsewhere, and how the order of the epoch was drawn.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher

from mvc.frameworks.lightning.order import Order
from mvc.frameworks.lightning.values import plain
from mvc.training.state.component_types import component_type
from mvc.training.state.optimizers import optimizer_state
from mvc.training.state.parts import SCHEMA, no_weights, passing_buffers, setting, tied_names
from mvc.training.state.rng import rng_state

__all__ = ["BATCH", "EPOCH", "TrainerSource", "comes_next"]

BATCH = "batch"
EPOCH = "epoch"
"""What comes after a version: another batch, or a new epoch."""

_ELSEWHERE = ("state_dict", "optimizer_states", "lr_schedulers")


class TrainerSource:
    """States of a running ``fit``. ``next`` says what comes after the one that is taken."""

    def __init__(self, trainer: Any, order: Order, include: frozenset[str]) -> None:
        self._trainer = trainer
        self._order = order
        self._include = include
        self.next = BATCH

    @property
    def weights(self) -> bool:
        return "model" in self._include

    def exact(self) -> list[str]:
        """Names of the tensors that a lossy pipeline leaves as they are."""
        return no_weights(self._trainer.lightning_module)

    def model_state(self) -> dict[str, Any]:
        if not self.weights:
            return {}
        return dict(self._trainer.strategy.lightning_module_state_dict())

    def training_state(self, step: int, batch: Any) -> dict[str, Any]:
        trainer, module = self._trainer, self._trainer.lightning_module
        optimizers, schedulers = self._optimizers(), self._schedulers()
        kinds = [component_type(config.scheduler) for config in trainer.lr_scheduler_configs]
        return {
            "schema": SCHEMA,
            "step": step,
            "batch": batch,
            "tied": tied_names(module),
            "buffers": passing_buffers(module),
            "setting": setting(),
            "kinds": {"scheduler": kinds[0] if len(kinds) == 1 else None, "scaler": None},
            # A training with one of each can be gone on with outside of Lightning, too.
            "optimizer": optimizers[0] if len(optimizers) == 1 else None,
            "scheduler": schedulers[0] if len(schedulers) == 1 else None,
            "scaler": None,
            "rng": rng_state() if "rng" in self._include else None,
            "lightning": {
                "optimizers": optimizers if len(optimizers) != 1 else [],
                "schedulers": plain(schedulers, "lr_schedulers"),
                "kinds": kinds,
                "counts": [len(trainer.optimizers), len(trainer.lr_scheduler_configs)],
                "checkpoint": plain(self._checkpoint(), "checkpoint"),
                "scaler": "scaler" in self._include,
                "order": self._order.state(),
                "next": self.next,
            },
        }

    def _optimizers(self) -> list[dict[str, Any]]:
        if "optimizer" not in self._include:
            return []
        module = self._trainer.lightning_module
        return [optimizer_state(module, optimizer) for optimizer in self._trainer.optimizers]

    def _schedulers(self) -> list[dict[str, Any]]:
        if "scheduler" not in self._include:
            return []
        return [config.scheduler.state_dict() for config in self._trainer.lr_scheduler_configs]

    def _checkpoint(self) -> dict[str, Any]:
        """The state of loops, callbacks, precision and data module, and what hooks have added."""
        trainer = self._trainer
        made: dict[str, Any] = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        for key in _ELSEWHERE:
            made.pop(key, None)
        for owner in (trainer.lightning_module, trainer.datamodule):
            if owner is not None:  # resuming does not read hyper-parameters
                made.pop(owner.CHECKPOINT_HYPER_PARAMS_NAME, None)
                made.pop(owner.CHECKPOINT_HYPER_PARAMS_KEY, None)
                made.pop(owner.CHECKPOINT_HYPER_PARAMS_TYPE, None)
        if "scaler" not in self._include:
            made.pop(type(trainer.precision_plugin).__qualname__, None)
        if self.next == EPOCH:
            progress = made["loops"]["fit_loop"]["epoch_progress"]
            for part in (progress["total"], progress["current"]):
                part["ready"] = part["started"]  # the new epoch is announced once more
        return made


def comes_next(trainer: Any) -> str:
    """What Lightning does after the batch that has just ended."""
    loop = trainer.fit_loop.epoch_loop
    fetcher = trainer.fit_loop._data_fetcher
    if isinstance(fetcher, _DataLoaderIterDataFetcher):
        return "what training_step fetches itself"
    if loop.batch_progress.is_last_batch:
        return "the end of the epoch"
    return "a validation" if loop._should_check_val_fx(fetcher) else BATCH
