"""Drift detection on the incoming data alone: whether it has changed since the last drift.

The thesis proposes this decision as future work (chapter 6). The detectors are river's: ADWIN
(Bifet and Gavaldà, 2007) and Page-Hinkley, with their default settings. They watch one number
per sample and reset themselves when they detect a drift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from mvc.codecs.stages.decisions import Drift
from mvc.errors import NotInstalled, WrongUsage, how_to_install
from mvc.training.lossy.callbacks import number_from, wrong_result

__all__ = ["DriftDetector", "Monitor", "input_means"]

Monitor: TypeAlias = Callable[[Any], float | Iterable[float]]


class DriftDetector:
    """A detector that must see every batch, in order. Raises NotInstalled without river."""

    def __init__(self, stage: Drift, monitor: Monitor | None) -> None:
        try:
            from river import drift
        except ImportError as error:
            raise NotInstalled(
                f"stage {stage.text} needs the package river",
                hint=how_to_install("drift"),
            ) from error
        kinds = {"adwin": drift.ADWIN, "page-hinkley": drift.PageHinkley}
        self.text = stage.text
        self._detector: Any = kinds[stage.detector]()
        self._monitor = monitor or input_means

    def drifted(self, data: Any) -> bool:
        """Whether a drift was detected in the batch. Raises WrongUsage for a bad monitor."""
        found = False
        for value in _each(self._monitor(data)):
            number = number_from(value)
            if number is None:
                raise wrong_result("monitor", value, "a number, or one for each sample")
            if not np.isfinite(number):
                raise WrongUsage(f"the monitor of {self.text} gave {number}, which is no number")
            self._detector.update(number)
            found = bool(self._detector.drift_detected) or found
        return found


def _each(watched: Any) -> Iterable[Any]:
    """The values in turn; a scalar, also as a tensor or array without dimensions, is one."""
    several = isinstance(watched, Iterable) and not isinstance(watched, str | bytes)
    return watched if several and getattr(watched, "ndim", None) != 0 else [watched]


def input_means(data: Any) -> Iterable[float]:
    """The mean of each input of a pair (inputs, labels), or of an array of inputs.

    Raises WrongUsage for inputs that are no numbers, or none.
    """
    pair = isinstance(data, Sequence) and not isinstance(data, str | bytes)
    try:
        inputs = np.asarray(data[0] if pair else data, np.float64)
    except (TypeError, ValueError, RuntimeError, IndexError):
        raise WrongUsage(
            f"the inputs in data, which is of type {type(data).__name__}, are not numbers",
            hint="pass data=(inputs, labels), or a monitor that gives what to watch",
        ) from None
    if not inputs.ndim or not inputs.size:
        raise WrongUsage("there are no inputs to watch", hint="pass data=(inputs, labels)")
    means: list[float] = inputs.reshape(len(inputs), -1).mean(axis=1).tolist()
    return means
