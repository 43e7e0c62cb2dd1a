"""What it costs that weights are deployed late (section 6.3.3 of the thesis).

Prequential accuracy halts time: a batch is not classified before the weights that learned from
the one before it are live. Here time goes on. Batches come one after the other, their samples
evenly spread, and a sample is classified by the weights that are live when it comes. A batch is
learned from once its last sample has come and once the batch before it is learned and saved. The
new weights are live when they are saved, or, where a program deploys first, when the lossy stages
are through.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mvc import Repository
from mvc.errors import WrongUsage
from mvc.lossy.production import Production
from mvc.pipelines.pipeline import Pipeline

from ..experiment import Report, Row, argument, option
from ..render import SCHEMA
from ..workspace import Workspace, digest
from .commands import Drifts, PipelineCase, streamed
from .measure import Scorer, State, expanded
from .stream import Stream

__all__ = ["LAGS", "Delays", "Timed", "lags"]

LAGS = 4
"""Batches by which weights may be late; a program that is later than that falls behind."""

Values = Mapping[str, Any]
_DELAYS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Timed:
    """Seconds of each version after the first: to learn it, to process it, to save it."""

    learn: Sequence[float]
    process: Sequence[float]
    save: Sequence[float]

    def live(self, pace: float, *, early: bool) -> Iterator[float]:
        """When each version is live, if a batch is whole every ``pace`` seconds, from 0 on.

        ``early``: when it is processed, not when it is saved.
        """
        free = 0.0
        for number, (learn, process, save) in enumerate(
            zip(self.learn, self.process, self.save, strict=True), start=1
        ):
            processed = max(number * pace, free) + learn + process
            free = processed + save
            yield processed if early else free


def lags(live: Sequence[float], pace: float) -> NDArray[np.float64] | None:
    """For each batch after the first, the share of its samples by how late their weights are.

    A column for each number of batches, 0 to ``LAGS``; None if some weights are later.
    """
    shares = np.zeros((len(live), LAGS + 1))
    times = [0.0, *live]  # the offline weights are live from the start
    for batch in range(1, len(times)):
        begin, end = batch * pace, (batch + 1) * pace
        for version in range(batch, -1, -1):
            since = max(begin, times[version])
            if since < end:
                if batch - version > LAGS:
                    return None
                shares[batch - 1, batch - version] = (end - since) / pace
                end = since
            if end <= begin:
                break
    return shares


@dataclass(frozen=True)
class Delays:
    """Measure what late deployment costs, in a stream that does not wait for it.

    PIPELINEs are lines or presets; by default lossless, vsol-0-slow and frontier-0.
    """

    drifts: Drifts
    pipelines: tuple[str, ...] = argument(("lossless", "vsol-0-slow", "frontier-0"), "PIPELINE...")
    paces: tuple[float, ...] = option(
        (1.25, 1.5, 2.0, 4.0, 16.0),
        "Time between two batches, in multiples of the mean time to learn from one.",
        "N,N",
    )

    def cases(self) -> Sequence[PipelineCase]:
        """Every pipeline on every training."""
        if not self.paces or min(self.paces) <= 0:
            raise WrongUsage("a pace is a multiple of the time to learn: it must be above 0")
        return self.drifts.cases(self.pipelines)

    def run(self, case: PipelineCase, place: Workspace) -> Row:
        """Accuracies with time halted, by a fixed delay, and by pace."""
        stream = streamed(case.experiment, place)
        text = expanded(case.pipeline)
        key = f"{case.experiment.name}/delay-{digest(text, 12)}"
        known = place.once(key, lambda: _replayed(stream, text, place))
        timed = Timed(*(known[name] for name in ("learn", "process", "save")))
        learn = fmean(timed.learn)
        return {
            "training": case.experiment.name,
            "pipeline": case.pipeline,
            "label": case.experiment.label,
            **{name: fmean(known[name]) for name in ("learn", "process", "save")},
            "delays": [
                {"batches": delay, **_wrong(known, _constant(delay, len(timed.learn)))}
                for delay in _DELAYS
            ],
            "paces": [
                {
                    "pace": pace,
                    **{
                        name: _wrong(
                            known, lags([*timed.live(pace * learn, early=early)], pace * learn)
                        )
                        for name, early in (("processed", True), ("saved", False))
                    },
                }
                for pace in self.paces
            ],
        }

    def report(self, rows: Sequence[Row]) -> Report:
        return {"schema": SCHEMA.format("drift"), "name": "delay", "late": list(rows)}


def _wrong(known: Values, shares: NDArray[np.float64] | None) -> dict[str, float | None]:
    """The share of samples that are misclassified: of all, and of the drifting label.

    ``shares`` of the lags of each batch; None if the weights fall behind.
    """
    return {
        name: None
        if shares is None
        else 1 - float((np.asarray(right) * shares).sum()) / sum(known["counts"][name])
        for name, right in known["right"].items()
    }


def _constant(delay: float, batches: int) -> NDArray[np.float64]:
    """The shares of each lag if all weights are live ``delay`` batches late.

    No weights are older than the offline ones.
    """
    shares = np.zeros((batches, LAGS + 1))
    for row in range(batches):
        for lag, part in ((int(delay), 1 - delay % 1), (math.ceil(delay), delay % 1)):
            shares[row, min(lag, row + 1)] += part
    return shares


def _replayed(stream: Stream, text: str, place: Workspace) -> Values:
    """Seconds of every version, and what each has right of the batches that it may be live for."""
    scorer, label = Scorer(stream), stream.experiment.label
    live, seconds = _saved(stream, Pipeline.parse(text), scorer, place)
    batches = [stream.batch(number) for number in range(1, len(live))]
    drifted = [np.asarray(labels) == label for _, labels in batches]
    right = {name: np.zeros((len(batches), LAGS + 1), int) for name in ("all", "label")}
    for number, weights in enumerate(live):
        for lag in range(LAGS + 1):
            batch = number + lag - 1  # of those that are scored: the first is the second online one
            if 0 <= batch < len(batches):
                hits = scorer.right(weights, batches[batch])
                right["all"][batch, lag] = hits.sum()
                right["label"][batch, lag] = hits[drifted[batch]].sum()
        place.progress("accuracy", number + 1, len(live))
    return {
        "right": {name: values.tolist() for name, values in right.items()},
        "counts": {
            "all": [len(labels) for _, labels in batches],
            "label": [int(own.sum()) for own in drifted],
        },
        **seconds,
    }


def _saved(
    stream: Stream, pipeline: Pipeline, scorer: Scorer, place: Workspace
) -> tuple[list[State], dict[str, list[float]]]:
    """The production weights of every version; seconds of each but the first, step by step."""
    engine, coding = Production(pipeline, evaluate=scorer.accuracy), pipeline.coding().text
    seconds: dict[str, list[float]] = {"learn": [], "process": [], "save": []}
    live: list[State] = []
    with place.empty(f"{stream.experiment.name}/delay") as folder:
        Repository.init(folder).close()
        with Repository.open(folder, discover=False) as repo:
            for version in stream.versions:
                state, data = stream.state(version), stream.data(version)
                begun = time.perf_counter()
                decision = engine.offer(state, loss=version.loss, data=data)
                processed = time.perf_counter()
                if decision.saved:
                    repo.commit(decision.production, pipeline=coding)
                saved = time.perf_counter()
                live.append(decision.production)
                if version.number:
                    seconds["learn"].append(version.seconds)
                    seconds["process"].append(processed - begun)
                    seconds["save"].append(saved - processed)
                place.progress("saving", version.number + 1, len(stream.versions))
    return live, seconds
