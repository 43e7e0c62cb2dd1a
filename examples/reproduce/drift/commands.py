"""The commands: the split, trainings, pipelines on them, tables of the thesis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch

from mvc.errors import InvalidPipeline, NotInstalled, WrongUsage
from mvc.pipelines.pipeline import Pipeline

from ..data import Dataset, load_data
from ..experiment import Report, Row, argument, option
from ..networks import tensors_of
from ..render import SCHEMA
from ..workspace import Workspace, named
from . import comparison, measure
from .split import Experiment, Settings, experiments
from .stream import Sample, Stream, record
from .thesis import CURVES, LEARNING, MEASURED, Configuration
from .thesis import Row as ThesisRow
from .thesis import Table as ThesisTable

__all__ = ["NUMBERS", "Accuracy", "Pipelines", "Split", "Table", "Trainings"]

NUMBERS = tuple(f"4.{n}" for n in range(3, 27))
"""The numbers of the tables that can be made."""

_SCHEMA = {"schema": SCHEMA.format("drift")}
_AT_ONCE = 512  # samples that a network is asked about


class PipelineCase(NamedTuple):
    """A pipeline on a training."""

    name: str
    experiment: Experiment
    pipeline: str


@dataclass(frozen=True)
class Drifts:
    """Which labels of which data drift in, and how trainings are set up."""

    settings: Settings
    data: tuple[Path, ...] = option(
        (),
        "A folder of IDX files or a file of JSON lines; for both networks of the thesis one of "
        "each. Default: scikit-learn's digits.",
        "PATH",
    )
    label_field: str = option("label", "Where JSON lines have the label.", "NAME")
    text_field: tuple[str, ...] = option(
        ("text",), "Where they have the text; several, with commas, are joined.", "NAMES"
    )
    classes: tuple[str, ...] = option(
        (), "Labels of the texts to tell apart. Default: the ten largest by topic.", "NAMES"
    )
    labels: tuple[int, ...] = option((0, 1), "Which labels drift in, one run for each.", "N,N")

    @cached_property
    def datasets(self) -> list[Dataset]:
        """All data, in the order of the call."""
        return [
            load_data(
                source,
                label_field=self.label_field,
                text_fields=self.text_field,
                classes=self.classes,
            )
            for source in self.data or (None,)
        ]

    def experiments(self) -> list[Experiment]:
        """Every label of every data set under the settings of the call."""
        if self.settings.model is not None and len(self.datasets) > 1:
            raise WrongUsage("--model is for one data set; with several each gets its own")
        return [
            each for data in self.datasets for each in experiments(data, self.settings, self.labels)
        ]

    def cases(self, pipelines: Sequence[str]) -> list[PipelineCase]:
        """Every pipeline, a line or a preset, on every training."""
        for text in pipelines:
            Pipeline.parse(text)
        return [
            PipelineCase(f"{text} on {experiment.name}", experiment, text)
            for experiment in self.experiments()
            for text in pipelines
        ]


def streamed(experiment: Experiment, place: Workspace) -> Stream:
    """The recorded training; trained if it is not recorded yet."""
    progress = named(place.progress, experiment.name)
    folder = place.folder / "streams" / experiment.name
    return place.opened(folder, lambda folder: record(experiment, folder, progress))


@dataclass(frozen=True)
class Split:
    """Print how data are split, without training."""

    drifts: Drifts

    def cases(self) -> Sequence[Experiment]:
        return self.drifts.experiments()

    def run(self, case: Experiment, place: Workspace) -> Row:  # noqa: ARG002
        """The parameters, their bounds, and how many samples go where."""
        plan = case.plan
        counts = ("drifting_online", "others_online", "drifting_offline", "others_offline")
        return {
            **case.parameters,
            "most_batches": plan.max_batches,
            "most_seen": float(plan.max_seen),
            "most_offline": float(plan.max_offline),
            **{name: getattr(plan, name) for name in counts},
            "per_batch": list(plan.per_batch),
        }

    def report(self, rows: Sequence[Row]) -> Report:
        return {**_SCHEMA, "name": "split", "splits": list(rows)}


@dataclass(frozen=True)
class Trainings:
    """Record the trainings: offline, then batch after batch."""

    drifts: Drifts

    def cases(self) -> Sequence[Experiment]:
        return self.drifts.experiments()

    def run(self, case: Experiment, place: Workspace) -> Row:
        """What a training came to, by samples that no training has seen."""
        stream = streamed(case, place)
        scorer, samples = measure.Scorer(stream), _held_out(stream)
        ends = [stream.state(stream.versions[number]) for number in (0, -1)]
        offline, online = (_share_right(scorer, state, samples) for state in ends)
        labels = torch.cat([labels for _, labels in samples])
        return {
            "training": case.name,
            "versions": len(stream.versions),
            "held out": len(labels),
            "of the label": int((labels == case.label).sum()),
            "offline": offline,
            "next batch": measure.lossless(stream, place).prequential,
            "online": online,
            "s a batch": fmean(measure.learning(stream)),
        }

    def report(self, rows: Sequence[Row]) -> Report:
        return {**_SCHEMA, "name": "trainings", "trainings": list(rows)}


def _held_out(stream: Stream) -> list[Sample]:
    """What no training has seen: the last batch, and what the split leaves over."""
    experiment = stream.experiment
    drift, count = experiment.drift, len(experiment.data.labels)
    rows = np.setdiff1d(np.arange(count), np.concatenate([drift.offline, *drift.online[:-1]]))
    parts = (rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE))
    return [tensors_of(experiment.data, part) for part in parts]


def _share_right(scorer: measure.Scorer, state: measure.State, samples: Sequence[Sample]) -> float:
    """The share of all ``samples`` that the weights have right."""
    right = sum(scorer.accuracy(state, each) * len(each[1]) for each in samples)
    return right / sum(len(labels) for _, labels in samples)


@dataclass(frozen=True)
class Accuracy:
    """Draw how accuracy follows the drift, for every label."""

    drifts: Drifts

    def cases(self) -> Sequence[Experiment]:
        return self.drifts.experiments()

    def run(self, case: Experiment, place: Workspace) -> Row:
        curve = measure.lossless(streamed(case, place), place).last
        return {"training": case.name, "curve": list(curve)}

    def report(self, rows: Sequence[Row]) -> Report:
        return {**_SCHEMA, "name": "drift", "curves": list(rows)}


class _Row(NamedTuple):
    name: str
    configuration: Configuration


class Comparison:
    """A table whose rows are pipelines, on all recorded trainings of a call."""

    def __init__(self, table: ThesisTable, experiments: Sequence[Experiment]) -> None:
        self.table, self.experiments = table, experiments

    def cases(self) -> list[_Row]:
        """One for each row."""
        return [_Row(name, each) for name, each in comparison.wanted(self.table).items()]

    def run(self, case: _Row, place: Workspace) -> Row:
        """By network the figures of each label; or why there are none."""
        figures: dict[str, list[Any]] = {}
        try:
            for experiment in self.experiments:
                stream = streamed(experiment, place)
                measured = measure.measured(stream, case.configuration, place)
                figures.setdefault(comparison.role_of(experiment), []).append(measured)
        except (InvalidPipeline, NotInstalled) as error:
            return {"name": case.name, "missing": error.message}
        return {"name": case.name, "measured": figures, "plain": self._plain(place)}

    def _plain(self, place: Workspace) -> dict[str, tuple[int, float]]:
        """By network seconds to decode half an interval of deltas in plain numpy."""
        rows = comparison.wanted(self.table).values()
        deltas = max(row.interval for row in rows) // 2
        streams: dict[str, list[Stream]] = {}
        for experiment in self.experiments if deltas else ():
            role = comparison.role_of(experiment)
            streams.setdefault(role, []).append(streamed(experiment, place))
        plain = {}
        for role, group in streams.items():
            fewest = min(deltas, *(len(stream.versions) - 1 for stream in group))
            seconds = [measure.plain_seconds(stream, fewest, place) for stream in group]
            plain[role] = fewest, fmean(seconds)
        return plain

    def report(self, rows: Sequence[Row]) -> Report:
        """The table."""
        report = comparison.compared(self.table, self.experiments, rows)
        networks = [settings[0]["model"] for settings in report["setting"].values()]
        return {**_SCHEMA, "name": "-".join([report["number"], *networks]), **report}


@dataclass(frozen=True)
class Pipelines:
    """Measure pipelines or presets on the recorded trainings.

    Ratios are relative to storing every version with zstd.
    """

    drifts: Drifts
    pipelines: tuple[str, ...] = argument((), "PIPELINE...", required=True)
    interval: tuple[int, ...] = option(
        (148,), "Versions between reset points; with several, every pipeline with each.", "N,N"
    )

    @cached_property
    def comparison(self) -> Comparison:
        """The table of these pipelines. Raises WrongUsage and InvalidPipeline."""
        if wrong := [each for each in self.interval or (0,) if each < 1]:
            raise WrongUsage(f"interval is {wrong[0]}: it must be at least 1")
        for text in self.pipelines:
            Pipeline.parse(text)
        several = len(set(self.interval)) > 1
        own = {
            f"{text}, R={interval}" if several else text: Configuration(text, interval)
            for text in self.pipelines
            for interval in self.interval
        }
        rows = (*MEASURED["4.26"].rows[:1], *(ThesisRow(name, own[name], {}) for name in own))
        title = "intervals between reset points" if several else "pipelines of your choice"
        name = "intervals" if several else "own"
        return Comparison(ThesisTable(name, title, rows), self.drifts.experiments())

    def cases(self) -> Sequence[_Row]:
        return self.comparison.cases()

    def run(self, case: _Row, place: Workspace) -> Row:
        return self.comparison.run(case, place)

    def report(self, rows: Sequence[Row]) -> Report:
        return self.comparison.report(rows)


class _Cell(NamedTuple):
    name: str
    number: str
    position: int
    networks: Mapping[str, tuple[Dataset, Settings]]


class Curves:
    """One of tables 4.3 to 4.5, or 4.6, which sums them up."""

    def __init__(self, number: str, drifts: Drifts) -> None:
        self.number, self.drifts = number, drifts

    def cases(self) -> list[_Cell]:
        """One for each cell."""
        return [
            _Cell(f"{number}, {position}", number, position, networks)
            for number in (CURVES if self.number == "4.6" else [self.number])
            for position, networks in enumerate(
                comparison.curve_settings(number, self.drifts.datasets, self.drifts.settings)
            )
        ]

    def run(self, case: _Cell, place: Workspace) -> Row:
        """How far apart the curves are, and what all cells of a table have in common."""
        curves, networks = {}, {}
        for role, (data, settings) in case.networks.items():
            group = experiments(data, settings, self.drifts.labels)
            curves[role] = [measure.lossless(streamed(each, place), place).last for each in group]
            names = ("data", "model", "epochs", "seed", "batch_size")
            common = {name: group[0].parameters[name] for name in names}
            networks[role] = {**common, "others_offline": group[0].plan.others_offline}
        line = comparison.curve_line(case.number, case.position, case.networks, curves)
        return {"number": case.number, "networks": networks, "line": line}

    def report(self, rows: Sequence[Row]) -> Report:
        """Part by part."""
        parts: dict[str, dict[str, Any]] = {}
        for row in rows:
            number = row["number"]
            part = {
                "number": number, "title": CURVES[number]["title"],
                "labels": list(self.drifts.labels), "networks": row["networks"], "lines": [],
            }  # fmt: skip
            parts.setdefault(number, part)["lines"].append(row["line"])
        name = self.number
        return {**_SCHEMA, "name": name, "number": name, "parts": list(parts.values())}


class Learning:
    """Table 4.7: seconds of one batch of training."""

    def __init__(self, drifts: Drifts) -> None:
        self.drifts = drifts

    def cases(self) -> Sequence[Experiment]:
        return self.drifts.experiments()

    def run(self, case: Experiment, place: Workspace) -> Row:
        """By the titles of the table."""
        titles = ("stream", "mean s", "longest s", "thesis mean s", "thesis longest s")
        seconds = measure.learning(streamed(case, place))
        figures = (case.name, fmean(seconds), max(seconds), *LEARNING[comparison.role_of(case)])
        return dict(zip(titles, figures, strict=True))

    def report(self, rows: Sequence[Row]) -> Report:
        """One line for each training."""
        return {**_SCHEMA, "name": "4.7", "number": "4.7", "rows": list(rows)}


@dataclass(frozen=True)
class Table:
    """Make a table of the thesis, 4.3 to 4.26, with its figures beside ours."""

    drifts: Drifts
    number: str = argument("", "NUMBER", required=True)

    @cached_property
    def kind(self) -> Comparison | Curves | Learning:
        """What the table is. Raises WrongUsage for a number outside 4.3 to 4.26."""
        if self.number not in NUMBERS:
            raise WrongUsage(f"there is no table {self.number}: it must be from 4.3 to 4.26")
        if self.number in CURVES or self.number == "4.6":
            return Curves(self.number, self.drifts)
        if self.number == "4.7":
            return Learning(self.drifts)
        return Comparison(MEASURED[self.number], self.drifts.experiments())

    def cases(self) -> Sequence[Any]:
        return self.kind.cases()

    def run(self, case: Any, place: Workspace) -> Row:
        return self.kind.run(case, place)

    def report(self, rows: Sequence[Row]) -> Report:
        return self.kind.report(rows)
