"""Records the full state of a Keras training, and resumes with the same bits on the same machine.

A version has two files: the weights of the model, and the training state. The training state has
the optimizer's variables, the seed generators of layers, running metrics, the states of random
generators, and the position in ``fit``.

When an epoch begins, Keras draws the order of its batches at random. To resume inside an epoch, the
random generators are set to their state before this draw, so that Keras draws the same order again.
A digest of the generators' state after the draw shows whether this succeeded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mvc.api import Repository
from mvc.errors import CannotResume
from mvc.frameworks.common.data import changed, refuse_middle, unlike
from mvc.frameworks.keras import variables
from mvc.frameworks.keras.internals import FitData, own_generator, set_own_generator
from mvc.frameworks.keras.variables import Filling, tensors
from mvc.ids import CommitId
from mvc.training.resume import (
    RecordedBy,
    Resumed,
    recorded_without,
    training_state,
    training_weights,
)
from mvc.training.state.parts import setting
from mvc.training.state.rng import check_rng, rng_state, set_rng_state

_SCHEMA = "mvc.keras/1"
_WEIGHTS = "mvc.frameworks.keras.load"
_WEIGHTS_ALONE = f"for the weights alone use {_WEIGHTS}"
_BY = RecordedBy(_SCHEMA, "state of a Keras training", "MVCCallback", _WEIGHTS)


class TrainingSource:
    """States of a model in ``fit``, for a Recorder.

    ``batch`` batches of epoch ``epoch`` (from 0) are done. ``batches``: how many batches the epoch
    has; None if Keras does not know. ``logs``: what Keras logged for the last done batch.
    ``digest``: a digest of the random generators after the epoch's order was drawn.
    """

    def __init__(self, model: Any, include: Sequence[str], data: FitData) -> None:
        self._model, self._include, self._data = model, include, data
        self.weights = "model" in include
        self.epoch_begins(0, None)

    def epoch_begins(self, epoch: int, batches: int | None) -> None:
        """Call it before the epoch's order is drawn."""
        self.epoch, self.batch, self.batches = epoch, 0, batches
        self.logs: Mapping[str, float] = {}
        self._before = _random_state()
        self.digest: str | None = None

    def batch_begins(self) -> None:
        """Call it before every batch. At the first batch of an epoch, it computes ``digest``."""
        if self.digest is None:
            self.digest = _digest(rng_state())

    def exact(self) -> list[str]:
        return variables.no_weights(self._model)

    def model_state(self) -> dict[str, Any]:
        return tensors(variables.weights(self._model)) if self.weights else {}

    def training_state(self, step: int, batch: Any) -> dict[str, Any]:
        model, rng = self._model, "rng" in self._include
        within = rng and self.batch > 0
        optimizer = model.optimizer if "optimizer" in self._include else None
        return {
            "schema": _SCHEMA,
            "step": step,
            "batch": batch,
            "batches": self.batches,
            "logs": dict(self.logs),
            "setting": _keras_setting(),
            "optimizer": None
            if optimizer is None
            else {
                "kind": variables.optimizer_kind(optimizer),
                "variables": tensors(variables.optimizer_variables(optimizer)),
            },
            "seeds": tensors(variables.seeds(model)),
            "gradients": variables.stale_gradients(model),
            "metrics": tensors(variables.by_path(model.metrics_variables)),
            "rng": _random_state() if rng else None,
            "order": {
                "unrepeatable": self._data.unrepeatable,
                "sizes": self._data.sizes or {},
                "before": self._before if within else None,
                "digest": self.digest if within else None,
            },
        }


class RestoredFit:
    """Restores a version in a model, and resumes ``fit`` at its position."""

    def __init__(
        self,
        repo: Repository,
        commit: CommitId,
        name: str,
        *,
        model: Any,
        data: FitData,
        epochs: Any,
    ) -> None:
        """Compares the version with the training, and then restores the version in ``model``.

        Raises CannotResume before any change if the training cannot continue from the version.
        ``data``: the result of ``data_of_fit`` for the ``fit`` that resumes. ``epochs``: the
        argument ``epochs`` of this ``fit``.
        """
        self._recorded = recorded = training_state(repo, commit, name, by=_BY)
        self.epoch, self.batch = int(recorded["batch"]["epoch"]), int(recorded["batch"]["batch"])
        self.batches, self.logs = recorded["batches"], recorded["logs"]
        self.digest: str | None = recorded["order"]["digest"]
        why = data.unrepeatable or recorded["order"]["unrepeatable"]
        sizes = changed(recorded["order"].get("sizes", {}), data.sizes or {})
        differs = unlike(recorded["setting"], _keras_setting()) + sizes
        if why is not None:
            differs.append(f"data: {why}")
        if data.sizes is None:
            differs.append("data: not compared, because this fit does not show its source")
        begun = self.epoch + bool(self.batch)
        if epochs is not None and epochs < begun:
            differs.append(f"epochs: {epochs}, but {begun} have started: nothing is left to train")
        self.resumed = Resumed(commit, int(recorded["step"]), recorded["batch"], tuple(differs))
        self._check(why, sizes)
        fillings = [
            Filling(
                "model", training_weights(repo, commit, name, recorded), variables.weights(model)
            ),
            Filling("model", recorded["seeds"], variables.seeds(model)),
            self._optimizer(model.optimizer),
        ]
        if self.batch:
            metrics = variables.by_path(model.metrics_variables)
            self._metrics = Filling("model's metrics", recorded["metrics"], metrics)
        for filling in fillings:
            filling.apply()
        variables.set_stale_gradients(model, recorded["gradients"])
        _set_random_state(recorded["rng"])

    def enter_epoch(self) -> None:
        """Restores the running metrics, and the random generators as before the epoch's order.

        Call it before the interrupted epoch restarts: Keras then draws the same order again.
        """
        self._metrics.apply()
        _set_random_state(self._recorded["order"]["before"])

    def leave_skipped(self) -> None:
        """Sets the random generators to the version's state.

        Call it after ``fit`` has skipped the batches that were trained before the interruption.
        """
        _set_random_state(self._recorded["rng"])

    def _check(self, why: str | None, sizes: list[str]) -> None:
        """Raises CannotResume if the epoch cannot be continued.

        ``why``: why the data cannot be read again, or None. ``sizes``: differences of sizes between
        the recorded data and the present data.
        """
        recorded, commit = self._recorded, self.resumed.commit
        _check_random(recorded["rng"])
        if not self.batch:
            return
        if why is not None:
            raise CannotResume(
                f"{commit.short} is inside an epoch, and its remaining batches are unknown: {why}",
                hint="record with every='epoch' and resume from the end of an epoch; "
                + _WEIGHTS_ALONE,
            )
        refuse_middle(commit.short, sizes)
        _check_random(recorded["order"]["before"])

    def _optimizer(self, optimizer: Any) -> Filling:
        recorded = self._recorded["optimizer"]
        if recorded is None:
            raise recorded_without(self.resumed.commit, "optimizer")
        kind = variables.optimizer_kind(optimizer)
        if recorded["kind"] != kind:
            raise CannotResume(
                f"the recorded optimizer is {recorded['kind']}, this one is {kind}",
                hint="compile with the recorded optimizer; " + _WEIGHTS_ALONE,
            )
        return Filling("optimizer", recorded["variables"], variables.optimizer_variables(optimizer))


def _keras_setting() -> dict[str, str]:
    """Versions and settings of Keras and torch that may change the bits of a training."""
    import keras

    return {**setting(), "keras": str(keras.__version__)}


def _random_state() -> dict[str, Any]:
    return {**rng_state(), "keras": own_generator()}


def _check_random(recorded: Any) -> None:
    """Raises CannotResume for recorded states that ``_set_random_state`` cannot set."""
    check_rng(recorded)
    own = recorded.get("keras")
    if own is not None and (not isinstance(own, torch.Tensor) or own.shape != (2,)):
        raise CannotResume("the recorded state of Keras's random generator is invalid")


def _set_random_state(recorded: Mapping[str, Any]) -> None:
    set_own_generator(recorded["keras"])  # may change Python's generator, which is set afterwards
    set_rng_state(recorded)


def _digest(state: Mapping[str, Any]) -> str:
    hasher = hashlib.blake2b(digest_size=16)
    python, numpy = state["python"], state["numpy"]
    for words in (state["torch"].numpy(), numpy["keys"], python["words"]):
        hasher.update(words.tobytes())
    hasher.update(repr((numpy["position"], numpy["has_gauss"], python["gauss"])).encode())
    return hasher.hexdigest()
