"""Collects the state of a Lightning training for a Recorder, and resumes a training.

The training state has the parts of ``mvc.training.state.parts`` and a part ``lightning``. The part
``lightning`` has the order of the batches in the epoch, and the Trainer's checkpoint without the
data that other parts of the version contain.

``fit(ckpt_path=...)`` makes the Trainer ask its checkpoint plugin for the version. Lightning's code
restores model, callbacks, loops and schedulers. This module loads optimizers by parameter names,
and continues the epoch with the same order of batches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from mvc.api import Repository
from mvc.errors import CannotResume
from mvc.frameworks.common import resume as common
from mvc.frameworks.lightning.loops import BATCH, EPOCH, Order, begin, check_draws, checkpoint_of
from mvc.frameworks.lightning.values import original, plain
from mvc.ids import CommitId
from mvc.training import resume
from mvc.training.resume import Resumed
from mvc.training.state.component_types import component_type
from mvc.training.state.optimizers import optimizer_state
from mvc.training.state.parts import TrainingParts, no_weights

_ELSEWHERE = ("state_dict", "optimizer_states", "lr_schedulers")
_BY = resume.RecordedBy(name="Lightning's MVCCallback", part="lightning")
_HYPER = ("NAME", "KEY", "TYPE")  # suffixes of the attributes that name hyper-parameters


class TrainerSource:
    """States of a running ``fit``, for a Recorder.

    ``next``: what Lightning does next, after the recorded batch.
    """

    def __init__(self, trainer: Any, order: Order, include: frozenset[str]) -> None:
        self._trainer = trainer
        self._order = order
        self._include = include
        self.weights = "model" in include
        self.next = BATCH

    def exact(self) -> list[str]:
        return no_weights(self._trainer.lightning_module)

    def model_state(self) -> dict[str, Any]:
        return dict(self._trainer.strategy.lightning_module_state_dict()) if self.weights else {}

    def training_state(self, step: int, batch: Any) -> dict[str, Any]:
        trainer, module, include = self._trainer, self._trainer.lightning_module, self._include
        configs = trainer.lr_scheduler_configs
        kinds = [component_type(config.scheduler) for config in configs]
        # A single optimizer or scheduler is stored in the common parts, so that training can be
        # resumed without Lightning, too.
        included = trainer.optimizers if "optimizer" in include else []
        optimizer, optimizers = common.alone([optimizer_state(module, one) for one in included])
        included = configs if "scheduler" in include else []
        schedulers = [config.scheduler.state_dict() for config in included]
        return {
            **TrainingParts(module, rng="rng" in include).training_state(step, batch),
            "kinds": {"scheduler": common.alone(kinds)[0], "scaler": None},
            "optimizer": optimizer,
            "scheduler": common.alone(schedulers)[0],
            "lightning": {
                "optimizers": optimizers,
                "schedulers": plain(schedulers, "lr_schedulers"),
                "kinds": kinds,
                "counts": [len(trainer.optimizers), len(configs)],
                "checkpoint": plain(self._checkpoint(), "checkpoint"),
                "scaler": "scaler" in include,
                "order": self._order.state(),
                "next": self.next,
            },
        }

    def _checkpoint(self) -> dict[str, Any]:
        """The Trainer's checkpoint: loops, callbacks, precision, data module, data from hooks."""
        trainer = self._trainer
        checkpoint = checkpoint_of(trainer)
        unread = [*_ELSEWHERE]
        for owner in (trainer.lightning_module, trainer.datamodule):
            if owner is not None:  # resuming does not read hyper-parameters
                unread += [getattr(owner, f"CHECKPOINT_HYPER_PARAMS_{x}") for x in _HYPER]
        if "scaler" not in self._include:
            unread.append(type(trainer.precision_plugin).__qualname__)
        for key in unread:
            checkpoint.pop(key, None)
        if self.next == EPOCH:
            progress = checkpoint["loops"]["fit_loop"]["epoch_progress"]
            for part in (progress["total"], progress["current"]):
                part["ready"] = part["started"]  # the new epoch will be counted again
        return checkpoint


class Resume:
    """A version from which ``fit`` resumes.

    The constructor makes all checks for which no Trainer is needed.
    """

    def __init__(self, repo: Repository, commit: CommitId, name: str) -> None:
        """Raises CannotResume, with the reason, if a check fails."""
        self.path = f"mvc:{commit}"
        self._recorded = recorded = resume.training_state(repo, commit, name, by=_BY)
        self._lightning = lightning = recorded["lightning"]
        self._middle = lightning["next"] == BATCH
        self._optimizers = common.several(recorded["optimizer"], lightning["optimizers"])
        self._schedulers = original(lightning["schedulers"])
        optimizers, schedulers = lightning["counts"]
        for part, complete in (
            ("optimizer", len(self._optimizers) == optimizers),
            ("scheduler", len(self._schedulers) == schedulers),
            ("scaler", lightning["scaler"]),
        ):
            if not complete:
                raise resume.recorded_without(commit, part)
        if lightning["next"] not in {BATCH, EPOCH}:
            raise CannotResume(
                f"{commit.short} is before {lightning['next']}, which Lightning would skip",
                hint="resume from the previous or the next version",
            )
        if self._middle:
            check_draws(lightning["order"])
        self._weights = resume.training_weights(repo, commit, name, recorded)
        differs = resume.differences(recorded["setting"])
        self.resumed = Resumed(commit, recorded["step"], recorded["batch"], differs)

    def checkpoint(self, trainer: Any) -> dict[str, Any]:
        """The dictionary that Lightning would load from a file, without the optimizers."""
        if trainer.world_size > 1:
            raise CannotResume(
                f"{self.resumed.commit.short} has the random generators of one process, "
                f"this training has {trainer.world_size} processes",
                hint="for the weights alone use model.load_state_dict(repo.checkout(rev))",
            )
        module = trainer.lightning_module
        resume.check_model(module, self._weights, self._recorded)
        weights = OrderedDict(self._weights)
        weights._metadata = module.state_dict()._metadata  # type: ignore[attr-defined]
        return {
            **original(self._lightning["checkpoint"]),
            "state_dict": weights,
            "optimizer_states": [],  # loaded in on_fit_start
            "lr_schedulers": self._schedulers,
        }

    def on_fit_start(self, trainer: Any) -> None:
        """Loads the optimizers, which now exist, and the buffers that are not in ``state_dict``."""
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        for part, current, recorded in (
            ("optimizers", trainer.optimizers, self._optimizers),
            ("schedulers", schedulers, self._schedulers),
        ):
            if len(current) != len(recorded):
                raise CannotResume(
                    f"the version has {len(recorded)} {part}, "
                    f"configure_optimizers returned {len(current)}",
                    hint="configure the same optimizers and schedulers as the recorded training",
                )
        self._add_differences(common.check_schedulers(self._lightning.get("kinds", []), schedulers))
        module, optimizers = (
            trainer.lightning_module,
            zip(trainer.optimizers, self._optimizers, strict=True),
        )
        common.load_with_optimizers(module, self._weights, self._recorded["buffers"], optimizers)

    def on_train_start(self, trainer: Any, order: Order) -> None:
        """Makes the restored loops continue as if training had not stopped.

        Raises CannotResume if training resumes inside an epoch and the data have changed.
        """
        self._add_differences(order.check_sizes(self._lightning["order"], middle=self._middle))
        if self._middle:
            order.resume(self._lightning["order"], self._recorded["rng"], middle=True)
        begin(trainer.fit_loop, middle=self._middle)

    def on_train_epoch_start(self, order: Order) -> None:
        """Restores the random generators, if the version was saved between two epochs.

        Call it immediately before the order of an epoch is drawn.
        """
        if not self._middle:
            order.resume(self._lightning["order"], self._recorded["rng"], middle=False)

    def _add_differences(self, differs: Iterable[str]) -> None:
        self.resumed = replace(self.resumed, differs=(*self.resumed.differs, *differs))


class VersionReader:
    """Replaces the Trainer's checkpoint plugin. The path ``resume.path`` loads a version.

    Any other use of the plugin is passed on to the original plugin.
    """

    def __init__(self, trainer: Any, resume: Resume) -> None:
        self._trainer = trainer
        self._resume = resume
        self._own = trainer.strategy.checkpoint_io
        trainer.strategy.checkpoint_io = self

    def remove(self) -> None:
        self._trainer.strategy.checkpoint_io = self._own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def load_checkpoint(self, path: Any, *arguments: Any, **options: Any) -> Any:
        if str(path) == self._resume.path:
            return self._resume.checkpoint(self._trainer)
        return self._own.load_checkpoint(path, *arguments, **options)
