"""Production: the lossy stages and decisions of a pipeline, version by version.

The training weights are not changed. What is deployed and stored are production weights, which a
lossy pipeline makes of the training weights and the previous production weights (thesis §3.2). A
version that is skipped is rolled back: the next one builds on the deployed version.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

from mvc.codecs.pipeline import Pipeline
from mvc.codecs.stages.decisions import Drift, Dsed, Every
from mvc.codecs.stages.lossy import TopK
from mvc.errors import WrongUsage
from mvc.repo.lossy.reduce import Arrays, reduce
from mvc.training.lossy.drift import DriftDetector, Monitor
from mvc.training.lossy.dsed import ErrorDecay, Evaluate

__all__ = ["Decision", "Production"]


@dataclass(frozen=True)
class Decision:
    """The result of an offer.

    ``production`` are the weights to be live from now on: the new ones if they are to be
    ``saved``, else those that are live already. Do not write to its arrays. ``reason`` is text
    for people.
    """

    saved: bool
    production: Arrays
    reason: str


@dataclass(frozen=True)
class _Undo:
    """The state before a save, to undo it."""

    live: Arrays | None
    carried: float
    drifted: bool
    decay: ErrorDecay | None


class Production:
    """Holds the production weights and decides about each offer of training weights.

    ``evaluate(weights, data)`` returns the accuracy of weights on labelled data, from 0 to 1, or
    (accuracy, number of samples); ``dsed`` needs it. ``monitor(data)`` returns what ``drift``
    watches: a number, or one for each sample; by default the mean of each input. ``previous``
    are production weights that are live already. ``exact`` names tensors that must not change,
    such as buffers. ``dtypes`` names the dtype of arrays that hold words of another one
    (``bfloat16`` as uint16). Raises InvalidPipeline, WrongUsage without a needed ``evaluate``, and
    NotInstalled without river.
    """

    def __init__(
        self,
        pipeline: Pipeline | str,
        *,
        evaluate: Evaluate | None = None,
        monitor: Monitor | None = None,
        previous: Arrays | None = None,
        exact: Collection[str] = (),
        dtypes: Mapping[str, str] | None = None,
    ) -> None:
        self.pipeline = Pipeline.parse(pipeline) if isinstance(pipeline, str) else pipeline
        self._exact = exact
        self._dtypes = dtypes
        self._live = previous
        self._every: Every | None = None
        self._drift: DriftDetector | None = None
        self._decay: ErrorDecay | None = None
        for stage in self.pipeline.decisions:
            if isinstance(stage, Every):
                self._every = stage
            elif isinstance(stage, Drift):
                self._drift = DriftDetector(stage, monitor)
            elif isinstance(stage, Dsed):
                self._decay = ErrorDecay(stage, evaluate)
        adaptive = [s for s in self.pipeline.lossy if isinstance(s, TopK) and s.curve is not None]
        self._needs_loss = next((s.text for s in adaptive), None)
        self._carries = any(s.carry for s in adaptive)
        self._carried = 0.0
        self._offers = 0
        self._drifted = False
        self._undo: _Undo | None = None

    def begin(self, previous: Arrays | None, dtypes: Mapping[str, str]) -> None:
        """Sets ``previous`` and ``dtypes`` before the first offer."""
        self._live, self._dtypes = previous, dtypes

    @property
    def live(self) -> Arrays | None:
        """The production weights that are live; None before the first version."""
        return self._live

    def check(self, *, loss: float | None, data: Any) -> None:
        """Raises WrongUsage if the pipeline needs a loss or data and there is none."""
        if self._needs_loss is not None and loss is None:
            raise WrongUsage(
                f"stage {self._needs_loss} goes by the loss of the batch", hint="pass loss="
            )
        stage = self._drift or self._decay
        if stage is not None and data is None and (self._drift or self._live is not None):
            raise WrongUsage(f"stage {stage.text} goes by the data of the batch", hint="pass data=")

    def offer(self, training: Arrays, *, loss: float | None = None, data: Any = None) -> Decision:
        """Decides whether the training weights after a batch become a version.

        ``training`` may be written to afterwards, ``data`` must not. ``data`` are the labelled
        samples of the batch as ``evaluate`` takes them: a pair (inputs, labels), unless
        ``evaluate`` returns the number of samples and ``monitor`` is given. The first version is
        always saved, exactly. Raises WrongUsage as ``check`` does, and for bad callback results.
        """
        self.check(loss=loss, data=data)
        first = self._live is None
        reason = self._before(data)
        if self._decay is not None and self._live is not None:
            self._decay.saw(self._live, data)
        if first:
            reason = None
        if reason is not None and self._live is not None:
            self._skipped(loss)
            return Decision(False, self._live, reason)
        spent = None if loss is None else loss + self._carried
        made = reduce(
            self.pipeline, self._live, training,
            loss=spent, exact=self._exact, dtypes=self._dtypes,
        )  # fmt: skip
        if self._decay is not None and self._live is not None:
            good = self._decay.good_enough(made)
            if good is not None:
                self._skipped(loss)
                return Decision(False, self._live, good)
        self._undo = _Undo(self._live, spent or 0.0, self._drifted, copy(self._decay))
        self._live = made
        self._carried = 0.0
        self._drifted = False
        if self._decay is not None:
            self._decay.saved()
        return Decision(True, made, "the first version" if first else "saved")

    def take_back(self) -> None:
        """Undoes the last save, whose version could not be committed."""
        before, self._undo = self._undo, None
        if before is not None:
            self._live, self._drifted, self._decay = before.live, before.drifted, before.decay
            self._carried = before.carried if self._carries else 0.0

    def _before(self, data: Any) -> str | None:
        """The reason to skip the version before it is made; None if there is none.

        Every decision is evaluated, because detectors must see all data.
        """
        reasons = []
        if self._every is not None:
            save, skip = self._every.save, self._every.skip
            if self._offers % (save + skip) >= save:
                reasons.append(f"{self._every.text} skips it")
        self._offers += 1
        if self._drift is not None:
            # A drift counts until a version is saved, which another decision may delay.
            self._drifted = self._drift.drifted(data) or self._drifted
            if not self._drifted:
                reasons.append(f"{self._drift.text} saw no drift")
        return reasons[0] if reasons else None

    def _skipped(self, loss: float | None) -> None:
        if self._carries and loss is not None:
            self._carried += loss
