"""A cache of Huffman codes, as in section 3.2 of the paper, beside a code made anew each time.

The cache has one list of word lengths for each number of buckets. A step takes the list of its
number, and gives its symbols these lengths in the order of how often they occur, so it must store
that order in place of the lengths.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mvc.lossy.lc.coders.huffman import Lengths, encode, lengths_of
from mvc.pipelines.pipeline import Pipeline

from .breakdown import finite
from .schemes import Lossy
from .training import Experiment, Training

__all__ = ["tables"]

_PROMOTIONS = (1, 2, 3, 4)
_REPEATS = 5


def tables(experiment: Experiment, seed: int = 0) -> Iterator[Mapping[str, Any]]:
    """For x of 1 to 4, means over the checkpoints of one training.

    ``rebuilt``, ``cached``: bytes of the symbols under both codes, without the table. ``larger``:
    the most by which a checkpoint's are larger under the cached one. ``table``: bytes of the word
    lengths. ``order``: of the order. ``reused``: the share of checkpoints for which the cache had
    a list. ``build``: the share of the coder's processor time that making the code takes.
    """
    for x in _PROMOTIONS:
        rows = list(_checkpoints(experiment, seed, x))
        means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        worst = max(row["cached"] / row["rebuilt"] - 1 for row in rows)
        yield {"x": x, **means, "larger": worst}


def _checkpoints(experiment: Experiment, seed: int, x: int) -> Iterator[dict[str, float]]:
    training = Training(experiment, seed)
    cache: dict[int, Lengths] = {}
    scheme = Lossy(
        Pipeline.parse(f"expq | promote:{x} | huffman"), "weights", training.state["weights"]
    )
    while training.iteration < experiment.workload.window[1]:
        training.step()
        step = finite(scheme.step(training.state["weights"]), experiment)
        counts = np.bincount(step.symbols)
        occurring = np.sort(counts[counts > 0])[::-1]
        lengths = np.sort(lengths_of(occurring))
        reused = len(occurring) in cache
        known = cache.setdefault(len(occurring), lengths)
        yield {
            "rebuilt": int(lengths @ occurring) / 8,
            "cached": int(known @ occurring) / 8,
            "table": -(-len(counts) // 2),
            "order": float(np.ceil(np.log2(np.arange(1, len(occurring) + 1)).sum() / 8)),
            "reused": float(reused),
            "build": _seconds(lengths_of, counts) / _seconds(encode, step.symbols, 1 << x),
        }


def _seconds(call: Callable[..., object], *arguments: object) -> float:
    """The least processor time of some calls."""
    times = []
    for _ in range(_REPEATS):
        begun = time.thread_time()
        call(*arguments)
        times.append(time.thread_time() - begun)
    return min(times)
