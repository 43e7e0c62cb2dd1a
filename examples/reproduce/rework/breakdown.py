"""What the stages of LC save, what each bucket holds, and what it is worth to the loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mvc.errors import WrongUsage
from mvc.lossy.lc.payload import encode_steps
from mvc.lossy.lc.step import Addition
from mvc.pipelines.pipeline import Pipeline

from .schemes import Lossy
from .training import Experiment, Training, Vector

__all__ = ["bucket_errors", "exponents", "finite", "sizes"]

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
    pipelines = {
        (x, coder): Pipeline.parse(f"expq | promote:{x} | {coder}")
        for x in _PROMOTIONS
        for coder in _CODERS
    }
    start = training.state["weights"]
    schemes = {x: Lossy(pipelines[x, "huffman"], "weights", start) for x in _PROMOTIONS}
    rows: dict[int, list[dict[str, float]]] = {x: [] for x in _PROMOTIONS}
    while training.iteration < experiment.workload.window[1]:
        training.step()
        weights = training.state["weights"]
        for x in _PROMOTIONS:
            buckets = np.unique(_buckets(weights - schemes[x].saved)).size
            step = finite(schemes[x].step(weights), experiment)
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


def finite(step: Addition | None, experiment: Experiment) -> Addition:
    """The step; WrongUsage if there is none, because weights are infinite or no numbers."""
    if step is None:
        raise WrongUsage(f"{experiment.workload.title} diverges with this optimizer")
    return step


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


def exponents(experiment: Experiment, seed: int = 0) -> Iterator[Mapping[str, Any]]:
    """For the first and the last iteration with a failure: entries by the exponent of their change.

    Of the last convolution's kernel, or of all weights if there is none. ``counts`` are of the
    change to what is saved, ``kept`` of what three bits of promotion leave of it, ``zeros`` those
    that it leaves out. Exponents are unbiased, the largest first.
    """
    training = Training(experiment, seed)
    part = _last_kernel(training)
    scheme = Lossy(
        Pipeline.parse("expq | promote:3 | huffman"), "weights", training.state["weights"]
    )
    first, last = experiment.workload.window
    while training.iteration < last:
        training.step()
        weights, before = training.state["weights"], scheme.saved.copy()
        scheme.save(weights)
        if training.iteration in (first, last):
            counts, kept = (
                np.bincount(_buckets(change[part]) >> 1, minlength=256)
                for change in (weights - before, scheme.saved - before)
            )
            shown = np.flatnonzero(counts[1:])[::-1] + 1
            yield {
                "iteration": training.iteration,
                "exponents": (shown - 127).tolist(),
                "counts": counts[shown].tolist(),
                "kept": kept[shown].tolist(),
                "zeros": int(kept[0]),
            }


def _last_kernel(training: Training) -> slice:
    """Where the last convolution's kernel lies in the vector of weights."""
    part, start = slice(None), 0
    for parameter in training.model.parameters():
        end = start + parameter.numel()
        if parameter.dim() == 4:
            part = slice(start, end)
        start = end
    return part
