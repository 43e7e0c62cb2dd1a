"""DSED: a version is skipped while the deployed one is still good enough (thesis §3.2).

Given the labelled batches since the last save, the bound E, and the number n of samples that the
new weights are evaluated on, a version is skipped if and only if

    mean accuracy of the deployed weights, batch by batch  +  round(E n) / n
        >=  accuracy of the new weights on all these batches together

so a tie skips. With ``last`` the new weights are evaluated on the newest batch alone. The deployed
weights are evaluated once on every batch. Numbers are exact fractions, so that ties are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

from numpy.typing import NDArray

from mvc.codecs.stages.decisions import Dsed
from mvc.errors import WrongUsage
from mvc.training.lossy.callbacks import number_from, wrong_result

__all__ = ["ErrorDecay", "Evaluate", "sample_count"]

Evaluate: TypeAlias = Callable[[Mapping[str, NDArray[Any]], Any], float | tuple[float, int]]

_ANSWER = "an accuracy from 0 to 1, or a tuple (accuracy, number of samples)"


class ErrorDecay:
    """Remembers the batches since the last save; with ``last`` only the newest.

    Raises WrongUsage without ``evaluate``.
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
        """Forgets the batches before a version that was saved."""
        self._old = Fraction(0)
        self._seen = 0
        self._batches: list[tuple[Any, int]] = []

    def saw(self, live: Mapping[str, NDArray[Any]], data: Any) -> None:
        """Evaluates the deployed weights on a new labelled batch."""
        accuracy, count = self._accuracy(live, data)
        self._old += accuracy
        self._seen += 1
        if self._last_only:
            self._batches.clear()
        self._batches.append((data, count))

    def good_enough(self, made: Mapping[str, NDArray[Any]]) -> str | None:
        """The reason why the deployed weights suffice; None if the new ones are to be saved.

        The new weights are evaluated on the newest batch first, and only until no further batch
        can change the decision.
        """
        old = self._old / self._seen
        total = sum(count for _, count in self._batches)
        enough = old * total + round(self._bound * total)  # with more correct answers it is saved
        right, unknown = Fraction(0), total
        for data, count in reversed(self._batches):
            if right > enough or right + unknown <= enough:
                break
            right += self._accuracy(made, data)[0] * count
            unknown -= count
        if right > enough:
            return None
        most = " at most" if unknown else ""
        return (
            f"{self.text}: the deployed version is right in {float(old):.4g} of cases, "
            f"the new one in{most} {float((right + unknown) / total):.4g}"
        )

    def _accuracy(self, state: Mapping[str, NDArray[Any]], data: Any) -> tuple[Fraction, int]:
        found = self._evaluate(state, data)
        pair = found if isinstance(found, tuple) else (found, None)
        value = number_from(pair[0]) if len(pair) == 2 else None
        if value is None or (pair is found and not hasattr(pair[1], "__index__")):
            raise wrong_result("evaluate", found, _ANSWER)
        count = sample_count(data) if pair[1] is None else int(pair[1])
        if not 0 <= value <= 1 or count < 1:
            raise WrongUsage(
                f"evaluate gave an accuracy of {value:g} on {count} samples",
                hint="it is a share from 0 to 1, on at least one sample",
            )
        right = round(value * count)
        near = abs(value * count - right) < 1e-6 * max(1, right)
        return (Fraction(right, count) if near else Fraction(value)), count


def sample_count(data: Any) -> int:
    """Number of samples in a pair (inputs, labels); raises WrongUsage for any other batch."""
    if isinstance(data, Sequence) and not isinstance(data, str | bytes) and len(data) == 2:
        try:
            return len(data[1])
        except TypeError:
            pass
    raise WrongUsage(
        "the number of samples of a batch is not known",
        hint="pass data=(inputs, labels), or have evaluate return (accuracy, samples)",
    )
