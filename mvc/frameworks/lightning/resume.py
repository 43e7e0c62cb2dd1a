"""Going on from a version: what Lightning loads, and what it would leave out.

The Trainer asks its checkpoint plugin for the version, through ``fit(ckpt_path=...)``, and
restores model, callbacks, loops and schedulers by its own code. Optimizers are set by the names
of their parameters, and the epoch is entered with the batches in their order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.plugins.io import CheckpointIO

from mvc.errors import CannotResume
from mvc.frameworks.lightning.order import Order, check_draws
from mvc.frameworks.lightning.source import BATCH, EPOCH
from mvc.frameworks.lightning.values import original
from mvc.ids import CommitId
from mvc.repo.repository import Repository
from mvc.training.resume import (
    Resumed,
    check_model,
    differences,
    load_model,
    training_state,
    training_weights,
)
from mvc.training.state.component_types import check_type
from mvc.training.state.optimizers import Placement
from mvc.training.state.rng import check_rng

__all__ = ["Reader", "Resume"]


class Resume:
    """A version that ``fit`` resumes from. The constructor checks all that needs no Trainer."""

    def __init__(self, repo: Repository, commit: CommitId, name: str) -> None:
        """Raises CannotResume with the reason."""
        self.path = f"mvc:{commit}"
        self._kept = kept = training_state(repo, commit, name, production=True)
        if "lightning" not in kept:
            raise CannotResume(
                f"{commit.short} was not recorded by a Lightning callback",
                hint="use repo.resume in a loop of your own",
            )
        if kept["rng"] is None:
            raise CannotResume(
                f"{commit.short} was recorded without the state of the random generators",
                hint="record with 'rng' in include",
            )
        check_rng(kept["rng"])
        self._lightning = lightning = kept["lightning"]
        self._optimizers = lightning["optimizers"] or [
            state for state in [kept["optimizer"]] if state is not None
        ]
        self._schedulers = original(lightning["schedulers"])
        present = len(self._optimizers), len(self._schedulers), bool(lightning["scaler"])
        wanted = (*lightning["counts"], True)
        for part, has, needs in zip(
            ("optimizer", "scheduler", "scaler"), present, wanted, strict=True
        ):
            if has != needs:
                raise CannotResume(
                    f"{commit.short} was recorded without the {part}",
                    hint=f"record with {part!r} in include",
                )
        if lightning["next"] not in {BATCH, EPOCH}:
            raise CannotResume(
                f"{commit.short} lies before {lightning['next']}, which Lightning would leave out",
                hint="resume from the version after it or before it",
            )
        if lightning["next"] == BATCH:
            check_draws(lightning["order"])
        self._weights = training_weights(repo, commit, name, kept)
        self.resumed = Resumed(commit, kept["step"], kept["batch"], differences(kept["setting"]))

    def checkpoint(self, trainer: Any) -> dict[str, Any]:
        """The dictionary that Lightning would have loaded, without the optimizers."""
        if trainer.world_size > 1:
            raise CannotResume(
                f"{self.resumed.commit.short} has the random generators of one process, "
                f"here are {trainer.world_size}",
                hint="for the weights alone use model.load_state_dict(repo.checkout(rev))",
            )
        module = trainer.lightning_module
        check_model(module, self._weights, self._kept)
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
        for what, here, kept in (
            ("optimizers", trainer.optimizers, self._optimizers),
            ("schedulers", trainer.lr_scheduler_configs, self._schedulers),
        ):
            if len(here) != len(kept):
                raise CannotResume(
                    f"the version has {len(kept)} {what}, configure_optimizers gave {len(here)}",
                    hint="make them as they were made when the version was recorded",
                )
        kinds = self._lightning.get("kinds", [])  # versions of before do not say
        for config, kind in zip(trainer.lr_scheduler_configs, kinds, strict=False):
            self._tell(check_type("scheduler", kind, config.scheduler))
        module = trainer.lightning_module
        placements = [
            Placement(module, optimizer, kept)
            for optimizer, kept in zip(trainer.optimizers, self._optimizers, strict=True)
        ]
        load_model(module, self._weights, self._kept["buffers"])
        for placement in placements:
            placement.apply()

    def on_train_start(self, trainer: Any, order: Order) -> None:
        """The loops are restored: a whole epoch begins as if training had never stopped.

        Raises CannotResume where an epoch is entered in its middle, and its data are others.
        """
        loop = trainer.fit_loop
        middle = self._lightning["next"] == BATCH
        self._tell(order.check_sizes(self._lightning["order"], middle=middle))
        if middle:
            order.go_on(self._lightning["order"], self._kept["rng"], middle=True)
            # Else schedulers that watch a metric would be left out at the end of this epoch.
            loop._restarting = False
            return
        _begin(loop)

    def _tell(self, differs: Iterable[str]) -> None:
        self.resumed = replace(self.resumed, differs=(*self.resumed.differs, *differs))

    def on_train_epoch_start(self, order: Order) -> None:
        """Call it immediately before an epoch's order is drawn."""
        if self._lightning["next"] == EPOCH:
            order.go_on(self._lightning["order"], self._kept["rng"], middle=False)


def _begin(loop: Any) -> None:
    """Has a loop and those in it run as if nothing had been loaded.

    By its fields, because the setter of ``restarting`` says yes whenever ``max_steps`` is given.
    """
    loop._restarting = loop._loaded_from_state_dict = loop._resuming_from_checkpoint = False
    loop.reset_restart_stage()
    for inner in vars(loop).values():
        if isinstance(inner, _Loop):
            _begin(inner)


class Reader(CheckpointIO):  # type: ignore[misc, unused-ignore]
    """The Trainer's own checkpoint plugin, except that one path loads a version."""

    def __init__(self, inner: Any, trainer: Any, resume: Resume) -> None:
        self.inner = inner
        self._trainer = trainer
        self._resume = resume

    def save_checkpoint(self, *arguments: Any, **options: Any) -> None:
        self.inner.save_checkpoint(*arguments, **options)

    def load_checkpoint(self, path: Any, *arguments: Any, **options: Any) -> Any:
        if str(path) == self._resume.path:
            return self._resume.checkpoint(self._trainer)
        return self.inner.load_checkpoint(path, *arguments, **options)

    def remove_checkpoint(self, path: Any) -> None:
        self.inner.remove_checkpoint(path)

    def teardown(self) -> None:
        self.inner.teardown()
