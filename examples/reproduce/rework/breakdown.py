"""What the stages of LC save, and what each bucket is worth to the loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mvc.errors import WrongUsage
from mvc.lossy.lc.payload import encode_steps
from mvc.lossy.lc.quantise import quantise
from mvc.pipelines.pipeline import Pipeline

from .training import Experiment, Training, Vector

__all__ = ["bucket_errors", "sizes"]

_PROMOTIONS = (1, 2, 3)
_CODERS = ("huffman", "packed", "ans")
_BITS = 32
_SPANS = (10, 20, 30, 40, 50, 60)
_SHOWN = 10


def sizes(experiment: Experiment, seed: int = 0) -> Iterator[Mapping[str, Any]]:
    """For x of 1 to 3: shares of a full checkpoint, mean and largest over one training.

    The training goes as far as the last iteration in which a failure can happen. E and E+P are
    the paper's formulas, with whole bits; the others are encoded bytes.
    """
    training = Training(experiment, seed)
    start = training.state["weights"]
    saved = {x: start.copy() for x in _PROMOTIONS}
    pipelines = {
        (x, coder): Pipeline.parse(f"expq | promote:{x} | {coder}")
        for x in _PROMOTIONS
        for coder in _CODERS
    }
    rows: dict[int, list[dict[str, float]]] = {x: [] for x in _PROMOTIONS}
    while training.iteration < experiment.workload.window[1]:
        training.step()
        weights = training.state["weights"]
        for x in _PROMOTIONS:
            buckets = np.unique(_buckets(weights - saved[x])).size
            before, after = ((each.data.cast("B"), "float32") for each in (saved[x], weights))
            (step,) = quantise(pipelines[x, "huffman"], [before], [after])
            if step is None:
                raise WrongUsage(f"{experiment.workload.title} diverges with this optimizer")
            step.apply(before[0])
            counts = np.bincount(step.symbols)
            rates = counts[counts > 0] / weights.size
            shares = {"buckets": float(buckets), **_formulas(buckets, x, weights)}
            for coder in _CODERS:
                parts = encode_steps(pipelines[x, coder], [step])
                name = "E+P+H" if coder == "huffman" else coder
                shares[name] = sum(map(len, parts)) / weights.nbytes
            shares["entropy"] = float(-(rates * np.log2(rates)).sum()) / _BITS
            rows[x].append(shares)
    for x, measured in rows.items():
        line: dict[str, Any] = {"x": x}
        for name in measured[0]:
            values = [each[name] for each in measured]
            mean = float(np.mean(values))
            line[name] = mean if name == "buckets" else [mean, max(values)]
        yield line


def _formulas(buckets: int, x: int, weights: Vector) -> dict[str, float]:
    bits = weights.size * _BITS
    exponents = weights.size * math.ceil(math.log2(max(2, buckets))) + buckets * _BITS
    promoted = weights.size * x + (2**x - 1) * _BITS
    return {"E": exponents / bits, "E+P": promoted / bits}


def _buckets(change: Vector) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Numbers that are larger for larger exponents, for positive before negative; 0: no change."""
    words = change.view(np.uint32)
    exponents = (words >> 23 & 0xFF).astype(np.int64)
    return np.where(exponents > 0, 2 * exponents + 1 - (words >> 31), 0)


def bucket_errors(experiment: Experiment, seed: int = 0) -> Iterator[Mapping[str, Any]]:
    """For m of 10 to 60: the relative error of the loss without each of the ten top buckets.

    The change of m iterations begins at the first iteration in which a failure can happen.
    """
    training = Training(experiment, seed)
    while training.iteration < experiment.workload.window[0]:
        training.step()
    start = training.state
    for span in _SPANS:
        while training.iteration < experiment.workload.window[0] + span:
            training.step()
        state = training.state
        truth, iteration = training.loss(), training.iteration
        change = state["weights"] - start["weights"]
        buckets = _buckets(change)
        errors, counts = [], []
        for bucket in np.unique(buckets[buckets > 0])[::-1][:_SHOWN]:
            left_out = np.where(buckets == bucket, start["weights"], state["weights"])
            training.restore(iteration, {**state, "weights": left_out})
            errors.append(abs(truth - training.loss()) / truth)
            counts.append(int((buckets == bucket).sum()))
        training.restore(iteration, state)
        yield {"m": span, "errors": errors, "counts": counts}
