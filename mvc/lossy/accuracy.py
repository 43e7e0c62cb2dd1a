"""How many samples of a batch the weights of a model classify correctly.

The caller passes a function ``evaluate(weights, batch)``. This module calls the function, and
checks and converts its results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mvc.errors import WrongUsage

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
Answer: TypeAlias = float | tuple[float, int] | NDArray[np.bool_]
Evaluate: TypeAlias = Callable[[Arrays, Any], Answer]

_WANTED = (
    "an accuracy from 0 to 1, a tuple (accuracy, number of samples), or an array with the "
    "correctness of each sample"
)


def accuracy_of(evaluate: Evaluate, state: Arrays, data: Any) -> tuple[Fraction, int]:
    """The accuracy of weights on a batch, and the batch's number of samples. Raises WrongUsage."""
    answer = evaluate(state, data)
    if (right := _by_sample(answer)) is not None:
        return Fraction(int(right.sum()), len(right)), len(right)
    pair = answer if isinstance(answer, tuple) else (answer, None)
    value = number_of(pair[0]) if len(pair) == 2 else None
    if value is None or (pair is answer and not hasattr(pair[1], "__index__")):
        raise wrong_result("evaluate", answer, _WANTED)
    count = sample_count(data) if pair[1] is None else int(pair[1])
    if not 0 <= value <= 1 or count < 1:
        raise WrongUsage(
            f"evaluate returned an accuracy of {value:g} on {count} samples",
            hint="the accuracy must be from 0 to 1, on at least one sample",
        )
    # A float is not exact: an accuracy of 0.33333333 on 3 samples means exactly one sample.
    right_count = round(value * count)
    near = abs(value * count - right_count) < 1e-6 * max(1, right_count)
    return (Fraction(right_count, count) if near else Fraction(value)), count


def right_of(
    evaluate: Evaluate, state: Arrays, batch: LabelledBatch, *, last: bool = False
) -> NDArray[np.bool_]:
    """Which samples of a batch the weights classify correctly.

    If ``evaluate`` returns only an accuracy, it is called once for each label. If the accuracy says
    that k samples of the label are correct, the first k samples count as correct; with ``last``,
    the last k. To compare two models, pass ``last`` for one model: the two results then differ in
    the largest number of samples that the two accuracies permit.
    """
    if not len(batch):
        return np.zeros(0, np.bool_)
    right = _by_sample(evaluate(state, (batch.inputs, batch.labels)))
    if right is not None:
        if len(right) != len(batch):
            raise WrongUsage(f"evaluate returned {len(right)} results for {len(batch)} samples")
        return right
    right = np.zeros(len(batch), np.bool_)
    for rows in batch.by_label().values():
        part = batch.rows(rows)
        accuracy, count = accuracy_of(evaluate, state, (part.inputs, part.labels))
        if count != len(rows):
            raise WrongUsage(f"evaluate counted {count} samples, but got {len(rows)}")
        right[rows[:: -1 if last else 1][: round(accuracy * count)]] = True
    return right


class LabelledBatch:
    """A batch of inputs, with one label for each input. ``keys``: the labels as text.

    Inputs and labels are tensors, arrays or lists.
    """

    def __init__(self, inputs: Any, labels: Any) -> None:
        """Raises WrongUsage if inputs and labels differ in length, or labels have several
        dimensions.
        """
        self.inputs, self.labels = inputs, labels
        values = labels.tolist() if hasattr(labels, "tolist") else labels
        plain = isinstance(values, list | tuple) and not any(
            isinstance(value, list | tuple) for value in values
        )
        same = False
        with suppress(TypeError):
            same = len(inputs) == len(values)
        if not plain or not same or not (_has_rows(inputs) and _has_rows(labels)):
            raise WrongUsage(
                "the batch must have one label for each input",
                hint="pass data=(inputs, labels), both tensors, arrays or lists of one length",
            )
        self.keys: list[str] = [str(value) for value in values]

    @classmethod
    def of(cls, data: Any) -> LabelledBatch:
        """A batch from a pair (inputs, labels). Raises WrongUsage for any other data."""
        sample_count(data)
        return cls(data[0], data[1])

    def __len__(self) -> int:
        return len(self.keys)

    def by_label(self) -> dict[str, NDArray[np.int64]]:
        """Maps each label to the positions of its samples."""
        groups: dict[str, list[int]] = {}
        for row, key in enumerate(self.keys):
            groups.setdefault(key, []).append(row)
        return {key: np.array(rows, np.int64) for key, rows in groups.items()}

    def rows(self, rows: NDArray[np.integer]) -> LabelledBatch:
        """A copy of the samples at the positions ``rows``. A position may occur more than once."""
        return LabelledBatch(_rows(self.inputs, rows), _rows(self.labels, rows))

    def followed_by(self, other: LabelledBatch) -> LabelledBatch:
        """A batch of these samples, followed by the samples of ``other``.

        The two batches must have the same form and be on the same device.
        """
        pairs = ((self.inputs, other.inputs), (self.labels, other.labels))
        return LabelledBatch(*(_joined(one, two) for one, two in pairs))

    def on_device_of(self, other: LabelledBatch) -> LabelledBatch:
        """A batch of these samples on the device of ``other``."""
        pairs = ((self.inputs, other.inputs), (self.labels, other.labels))
        return LabelledBatch(*(_moved(own_values, target) for own_values, target in pairs))

    def like(self, other: LabelledBatch) -> bool:
        """Whether samples of the two batches have the same type, shape and dtype."""
        pairs = ((self.inputs, other.inputs), (self.labels, other.labels))
        return all(_form(one) == _form(two) for one, two in pairs)


def _has_rows(values: Any) -> bool:
    return isinstance(values, list | tuple) or (hasattr(values, "dtype") and values.ndim > 0)


def _rows(values: Any, rows: NDArray[np.integer]) -> Any:
    if isinstance(values, list | tuple):
        return [values[row] for row in rows]
    # Without detach, the copy would keep the computation graph of torch in memory.
    return values.detach()[rows] if hasattr(values, "detach") else values[rows]


def _joined(values: Any, more: Any) -> Any:
    if isinstance(values, list | tuple):
        return [*values, *more]
    if not hasattr(values, "detach"):
        return np.concatenate((values, more))
    import torch

    return torch.cat((values, more.detach()))


def _moved(values: Any, target: Any) -> Any:
    device = getattr(target, "device", None)
    if type(values) is not type(target) or not hasattr(values, "to") or values.device == device:
        return values
    return values.to(device)


def _form(values: Any) -> tuple[object, ...]:
    if isinstance(values, list | tuple):
        return (list,)
    return type(values), tuple(values.shape[1:]), str(values.dtype)


def _by_sample(answer: object) -> NDArray[np.bool_] | None:
    """The result for each sample. None if ``answer`` is not an array with one dimension."""
    if getattr(answer, "ndim", 0) != 1:
        return None
    values: Any = answer
    flags = np.zeros(0)
    with suppress(TypeError, ValueError, RuntimeError):
        flags = np.array(values.tolist(), np.float64)
    if not len(flags) or not np.isin(flags, (0, 1)).all():
        raise wrong_result("evaluate", answer, _WANTED)
    return flags.astype(np.bool_)


def sample_count(data: Any) -> int:
    """The number of samples in a pair (inputs, labels). Raises WrongUsage for any other data."""
    if is_sequence(data) and len(data) == 2:
        with suppress(TypeError):
            return len(data[1])
    raise WrongUsage(
        "the number of samples of a batch is unknown",
        hint="pass data=(inputs, labels), or return (accuracy, samples) from evaluate",
    )


def is_sequence(data: Any) -> bool:
    """Whether ``data`` is a sequence, but not a text."""
    return isinstance(data, Sequence) and not isinstance(data, str | bytes)


def number_of(value: Any) -> float | None:
    """Converts a number, or a tensor or array with one entry, to a float. None if impossible."""
    if isinstance(value, str | bytes):  # float() would parse these
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def wrong_result(function: str, value: Any, wanted: str) -> WrongUsage:
    """The error if ``function`` returned ``value``. ``wanted``: the right result, in words."""
    kind = type(value).__name__
    if isinstance(value, tuple):
        kind += f" ({', '.join(type(part).__name__ for part in value[:4])})"
    return WrongUsage(
        f"{function} returned an object of type {kind}: it must return {wanted}",
        hint=f"has {function} a return statement?" if value is None else None,
    )
