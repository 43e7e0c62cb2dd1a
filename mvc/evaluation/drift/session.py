"""One run of ``python -m mvc.evaluation drift``: streams, tables and plots under ``out``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from mvc.codecs.pipeline import Pipeline
from mvc.errors import WrongUsage
from mvc.evaluation.common.data import Dataset
from mvc.evaluation.common.models import tensors_of
from mvc.evaluation.common.progress import Tell, named
from mvc.evaluation.common.render import grid
from mvc.evaluation.common.results import write_table
from mvc.evaluation.drift import render, tables
from mvc.evaluation.drift.experiment import Settings, experiments
from mvc.evaluation.drift.measure import Results, Scorer, State
from mvc.evaluation.drift.stream import Sample, Stream, record
from mvc.evaluation.drift.thesis import CURVES, LEARNING, MEASURED, Configuration, Row, Table
from mvc.io.files import FileSystem

__all__ = ["NUMBERS", "Session", "draw"]

NUMBERS = tuple(f"4.{n}" for n in range(3, 27))
"""The numbers of the tables that can be made."""


@dataclass
class Session:
    """The options of a run. Close it to close the repositories of its streams."""

    fs: FileSystem
    out: Path
    data: Sequence[Dataset]
    settings: Settings
    labels: Sequence[int]
    tell: Tell | None = None
    _open: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        """Closes every stream."""
        self._open.close()

    def streams(self, data: Dataset, settings: Settings) -> list[Results]:
        """The recorded training of each label; trains the labels that are not recorded yet."""
        found = []
        for experiment in experiments(data, settings, self.labels):
            folder = self.out / "streams" / experiment.name
            stream = record(experiment, folder, self.fs, named(self.tell, experiment.name))
            self._open.callback(stream.close)
            found.append(Results(stream, self.out / "results", self.fs))
        return found

    def runs(self) -> list[Results]:
        """The streams of all data sets under the settings of the call."""
        if self.settings.model is not None and len(self.data) > 1:
            raise WrongUsage("--model is for one data set; with several each gets its own")
        return [each for data in self.data for each in self.streams(data, self.settings)]

    def table(self, number: str, *, plot: bool) -> str:
        """Makes a table, writes it to ``out/tables`` and returns it as Markdown.

        Raises WrongUsage for a number outside 4.3 to 4.26.
        """
        if number not in NUMBERS:
            raise WrongUsage(f"there is no table {number}: it must be from 4.3 to 4.26")
        if number in CURVES or number == "4.6":
            return self._curves(number)
        if number == "4.7":
            return self._learning()
        return self._compared(tables.compare(MEASURED[number], self.runs(), self.tell), plot)

    def pipelines(self, texts: Sequence[str], interval: int, *, plot: bool) -> str:
        """Measures the named pipelines; ratios are relative to storing every version with zstd."""
        if interval < 1:
            raise WrongUsage(f"interval is {interval}: it must be at least 1")
        for text in texts:
            Pipeline.parse(text)
        general = MEASURED["4.26"].rows[:1]
        chosen = dict.fromkeys(texts)  # each once
        rows = tuple(Row(text, Configuration(text, interval), {}) for text in chosen)
        table = Table("own", "pipelines of your choice", (*general, *rows), (), interval)
        return self._compared(tables.compare(table, self.runs(), self.tell), plot)

    def curve_plot(self) -> Path:
        """Draws accuracy over the drift for every stream; returns the file."""
        drawn = {
            results.stream.experiment.name: results.lossless(self.tell).last
            for results in self.runs()
        }
        return self._write("drift.png", render.accuracy_curves(drawn))

    def trained(self) -> str:
        """Markdown of what each training came to, by samples that no training has seen."""
        rows = []
        for results in self.runs():
            stream, scorer = results.stream, Scorer(results.stream)
            held_out = _held_out(stream)
            ends = [stream.state(stream.versions[number]) for number in (0, -1)]
            shares = [_share_right(scorer, state, held_out) for state in ends]
            shares.insert(1, results.lossless(self.tell).prequential)
            figures = (f"{value:.4f}" for value in (*shares, fmean(_seconds(results))))
            labels = torch.cat([labels for _, labels in held_out])
            drifting = int((labels == stream.experiment.label).sum())
            counts = map(str, (len(stream.versions), len(labels), drifting))
            rows.append((stream.experiment.name, *counts, *figures))
        titles = (
            *("training", "versions", "held out", "of the label"),
            *("offline", "next batch", "online", "s a batch"),
        )
        return grid(titles, rows)

    def _compared(self, compared: tables.Compared, plot: bool) -> str:
        networks = [settings[0]["model"] for settings in compared.setting.values()]
        name = "-".join([compared.number, *networks])
        if plot:
            self._write(f"{name}.png", render.scatter(compared))
        return self._publish(name, compared)

    def _curves(self, number: str) -> str:
        parts = [
            tables.compare_curves(one, self.data, self.settings, self.streams)
            for one in (CURVES if number == "4.6" else [number])
        ]
        return self._publish(number, tables.CurveTable(number, tuple(parts)))

    def _learning(self) -> str:
        titles = ("stream", "mean s", "longest s", "thesis mean s", "thesis longest s")
        rows = []
        for results in self.runs():
            seconds, stated = _seconds(results), LEARNING[tables.role_of(results)]
            row = (results.stream.experiment.name, fmean(seconds), max(seconds), *stated)
            rows.append(dict(zip(titles, row, strict=True)))
        return self._publish("4.7", tables.Learning("4.7", tuple(rows)))

    def _publish(self, name: str, made: tables.Made) -> str:
        text = render.markdown(made)
        self._write(f"{name}.json", tables.table_bytes(made))
        self._write(f"{name}.md", text.encode())
        return text

    def _write(self, name: str, data: bytes) -> Path:
        return write_table(self.fs, self.out, name, data)


def draw(fs: FileSystem, file: Path, out: Path) -> Path:
    """Draws a table that compares pipelines, from its JSON; returns the picture in ``out``."""
    made = tables.read_table(fs, file)
    if not isinstance(made, tables.Compared):
        raise WrongUsage(f"{file} holds table {made.number}, which has no picture")
    return write_table(fs, out, f"{file.stem}.svg", render.scatter(made, "svg"))


def _seconds(results: Results) -> list[float]:
    """How long each online step took."""
    return [version.seconds for version in results.stream.versions if version.number]


_AT_ONCE = 512  # samples that a network is asked about


def _held_out(stream: Stream) -> list[Sample]:
    """What no training has seen: the last batch, and what the split leaves over."""
    experiment = stream.experiment
    drift, count = experiment.drift, len(experiment.data.labels)
    rows = np.setdiff1d(np.arange(count), np.concatenate([drift.offline, *drift.online[:-1]]))
    parts = (rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE))
    return [tensors_of(experiment.data, part) for part in parts]


def _share_right(scorer: Scorer, state: State, samples: Sequence[Sample]) -> float:
    """The share of all ``samples`` that the weights have right."""
    right = sum(scorer.accuracy(state, each) * len(each[1]) for each in samples)
    return right / sum(len(labels) for _, labels in samples)
