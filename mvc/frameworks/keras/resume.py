"""A Keras training goes on from a recorded version, bit for bit on the same machine.

Everything is compared before anything is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mvc.errors import CannotResume
from mvc.frameworks.common.data_sizes import changed
from mvc.frameworks.keras.random import Order, check_random, set_random_state
from mvc.frameworks.keras.state import SCHEMA, keras_setting
from mvc.frameworks.keras.variables import (
    Filling,
    by_path,
    optimizer_kind,
    optimizer_variables,
    seeds,
    set_stale_gradients,
    weights,
)
from mvc.ids import CommitId
from mvc.repo.repository import Repository
from mvc.training.resume import Resumed, training_weights
from mvc.training.state.parts import PRODUCTION, training_path

__all__ = ["Restored", "load_weights"]


class Restored:
    """A version that has been put into a model, and what ``fit`` needs of it later on."""

    def __init__(
        self,
        repo: Repository,
        rev: str | CommitId,
        name: str,
        model: Any,
        order: Order,
        epochs: int | None = None,
    ) -> None:
        """Reads, checks and restores; raises CannotResume with the reason.

        ``order``: of the data of the ``fit`` that goes on. ``epochs``: at which it ends.
        """
        self.commit = repo.find(rev)
        self._kept = kept = _training_state(repo, self.commit, name)
        position = kept["batch"]
        self.epoch, self.batch = int(position["epoch"]), int(position["batch"])
        self.batches: int | None = kept["batches"]
        self.logs: Mapping[str, float] = kept["logs"]
        self.digest: str | None = kept["order"]["digest"]
        self._data: str | None = order.unrepeatable or kept["order"]["unrepeatable"]
        self._sizes = changed(kept["order"].get("sizes", {}), order.sizes)
        self._told = list(self._sizes)
        begun = self.epoch + bool(self.batch)
        if epochs is not None and epochs < begun:
            self._told.append(f"epochs: {epochs}, but {begun} were begun, so nothing is trained")
        self._check()
        fillings = [
            Filling("model", training_weights(repo, self.commit, name, kept), weights(model)),
            Filling("model", kept["seeds"], seeds(model)),
            self._optimizer(model.optimizer),
        ]
        if self.batch:
            self._metrics = Filling(
                "model's metrics", kept["metrics"], by_path(model.metrics_variables)
            )
        for filling in fillings:
            filling.apply()
        set_stale_gradients(model, kept["gradients"])
        set_random_state(kept["rng"])

    @property
    def step(self) -> int:
        """The number of steps before the version."""
        return int(self._kept["step"])

    @property
    def resumed(self) -> Resumed:
        """Where training continues and what differs from before, for the caller of ``fit``."""
        here = keras_setting()
        differs = tuple(
            f"{what}: {here.get(what)}, not {value}"
            for what, value in self._kept["setting"].items()
            if here.get(what) != value
        )
        if self._data is not None:
            differs += (f"data: {self._data}",)
        return Resumed(self.commit, self.step, self._kept["batch"], (*differs, *self._told))

    def enter_epoch(self) -> None:
        """Call it before an interrupted epoch restarts, so that the same order is drawn again."""
        self._metrics.apply()
        set_random_state(self._kept["order"]["before"])

    def leave_skipped(self) -> None:
        """Call it once the done batches are skipped: sets the generators to the version's state."""
        set_random_state(self._kept["rng"])

    def _check(self) -> None:
        kept = self._kept
        if kept["rng"] is None:
            raise CannotResume(
                f"{self.commit.short} was recorded without the state of the random generators",
                hint="record with 'rng' in include",
            )
        check_random(kept["rng"])
        if self.batch:
            if self._data is not None:
                raise CannotResume(
                    f"{self.commit.short} lies within an epoch, and the batches that were trained "
                    f"cannot be told from the others: {self._data}",
                    hint="record with every='epoch' and resume from the end of an epoch; "
                    "for the weights alone use mvc.frameworks.keras.callback.load",
                )
            if self._sizes:
                raise CannotResume(
                    f"{self.commit.short} lies in the middle of an epoch whose data were others: "
                    + ", ".join(self._sizes),
                    hint="pass the same data and batch size, or resume from the end of an epoch",
                )
            check_random(kept["order"]["before"])

    def _optimizer(self, optimizer: Any) -> Filling:
        kept = self._kept["optimizer"]
        if kept is None:
            raise CannotResume(
                f"{self.commit.short} was recorded without the optimizer",
                hint="record with 'optimizer' in include",
            )
        kind = optimizer_kind(optimizer)
        if kept["kind"] != kind:
            raise CannotResume(
                f"the optimizer was {kept['kind']}, not {kind}",
                hint="compile with the optimizer that was recorded; for the weights alone use "
                "mvc.frameworks.keras.callback.load",
            )
        return Filling("optimizer", kept["variables"], optimizer_variables(optimizer))


def _training_state(repo: Repository, commit: CommitId, name: str) -> Mapping[str, Any]:
    entries = repo.manifest(commit).by_path
    path = training_path(name)
    for needed in (name, path):
        if needed not in entries:
            raise CannotResume(
                f"{commit.short} has no {needed}",
                hint="only versions of MVCCallback, with 'model' in include, can be resumed",
            )
    kept = repo.checkout(commit, path=path)
    schemas = (kept.get("schema"), kept.get("of")) if isinstance(kept, Mapping) else ()
    if not isinstance(kept, Mapping) or schemas not in {(SCHEMA, None), (PRODUCTION, SCHEMA)}:
        raise CannotResume(
            f"{path} of {commit.short} is no state of a Keras training that this mvc knows",
            hint="for a Recorder's version use repo.resume; for the weights alone "
            "mvc.frameworks.keras.callback.load",
        )
    if kept.get("root") != entries[name].state.root.hex():
        raise CannotResume(
            f"{path} of {commit.short} belongs to another version of {name}: "
            "the model was committed later, without its training state",
            hint="resume from the version before",
        )
    if kept["schema"] == PRODUCTION and kept["weights"] is None:
        raise CannotResume(
            f"{commit.short} holds production weights, made by {kept['pipeline']!r}; the "
            "training weights that they were made of were not kept",
            hint="record with keep_training=True; for the production weights alone use "
            "mvc.frameworks.keras.callback.load",
        )
    return kept


def load_weights(model: Any, repo: Repository, rev: str | CommitId, name: str) -> CommitId:
    """Puts the weights of a version into a model that is built; its id."""
    commit = repo.find(rev)
    here = weights(model)
    if not here:
        raise CannotResume(
            "the model has no weights yet", hint="build it: model.build(input_shape), or call it"
        )
    kept = repo.checkout(commit, path=name)
    if not isinstance(kept, Mapping):
        raise CannotResume(f"{name} of {commit.short} holds no tensors by name")
    Filling("model", kept, here).apply()
    return commit
