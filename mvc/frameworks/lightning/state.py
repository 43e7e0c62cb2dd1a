"""The state of a Lightning training as a Recorder keeps it, and going on from it.

Beside the model lies what ``mvc.training.state.parts`` describes, with a part ``lightning``: what
the Trainer would put in a checkpoint, without what is kept elsewhere, and the order of the epoch.

The Trainer asks its checkpoint plugin for the version, through ``fit(ckpt_path=...)``, and
restores model, callbacks, loops and schedulers by its own code. Optimizers are set by the names
of their parameters, and the epoch is entered with the batches in their order.
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
_HYPER = ("NAME", "KEY", "TYPE")  # keys of hyper-parameters, as attributes of modules


class TrainerSource:
    """States of a running ``fit``, for a Recorder. ``next`` says what comes after the one taken."""

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
        # A training with one of each can be gone on with outside of Lightning, too.
        kept = trainer.optimizers if "optimizer" in include else []
        optimizer, optimizers = common.alone([optimizer_state(module, one) for one in kept])
        kept = configs if "scheduler" in include else []
        schedulers = [config.scheduler.state_dict() for config in kept]
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
        """The state of loops, callbacks, precision and data module, and what hooks have added."""
        trainer = self._trainer
        made = checkpoint_of(trainer)
        unread = [*_ELSEWHERE]
        for owner in (trainer.lightning_module, trainer.datamodule):
            if owner is not None:  # resuming does not read hyper-parameters
                unread += [getattr(owner, f"CHECKPOINT_HYPER_PARAMS_{x}") for x in _HYPER]
        if "scaler" not in self._include:
            unread.append(type(trainer.precision_plugin).__qualname__)
        for key in unread:
            made.pop(key, None)
        if self.next == EPOCH:
            progress = made["loops"]["fit_loop"]["epoch_progress"]
            for part in (progress["total"], progress["current"]):
                part["ready"] = part["started"]  # the new epoch is announced once more
        return made


class Resume:
    """A version that ``fit`` resumes from. The constructor checks all that needs no Trainer."""

    def __init__(self, repo: Repository, commit: CommitId, name: str) -> None:
        """Raises CannotResume with the reason."""
        self.path = f"mvc:{commit}"
        self._kept = kept = resume.training_state(repo, commit, name, by=_BY)
        self._lightning = lightning = kept["lightning"]
        self._middle = lightning["next"] == BATCH
        self._optimizers = common.several(kept["optimizer"], lightning["optimizers"])
        self._schedulers = original(lightning["schedulers"])
        optimizers, schedulers = lightning["counts"]
        for part, complete in (
            ("optimizer", len(self._optimizers) == optimizers),
            ("scheduler", len(self._schedulers) == schedulers),
            ("scaler", lightning["scaler"]),
        ):
            if not complete:
                raise resume.without(commit, part)
        if lightning["next"] not in {BATCH, EPOCH}:
            raise CannotResume(
                f"{commit.short} lies before {lightning['next']}, which Lightning would leave out",
                hint="resume from the version after it or before it",
            )
        if self._middle:
            check_draws(lightning["order"])
        self._weights = resume.training_weights(repo, commit, name, kept)
        differs = resume.differences(kept["setting"])
        self.resumed = Resumed(commit, kept["step"], kept["batch"], differs)

    def checkpoint(self, trainer: Any) -> dict[str, Any]:
        """The dictionary that Lightning would have loaded, without the optimizers."""
        if trainer.world_size > 1:
            raise CannotResume(
                f"{self.resumed.commit.short} has the random generators of one process, "
                f"here are {trainer.world_size}",
                hint="for the weights alone use model.load_state_dict(repo.checkout(rev))",
            )
        module = trainer.lightning_module
        resume.check_model(module, self._weights, self._kept)
        weights = OrderedDict(self._weights)
        weights._metadata = module.state_dict()._metadata  # type: ignore[attr-defined]
        return {
            **original(self._lightning["checkpoint"]),
            "state_dict": weights,
            "optimizer_states": [],  # set by name in on_fit_start
            "lr_schedulers": self._schedulers,
        }

    def on_fit_start(self, trainer: Any) -> None:
        """Optimizers exist now: sets them, and the buffers that no ``state_dict`` has."""
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        for what, here, kept in (
            ("optimizers", trainer.optimizers, self._optimizers),
            ("schedulers", schedulers, self._schedulers),
        ):
            if len(here) != len(kept):
                raise CannotResume(
                    f"the version has {len(kept)} {what}, configure_optimizers gave {len(here)}",
                    hint="make them as they were made when the version was recorded",
                )
        self._tell(common.check_schedulers(self._lightning.get("kinds", []), schedulers))
        module, optimizers = (
            trainer.lightning_module,
            zip(trainer.optimizers, self._optimizers, strict=True),
        )
        common.load_with_optimizers(module, self._weights, self._kept["buffers"], optimizers)

    def on_train_start(self, trainer: Any, order: Order) -> None:
        """The loops are restored: a whole epoch begins as if training had never stopped.

        Raises CannotResume where an epoch is entered in its middle, and its data are others.
        """
        self._tell(order.check_sizes(self._lightning["order"], middle=self._middle))
        if self._middle:
            order.go_on(self._lightning["order"], self._kept["rng"], middle=True)
        begin(trainer.fit_loop, middle=self._middle)

    def on_train_epoch_start(self, order: Order) -> None:
        """Call it immediately before an epoch's order is drawn."""
        if not self._middle:
            order.go_on(self._lightning["order"], self._kept["rng"], middle=False)

    def _tell(self, differs: Iterable[str]) -> None:
        self.resumed = replace(self.resumed, differs=(*self.resumed.differs, *differs))


class VersionReader:
    """The Trainer's own checkpoint plugin, except that one path loads a version."""

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
