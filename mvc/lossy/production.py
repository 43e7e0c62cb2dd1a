"""Applies the lossy stages and decisions of a pipeline, version by version.

A lossy pipeline makes *production weights* from training weights and the previous production
weights (thesis §3.2). Production weights are deployed and stored. The training weights do not
change. A decision may skip a version. Then the previous production weights stay live.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from typing import Any

from msgspec import Struct

from mvc.errors import WrongUsage
from mvc.lossy.accuracy import Evaluate
from mvc.lossy.decisions import DriftDetector, DriftStage, Dsed, ErrorDecay, Every, Monitor
from mvc.lossy.guard import AccuracyGuard, GuardStage
from mvc.lossy.lc.stages import LossyPipeline
from mvc.lossy.reducer import Arrays, Reducer
from mvc.lossy.topk import TopKOfEach


class Decision(Struct, frozen=True):
    """Whether offered training weights became a version.

    ``production``: the weights that are live after the decision: the new weights if ``saved``,
    otherwise the previous weights. Do not write to the arrays. ``reason``: a text that says why
    the weights were saved or not.
    """

    saved: bool
    production: Arrays
    reason: str


class Production:
    """Decides whether training weights become a version. ``live``: the live production weights.

    ``evaluate(weights, data)``, for the stages ``dsed`` and ``guard``: returns the accuracy on
    labelled data, from 0 to 1, or (accuracy, number of samples). ``monitor(data)``, for ``drift``:
    returns a number, or a number for each sample; by default the mean of each input. ``previous``:
    production weights that are live at the beginning. ``exact``: tensors that must not be lossy,
    such as buffers. ``dtypes``: if an array of integers has the bits of another dtype, such as
    bfloat16, maps the array's name to this dtype. Raises WrongUsage if ``evaluate`` is needed and
    missing, and NotInstalled if ``drift`` is used without river.
    """

    def __init__(
        self,
        pipeline: LossyPipeline,
        *,
        evaluate: Evaluate | None = None,
        monitor: Monitor | None = None,
        previous: Arrays | None = None,
        exact: Collection[str] = (),
        dtypes: Mapping[str, str] | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.live = previous
        self.dtypes = dtypes
        self._reducers = [Reducer(pipeline, exact)]
        self._level = 0  # the level of exactness (of ``guard``) of the live weights
        self._every: Every | None = None
        self._drift: DriftDetector | None = None
        self._decay: ErrorDecay | None = None
        self._guard: AccuracyGuard | None = None
        for stage in self.pipeline.decisions:
            if isinstance(stage, Every):
                self._every = stage
            elif isinstance(stage, DriftStage):
                self._drift = DriftDetector(stage, monitor)
            elif isinstance(stage, Dsed):
                self._decay = ErrorDecay(stage, evaluate)
            elif isinstance(stage, GuardStage):
                self._reducers = [Reducer(level, exact) for level in pipeline.levels()]
                self._guard = AccuracyGuard(stage, len(self._reducers) - 1, evaluate)
        adaptive = [
            s for s in self.pipeline.lossy if isinstance(s, TopKOfEach) and s.curve is not None
        ]
        self._needs_loss = next((s.text for s in adaptive), None)
        self._offers = 0
        self._drifted = False
        # The values of ``live``, ``_drifted``, ``_decay`` and ``_level`` before the latest save.
        self._undo: tuple[Arrays | None, bool, ErrorDecay | None, int] | None = None

    def check(self, *, loss: float | None, data: Any) -> None:
        """Raises WrongUsage if the pipeline needs a loss or data that is missing."""
        if self._needs_loss is not None and loss is None:
            raise WrongUsage(
                f"stage {self._needs_loss} needs the loss of the batch", hint="pass loss="
            )
        stage = self._drift or self._decay or self._guard
        if stage is not None and data is None and (self._drift or self.live is not None):
            raise WrongUsage(f"stage {stage.text} needs the data of the batch", hint="pass data=")

    def offer(self, training: Arrays, *, loss: float | None = None, data: Any = None) -> Decision:
        """Decides whether the training weights after a batch become a version.

        ``training``: you may change these arrays after the call. ``data``: the labelled samples of
        the batch, in the form that ``evaluate`` expects; do not change these samples. The data must
        be a pair (inputs, labels), unless ``evaluate`` returns the number of samples and
        ``monitor`` is set. The first version is always saved, and only the stage ``grid`` changes
        the first weights. Raises WrongUsage as ``check`` does, and for wrong results of callbacks.
        """
        self.check(loss=loss, data=data)
        live = self.live
        reason = self._before(data)
        if self._decay is not None and live is not None:
            self._decay.add_batch(live, data)
        if self._guard is not None:
            self._guard.add_batch(live, training, data)
        if live is not None and reason is not None and self._may_stay(live):
            return Decision(False, live, reason)
        weights = self._produced(live, training, loss)
        if self._decay is not None and live is not None:
            reason_ = self._decay.good_enough(weights)
            if reason_ is not None and self._may_stay(live):
                return Decision(False, live, reason_)
        self._undo = live, self._drifted, copy(self._decay), self._level
        self.live = weights
        self._level = 0 if self._guard is None else self._guard.level
        self._drifted = False
        if self._decay is not None:
            self._decay.saved()
        return Decision(True, weights, "the first version" if live is None else "saved")

    def _produced(self, live: Arrays | None, training: Arrays, loss: float | None) -> Arrays:
        """New production weights. If the guard refuses these weights, tries a more exact level."""
        while True:
            level = 0 if self._guard is None else self._guard.level
            weights = self._reducers[level].produce(
                live, training, loss=loss, dtypes=self.dtypes, new_level=level != self._level
            )
            if self._guard is None or not (self._guard.refuses(weights) and self._guard.refine()):
                return weights

    def _may_stay(self, live: Arrays) -> bool:
        return self._guard is None or self._guard.allows(live)

    def take_back(self) -> None:
        """Undoes the latest save. Call this if the version could not be committed."""
        if self._undo is not None:
            self.live, self._drifted, self._decay, self._level = self._undo
            self._undo = None

    def memory(self, *, samples: bool = False) -> dict[str, Any]:
        """The state of the decisions, for ``restore``. Empty if the pipeline has no decisions.

        ``samples``: include the labelled samples of ``guard``. Without these samples, ``guard``
        collects new samples.
        """
        if not self.pipeline.decisions:
            return {}
        state: dict[str, Any] = {
            "pipeline": self.pipeline.text, "offers": self._offers, "drifted": self._drifted,
        }  # fmt: skip
        for decision in (self._drift, self._decay):
            state |= decision.memory() if decision is not None else {}
        if self._guard is not None:
            state |= self._guard.memory(samples=samples)
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Sets the state of the decisions to a result of ``memory``.

        Ignores a result that belongs to another pipeline.
        """
        if state.get("pipeline") != self.pipeline.text:
            return
        offers, drifted = state.get("offers"), state.get("drifted")
        if type(offers) is not int or offers < 0 or type(drifted) is not bool:
            return  # not a result of ``memory``
        self._offers, self._drifted = offers, drifted
        for decision in (self._drift, self._decay, self._guard):
            if decision is not None:
                decision.restore(state)
        self._level = 0 if self._guard is None else self._guard.level

    def _before(self, data: Any) -> str | None:
        """Asks the decisions that do not need the new weights (``every`` and ``drift``).

        Returns a reason to skip the version, or None. The drift detector reads all data, even if
        ``every`` skips the version.
        """
        reasons = []
        if self._every is not None:
            save, skip = self._every.save, self._every.skip
            if self._offers % (save + skip) >= save:
                reasons.append(f"{self._every.text} skips it")
        self._offers += 1
        if self._drift is not None:
            # A drift counts until the next save, which another decision may delay.
            self._drifted = self._drift.drifted(data) or self._drifted
            if not self._drifted:
                reasons.append(f"{self._drift.text} detected no drift")
        return reasons[0] if reasons else None
