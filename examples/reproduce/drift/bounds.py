"""How much accuracy production weights lose, and whether that is what their preset allows.

Production and training weights answer the same samples: a drop is the share of samples that only
the training weights have right, less the share that only the production weights have right. It is
measured three ways: on the next batch (prequential), on the last batch, where the drift has gone
furthest (asked after every fifth batch), and on the next batches' samples of one label, of which
the worst counts. Each has a 95 % confidence interval, from the spread between samples; a sample of
the last batch counts once, with its mean over the versions.

Nothing is committed: bytes are those that the coder makes of the deltas.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from mvc.errors import WrongUsage
from mvc.lossy.production import Production
from mvc.pipelines.group import encode_group
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.table import PRESETS

from ..experiment import Report, Row, argument, option
from ..render import SCHEMA, grid, notes
from ..workspace import Workspace, digest
from .commands import Drifts, streamed
from .measure import Scorer, State, digest_of
from .split import Experiment
from .stream import Sample, Stream

__all__ = ["MEASURES", "Bounds", "markdown"]

MEASURES = ("next", "target", "worst")
_NORMAL = statistics.NormalDist()
_EVERY = 5  # batches between two questions about the last one
_NAME = re.compile(r"[a-z]+-(0|0\.1|1)(-[a-z]+)?(\+guard)?")
_GUARD = "+guard"
_BEFORE_GUARD = ("sub", "xor", "steps", "lsb")

Right = NDArray[np.bool_]
_DEFAULT = tuple(name for name in PRESETS if _NAME.fullmatch(name))


@dataclass(frozen=True)
class Bounds:
    """Measure the accuracy that presets with a bound lose, on recorded trainings.

    PRESET+guard is a preset with the guard of its bound.
    """

    drifts: Drifts
    presets: tuple[str, ...] = argument(_DEFAULT, "[PRESET[+guard]...]")
    seeds: tuple[int, ...] = option((2, 102, 202), "Seeds of the trainings.", "N,N")

    def cases(self) -> Sequence[Experiment]:
        """Every training. Raises WrongUsage for what is no preset with a bound."""
        for name in self.presets:
            _line(name)
        settings = [replace(self.drifts.settings, seed=seed) for seed in self.seeds]
        return [e for own in settings for e in replace(self.drifts, settings=own).experiments()]

    def run(self, case: Experiment, place: Workspace) -> Row:
        stream = streamed(case, place)
        judge, found = _Judge(stream), []
        for name in self.presets:
            text, bound = _line(name)

            def measure(text: str = text) -> Mapping[str, Any]:
                return _replay(stream, Pipeline.parse(text), judge, place)

            kept = place.once(f"{case.name}/bounds-{digest(text, 12)}", measure)
            found.append({"name": name, "bound": bound, **kept})
        common = {name: case.parameters[name] for name in ("data", "model", "label", "seed")}
        return {"training": case.name, **common, "presets": found}

    def report(self, rows: Sequence[Row]) -> Report:
        datasets = list(dict.fromkeys((row["data"], row["model"]) for row in rows))
        tables = []
        for data, model in datasets:
            cells = [row for row in rows if (row["data"], row["model"]) == (data, model)]
            seeds, labels = (sorted({c[key] for c in cells}) for key in ("seed", "label"))
            common = {"data": data, "model": model, "labels": labels, "seeds": seeds}
            lines = [_summary(cells, preset) for preset in self.presets]
            tables.append({**common, "lines": [_compared(line, lines) for line in lines]})
        name = "-".join(["bounds", *dict.fromkeys(data for data, _ in datasets)])
        schema = {"schema": SCHEMA.format("drift"), "name": name}
        return {**schema, "bounds": tables, "trainings of the bounds": list(rows)}


def _line(name: str) -> tuple[str, float]:
    """The line of a preset, guarded or not, and its bound as a share."""
    bounded, preset = _NAME.fullmatch(name), name.removesuffix(_GUARD)
    if bounded is None or preset not in PRESETS:
        raise WrongUsage(f"{name} is no preset with a bound", hint=f"such as {_DEFAULT[0]}")
    bound = float(bounded[1]) / 100
    stages = PRESETS[preset].split(" | ")
    if preset != name:
        heads = [stage.partition(":")[0] for stage in stages]
        at = max(i for i, head in enumerate(heads) if head in _BEFORE_GUARD)
        stages.insert(at + 1, f"guard:{bound:g}")
    return " | ".join(stages), bound


class _Judge:
    """Says which samples weights have right; remembers what it said."""

    def __init__(self, stream: Stream) -> None:
        self._scorer = Scorer(stream)
        self._known: dict[bytes, Right] = {}

    def right(self, state: State, sample: Sample) -> Right:
        asked = blake3(digest_of(state)).update(sample[0].numpy().tobytes()).digest()
        if asked not in self._known:
            self._known[asked] = self._scorer.right(state, sample)
        return self._known[asked]


def _replay(stream: Stream, pipeline: Pipeline, judge: _Judge, place: Workspace) -> Row:
    engine, coding = Production(pipeline, evaluate=judge.right), pipeline.coding()
    live: State | None = None
    saved = size = 0
    drops: list[NDArray[np.int64]] = []
    labels: list[NDArray[np.int64]] = []
    last: list[NDArray[np.int64]] = []
    final = stream.batch(stream.experiment.plan.batches - 1)
    for version, state in stream.states():
        decision = engine.offer(state, loss=version.loss, data=stream.data(version))
        if decision.saved:
            size += 0 if live is None else _encoded(coding, decision.production, live)
            saved, live = saved + 1, decision.production
        if version.number and live is not None:
            following = stream.batch(version.number)
            drops.append(_lost(judge, state, live, following))
            labels.append(following[1].numpy())
            if version.number % _EVERY == 0:
                last.append(_lost(judge, state, live, final))
        place.progress(pipeline.text, version.number + 1, len(stream.versions))
    drop, label = np.concatenate(drops), np.concatenate(labels)
    by_label = {int(one): _mean(drop[label == one]) for one in np.unique(label)}
    worst = max(by_label, key=lambda one: by_label[one][0])
    return {
        "pipeline": pipeline.text,
        "saved": saved,
        "bytes": size,
        "next": _mean(drop),
        "target": _mean(np.mean(last, axis=0)),
        "worst": by_label[worst],
        "worst_label": worst,
        "labels": {str(one): values for one, values in by_label.items()},
    }


def _lost(judge: _Judge, training: State, production: State, sample: Sample) -> NDArray[np.int64]:
    """For every sample 1 if it is lost, -1 if it is won, else 0."""
    before, after = judge.right(training, sample), judge.right(production, sample)
    return before.astype(np.int64) - after.astype(np.int64)


def _mean(values: NDArray[Any]) -> tuple[float, float]:
    """The mean, and half the width of its 95 % confidence interval."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 1.0
    return float(np.mean(values)), 1.96 * spread / math.sqrt(len(values))


def _encoded(coding: Pipeline, new: State, base: State) -> int:
    pairs = [(_bytes(array), _bytes(base[name]), array.itemsize) for name, array in new.items()]
    if coding.scope == "group":
        return sum(map(len, encode_group(coding, pairs)))
    return sum(len(coding.encode_chunk(*pair)) for pair in pairs)


def _bytes(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _summary(cells: Sequence[Row], name: str) -> Row:
    """A preset over all trainings of a data set."""
    own = [next(p for p in cell["presets"] if p["name"] == name) for cell in cells]
    bound = own[0]["bound"]
    return {
        "name": name, "bound": bound, "trainings": len(own),
        "bytes": statistics.fmean(p["bytes"] for p in own),
        "saved": statistics.fmean(p["saved"] for p in own),
        **{measure: _kept([p[measure] for p in own], bound) for measure in MEASURES},
        "at_once": sum(_exceeded(p["labels"].values(), bound) for p in own),
    }  # fmt: skip


def _exceeded(drops: Collection[Sequence[float]], bound: float) -> bool:
    """Whether one is above the bound by more than an interval that holds for all at once."""
    wider = _NORMAL.inv_cdf(1 - 0.025 / len(drops)) / _NORMAL.inv_cdf(0.975)
    return any(drop - wider * interval > bound for drop, interval in drops)


def _compared(line: Row, lines: Sequence[Row]) -> Row:
    """With its share of bytes of the smallest preset of the thesis that never breaks the bound."""
    rivals = [
        rival["bytes"]
        for rival in lines
        if rival["name"].startswith("vsol-") and rival["bound"] == line["bound"]
        if not any(rival[measure]["broken"] for measure in MEASURES)
    ]
    return {**line, "of_vsol": line["bytes"] / min(rivals) if rivals and min(rivals) else None}


def _kept(drops: Sequence[Sequence[float]], bound: float) -> Row:
    """``kept``: the drop is within the bound. ``broken``: it is above it by more than the interval,
    ``twice``: by more than two of them.
    """
    return {
        "drop": statistics.fmean(drop for drop, _ in drops),
        "highest": max(drop for drop, _ in drops),
        "interval": statistics.fmean(interval for _, interval in drops),
        "kept": sum(drop <= bound for drop, _ in drops),
        "broken": sum(drop - interval > bound for drop, interval in drops),
        "twice": sum(drop - 2 * interval > bound for drop, interval in drops),
    }


_TITLES = (
    *("preset", "bound", "trainings", "versions", "deltas kB", "of vsol"),
    *(f"{name}: {what}" for name in MEASURES for what in ("drop", "kept", "broken")),
    "at once",
)


def markdown(report: Mapping[str, Any]) -> str:
    """A table for every data set."""
    return "\n".join([*_parts(report), notes(_NOTES)])


_NOTES = (
    "next, target, worst: drop in points of accuracy on the next batch, on the last batch, and of "
    "the worst label on the next batches; the mean over trainings, with the mean half-width of "
    "their 95 % confidence intervals.",
    "kept: trainings in which the drop is within the bound. broken: in which it is above the "
    "bound by more than its interval, and by more than twice that.",
    "at once: trainings in which a label is above the bound by more than an interval that holds "
    "for all labels at once.",
    "of vsol: bytes of deltas by those of the smallest `vsol` line of the same bound that is "
    "broken in no training of the table; empty if there is none.",
)


def _parts(report: Mapping[str, Any]) -> Iterator[str]:
    for table in report["bounds"]:
        labels, seeds = (", ".join(map(str, table[key])) for key in ("labels", "seeds"))
        yield f"## {table['model']} on {table['data']}\n\nLabels {labels}; seeds {seeds}.\n"
        yield grid(_TITLES, (_row(line) for line in table["lines"]))
        yield ""


def _row(line: Mapping[str, Any]) -> tuple[str, ...]:
    share = line["of_vsol"]
    return (
        *(line["name"], f"{100 * line['bound']:g}", str(line["trainings"])),
        *(f"{line['saved']:.4g}", f"{line['bytes'] / 1000:.4g}"),
        "" if share is None else f"{share:.3f}",
        *(text for measure in MEASURES for text in _measured(line[measure], line["trainings"])),
        str(line["at_once"]),
    )


def _measured(measure: Mapping[str, Any], count: int) -> tuple[str, str, str]:
    drop = f"{100 * measure['drop']:+.3f} ± {100 * measure['interval']:.3f}"
    return drop, f"{measure['kept']} of {count}", f"{measure['broken']}, {measure['twice']}"
