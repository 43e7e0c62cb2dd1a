"""Stages of a pipeline that decide whether a version is saved. They change no weights.

``every`` saves versions in a fixed rhythm. ``drift`` saves a version when the input data change: a
detector of the Python package river reads one number per sample, and detects a drift of these
numbers. ``dsed`` saves a version that is more accurate than the deployed version by more than a
bound. docs/production.md, "Decisions", describes each stage (thesis §3.2.1, §3.2.5, chapter 6).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mvc.codecs.stage import Kind, Stage, number, plain, read_options, whole_number
from mvc.errors import InvalidPipeline, NotInstalled, WrongUsage, how_to_install
from mvc.lossy.accuracy import Evaluate, accuracy_of, is_sequence, number_of, wrong_result

Monitor: TypeAlias = Callable[[Any], float | Iterable[float]]

_PART = 4096
_REMEMBERED = 64 * _PART
"""A drift detector keeps at least this many of the numbers that it read last, for a restart."""
_FRACTION = re.compile(r"[0-9]{1,4000}(/[1-9][0-9]{0,3999})?")
_DETECTORS = ("adwin", "page-hinkley")
_MOST = 1_000_000_000 - 1


class _Before(Stage, frozen=True):
    accepts = frozenset({Kind.TENSOR, Kind.PAIR})
    needs = "to be first"
    decides = True


class Every(_Before, frozen=True):
    """decision: saves SAVE versions, then skips SKIP"""

    save: int
    skip: int
    usage = "every:SAVE/SKIP"

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        first, slash, second = parameter.partition("/")
        if not slash:
            raise InvalidPipeline(
                f"stage {name} needs SAVE/SKIP, not {parameter!r}", hint="such as every:1/2"
            )
        save = whole_number(name, "SAVE", first.strip(), low=1, high=_MOST)
        skip = whole_number(name, "SKIP", second.strip(), low=0, high=_MOST)
        return cls(f"{name}:{save}/{skip}", save, skip)


class DriftStage(_Before, frozen=True):
    """decision: saves when the incoming data drifts (needs the extra drift)"""

    detector: str
    usage = "drift:adwin|page-hinkley"

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        if parameter not in _DETECTORS:
            raise InvalidPipeline(
                f"stage {name} has no detector {parameter!r}",
                hint=f"use {' or '.join(f'{name}:{d}' for d in _DETECTORS)}",
            )
        return cls(f"{name}:{parameter}", parameter)


class OnNewWeights(Stage, frozen=True):
    """A decision about the new weights, after the lossy stages."""

    accepts = frozenset({Kind.DIFFERENCES, Kind.PATTERNS, Kind.RESET, Kind.STEPS})
    needs = "a delta (sub, xor or steps) before it, and the coding after it"
    decides = True


class Dsed(OnNewWeights, frozen=True):
    """decision: skips a version unless it is more accurate than the deployed version by more than E

    ``bound``: E, a share of accuracy (0.01 is one per cent). ``last_only``: evaluate the new
    version only on the newest batch.
    """

    bound: Decimal
    last_only: bool
    usage = "dsed:E[,last]"

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        first, options = read_options(name, parameter, (), ("last",))
        bound = number(name, "E", first, low="0", high="1")
        last = "last" in options
        return cls(f"{name}:{plain(bound)}{',last' if last else ''}", bound, last)


def _is_batch(pair: object) -> bool:
    """Whether ``pair`` has the form (data, number of samples)."""
    return (
        isinstance(pair, list | tuple) and len(pair) == 2 and type(pair[1]) is int and pair[1] > 0
    )


class ErrorDecay:
    """Compares the accuracies of the deployed and the new weights, for the stage ``dsed``.

    The weights are evaluated on the batches since the last saved version; the new weights with
    ``last`` only on the newest batch. Accuracies are exact fractions, so that rounding cannot
    change the decision. Raises WrongUsage without ``evaluate``.
    """

    def __init__(self, stage: Dsed, evaluate: Evaluate | None) -> None:
        if evaluate is None:
            raise WrongUsage(
                f"stage {stage.text} compares accuracies",
                hint="pass evaluate=(state, data) -> accuracy",
            )
        self.text = stage.text
        self._bound = Fraction(stage.bound)
        self._last_only = stage.last_only
        self._evaluate = evaluate
        self.saved()

    def saved(self) -> None:
        """Deletes all batches. Call it after a version was saved."""
        self._old = Fraction(0)
        self._seen = 0
        self._batches: list[tuple[Any, int]] = []

    def add_batch(self, live: Mapping[str, NDArray[Any]], data: Any) -> None:
        """Evaluates the deployed weights on a new labelled batch."""
        accuracy, count = accuracy_of(self._evaluate, live, data)
        self._old += accuracy
        self._seen += 1
        if self._last_only:
            self._batches.clear()
        self._batches.append((data, count))

    def memory(self) -> dict[str, Any]:
        """The argument of ``restore`` in another process. Empty if there was no batch since the
        last saved version.
        """
        if not self._seen:
            return {}
        return {"batches": self._batches, "seen": self._seen, "accuracy": str(self._old)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the result of ``memory``; ignores anything else."""
        batches, seen = state.get("batches", []), state.get("seen", 0)
        accuracy = str(state.get("accuracy", 0))
        if type(seen) is not int or seen < 0 or not _FRACTION.fullmatch(accuracy):
            return
        if not isinstance(batches, list | tuple) or not all(map(_is_batch, batches)):
            return
        self._batches = [(data, count) for data, count in batches]
        self._seen, self._old = seen, Fraction(accuracy)

    def good_enough(self, weights: Mapping[str, NDArray[Any]]) -> str | None:
        """The reason why the deployed weights suffice; None if the new weights must be saved.

        The new weights are evaluated on the newest batch first, then on older batches. The
        evaluation stops as soon as the remaining batches cannot change the decision.
        """
        old = self._old / self._seen
        total = sum(count for _, count in self._batches)
        limit = old * total + round(self._bound * total)  # more correct answers: save
        right, unknown = Fraction(0), total
        for data, count in reversed(self._batches):
            if right > limit or right + unknown <= limit:
                break
            right += accuracy_of(self._evaluate, weights, data)[0] * count
            unknown -= count
        if right > limit:
            return None
        at_most = " at most" if unknown else ""
        return (
            f"{self.text}: the deployed version is right in {float(old):.4g} of cases, the "
            f"new one in{at_most} {float((right + unknown) / total):.4g}"
        )


class DriftDetector:
    """Detects drifts in the input data. Call ``drifted`` with every batch, in order.

    Raises NotInstalled without the package river.
    """

    def __init__(self, stage: DriftStage, monitor: Monitor | None) -> None:
        try:
            from river import drift
        except ImportError as error:
            raise NotInstalled(
                f"stage {stage.text} needs the package river", hint=how_to_install("drift")
            ) from error
        kinds = {"adwin": drift.ADWIN, "page-hinkley": drift.PageHinkley}
        self.text = stage.text
        self._detector: Any = kinds[stage.detector]()
        self._monitor = monitor or _input_means
        self._seen = array("d")  # the numbers read since the last drift

    def memory(self) -> dict[str, Any]:
        """The argument of ``restore`` in another process.

        The numbers are divided into parts. From one call to the next, most parts do not change.
        """
        seen = np.array(self._seen)
        return {f"watched.{i}": seen[i : i + _PART] for i in range(0, len(seen), _PART)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the detector from the numbers in the result of ``memory``."""
        for i in range(0, len(state) * _PART, _PART):
            for value in state.get(f"watched.{i}", ()):
                self._update(float(value))

    def _update(self, value: float) -> bool:
        self._detector.update(value)
        self._seen.append(value)
        is_drift = bool(self._detector.drift_detected)
        if is_drift:
            del self._seen[:]
        elif len(self._seen) > 2 * _REMEMBERED:
            del self._seen[:_REMEMBERED]
        return is_drift

    def drifted(self, data: Any) -> bool:
        """Whether a drift was detected in the batch.

        Raises WrongUsage if ``monitor`` does not return numbers.
        """
        watched: Any = self._monitor(data)
        # A tensor or array without dimensions is one number.
        several = isinstance(watched, Iterable) and not isinstance(watched, str | bytes)
        drifted = False
        for value in watched if several and getattr(watched, "ndim", None) != 0 else [watched]:
            watched_number = number_of(value)
            if watched_number is None:
                raise wrong_result("monitor", value, "a number, or one for each sample")
            if not np.isfinite(watched_number):
                raise WrongUsage(
                    f"the monitor of {self.text} returned {watched_number}, which is not a number"
                )
            drifted = self._update(watched_number) or drifted
        return drifted


def _input_means(data: Any) -> list[float]:
    """The mean of each input. ``data``: a pair (inputs, labels), or an array of inputs.

    Raises WrongUsage if the inputs are missing or are not numbers.
    """
    try:
        inputs = np.asarray(data[0] if is_sequence(data) else data, np.float64)
    except (TypeError, ValueError, RuntimeError, IndexError):
        raise WrongUsage(
            f"the inputs in data, of type {type(data).__name__}, are not numbers",
            hint="pass data=(inputs, labels), or a monitor that returns the numbers to watch",
        ) from None
    if not inputs.ndim or not inputs.size:
        raise WrongUsage("the data has no inputs to watch", hint="pass data=(inputs, labels)")
    means: list[float] = inputs.reshape(len(inputs), -1).mean(axis=1).tolist()
    return means
