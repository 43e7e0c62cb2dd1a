"""The full state of a Keras training, and going on from it, bit for bit on the same machine.

The model's path of a version holds its weights alone. Beside it are the optimizer's variables, the
seed generators of layers, running metrics, random generators, and the place in ``fit``.

Keras draws the order of an epoch when the epoch begins: the state of the generators before that
draw brings the order back, and a digest of the state after it tells whether it was drawn the same
way. Beside torch's, numpy's and Python's generators there is one of Keras's own, for layers that
ask for random numbers without a seed generator.
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
from mvc.training.resume import RecordedBy, Resumed, training_state, training_weights, without
from mvc.training.state.parts import setting
from mvc.training.state.rng import check_rng, rng_state, set_rng_state

_SCHEMA = "mvc.keras/1"
_WEIGHTS = "mvc.frameworks.keras.load"
_WEIGHTS_ALONE = f"for the weights alone use {_WEIGHTS}"
_MADE_HERE = RecordedBy(_SCHEMA, "state of a Keras training", "MVCCallback", _WEIGHTS)


class TrainingSource:
    """States of a model in ``fit``, for a Recorder.

    ``batch`` batches of epoch ``epoch`` (from 0) are done, of ``batches`` where Keras knows;
    ``logs`` are the last one's. ``digest`` is that of the generators once the epoch's order is
    drawn.
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
        """Call it for every batch. At the first one of an epoch the order has been drawn."""
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
            "optimizer": None if optimizer is None else _optimizer_state(optimizer),
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


def _optimizer_state(optimizer: Any) -> dict[str, Any]:
    kept = tensors(variables.optimizer_variables(optimizer))
    return {"kind": variables.optimizer_kind(optimizer), "variables": kept}


class RestoredFit:
    """A version that has been put into a model, and what ``fit`` needs of it later on."""

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
        """Compares, then restores; raises CannotResume with the reason before any change.

        ``data`` is that of ``data_of_fit`` for the ``fit`` that goes on, ``epochs`` where it ends.
        """
        self._kept = kept = training_state(repo, commit, name, by=_MADE_HERE)
        self.epoch, self.batch = int(kept["batch"]["epoch"]), int(kept["batch"]["batch"])
        self.batches, self.logs = kept["batches"], kept["logs"]
        self.digest: str | None = kept["order"]["digest"]
        why = data.unrepeatable or kept["order"]["unrepeatable"]
        sizes = changed(kept["order"].get("sizes", {}), data.sizes or {})
        differs = unlike(kept["setting"], _keras_setting()) + sizes
        if why is not None:
            differs.append(f"data: {why}")
        if data.sizes is None:
            differs.append("data: this fit does not show where it comes from: it is not compared")
        begun = self.epoch + bool(self.batch)
        if epochs is not None and epochs < begun:
            differs.append(f"epochs: {epochs}, but {begun} were begun, so nothing is trained")
        self.resumed = Resumed(commit, int(kept["step"]), kept["batch"], tuple(differs))
        self._check(why, sizes)
        fillings = [
            Filling("model", training_weights(repo, commit, name, kept), variables.weights(model)),
            Filling("model", kept["seeds"], variables.seeds(model)),
            self._optimizer(model.optimizer),
        ]
        if self.batch:
            metrics = variables.by_path(model.metrics_variables)
            self._metrics = Filling("model's metrics", kept["metrics"], metrics)
        for filling in fillings:
            filling.apply()
        variables.set_stale_gradients(model, kept["gradients"])
        _set_random_state(kept["rng"])

    def enter_epoch(self) -> None:
        """Call it before an interrupted epoch restarts, so that the same order is drawn again."""
        self._metrics.apply()
        _set_random_state(self._kept["order"]["before"])

    def leave_skipped(self) -> None:
        """Call it once the done batches are skipped: sets the generators to the version's state."""
        _set_random_state(self._kept["rng"])

    def _check(self, why: str | None, sizes: list[str]) -> None:
        """``why`` the data cannot be read again, if so; ``sizes`` of it that differ."""
        kept, commit = self._kept, self.resumed.commit
        _check_random(kept["rng"])
        if not self.batch:
            return
        if why is not None:
            raise CannotResume(
                f"{commit.short} lies within an epoch, and the batches that were trained "
                f"cannot be told from the others: {why}",
                hint="record with every='epoch' and resume from the end of an epoch; "
                + _WEIGHTS_ALONE,
            )
        refuse_middle(commit.short, sizes)
        _check_random(kept["order"]["before"])

    def _optimizer(self, optimizer: Any) -> Filling:
        kept = self._kept["optimizer"]
        if kept is None:
            raise without(self.resumed.commit, "optimizer")
        kind = variables.optimizer_kind(optimizer)
        if kept["kind"] != kind:
            raise CannotResume(
                f"the optimizer was {kept['kind']}, not {kind}",
                hint="compile with the optimizer that was recorded; " + _WEIGHTS_ALONE,
            )
        return Filling("optimizer", kept["variables"], variables.optimizer_variables(optimizer))


def _keras_setting() -> dict[str, str]:
    """The settings of Keras and torch that the bits of the next batch depend on."""
    import keras

    return {**setting(), "keras": str(keras.__version__)}


def _random_state() -> dict[str, Any]:
    return {**rng_state(), "keras": own_generator()}


def _check_random(kept: Any) -> None:
    """Raises CannotResume for what ``_set_random_state`` could not set."""
    check_rng(kept)
    own = kept.get("keras")
    if own is not None and (not isinstance(own, torch.Tensor) or own.shape != (2,)):
        raise CannotResume("the state of Keras's random generator is not one that is known here")


def _set_random_state(kept: Mapping[str, Any]) -> None:
    set_own_generator(kept["keras"])  # may draw from Python's, which comes back now
    set_rng_state(kept)


def _digest(state: Mapping[str, Any]) -> str:
    made = hashlib.blake2b(digest_size=16)
    python, numpy = state["python"], state["numpy"]
    for words in (state["torch"].numpy(), numpy["keys"], python["words"]):
        made.update(words.tobytes())
    made.update(repr((numpy["position"], numpy["has_gauss"], python["gauss"])).encode())
    return made.hexdigest()
