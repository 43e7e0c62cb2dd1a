"""One run of ``python -m mvc.evaluation drift``: streams, tables and plots under ``out``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mvc.codecs.pipeline import Pipeline
from mvc.errors import WrongUsage
from mvc.evaluation.common.data import Dataset
from mvc.evaluation.drift import curves, plots, render, tables
from mvc.evaluation.drift.experiment import Settings, experiments
from mvc.evaluation.drift.learning import correct
from mvc.evaluation.drift.measure import Results
from mvc.evaluation.drift.names import Configuration
from mvc.evaluation.drift.stream import Stream, Tell, record
from mvc.evaluation.drift.tables import Compared
from mvc.evaluation.drift.thesis.curves import CURVES, LEARNING
from mvc.evaluation.drift.thesis.tables import MEASURED, Table
from mvc.io.files import FileSystem

__all__ = ["NUMBERS", "Session"]

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
            stream = record(experiment, folder, self.fs, self._named(experiment.name))
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
        rows = tuple(
            tables.own_row(text, Configuration(text, interval)) for text in dict.fromkeys(texts)
        )
        table = Table("own", "pipelines of your choice", (*general, *rows), (), interval)
        return self._compared(tables.compare(table, self.runs(), self.tell), plot)

    def curve_plot(self) -> Path:
        """Draws accuracy over the drift for every stream; returns the file."""
        drawn = {}
        for results in self.runs():
            drawn[results.stream.experiment.name] = results.lossless(self.tell).last
        return self._write("drift.png", plots.accuracy_curves(drawn))

    def trained(self) -> list[dict[str, Any]]:
        """The figures that ``drift train`` prints for each stream."""
        said = []
        for results in self.runs():
            stream = results.stream
            accuracies = results.lossless(self.tell)
            said.append(
                {
                    "stream": stream.experiment.name,
                    "versions": len(stream.versions),
                    "offline": offline_accuracy(stream),
                    "prequential": accuracies.prequential,
                    "target": accuracies.last[-1],
                    "seconds": _mean([v.seconds for v in stream.versions if v.number]),
                }
            )
        return said

    def _compared(self, compared: Compared, plot: bool) -> str:
        text = render.markdown(compared)
        networks = [settings[0]["model"] for settings in compared.setting.values()]
        name = "-".join([compared.number, *networks])
        self._write(f"{name}.json", json.dumps(asdict(compared), indent=1).encode())
        self._write(f"{name}.md", text.encode())
        if plot:
            self._write(f"{name}.png", plots.ratio_against_accuracy(compared))
        return text

    def _curves(self, number: str) -> str:
        numbers = list(CURVES) if number == "4.6" else [number]
        made = [
            curves.compare_curves(one, self.data, self.settings, self.streams) for one in numbers
        ]
        text = curves.curves_markdown(made, summary=number == "4.6")
        self._write(f"{number}.json", json.dumps([asdict(one) for one in made], indent=1).encode())
        self._write(f"{number}.md", text.encode())
        return text

    def _learning(self) -> str:
        rows = []
        for results in self.runs():
            seconds = [v.seconds for v in results.stream.versions if v.number]
            mean, longest = LEARNING[tables.role_of(results)]
            rows.append(
                (results.stream.experiment.name, _mean(seconds), max(seconds), mean, longest)
            )
        titles = ("stream", "mean s", "longest s", "thesis mean s", "thesis longest s")
        text = "# Table 4.7: one batch of training\n\n" + render.grid(
            titles, ((name, *(f"{value:.3f}" for value in values)) for name, *values in rows)
        )
        text += f"\n\n{render.LIMITS[0]}\n"
        self._write(
            "4.7.json", json.dumps([dict(zip(titles, r, strict=True)) for r in rows]).encode()
        )
        self._write("4.7.md", text.encode())
        return text

    def _write(self, name: str, data: bytes) -> Path:
        folder = self.out / "tables"
        self.fs.make_dirs(folder)
        self.fs.write_atomic(folder / name, data)
        return folder / name

    def _named(self, name: str) -> Tell | None:
        tell = self.tell
        if tell is None:
            return None
        return lambda what, done, total: tell(f"{name}: {what}", done, total)


def offline_accuracy(stream: Stream) -> float:
    """Accuracy of the offline model on the first online batch, where the drift is least."""
    import torch

    experiment = stream.experiment
    model = experiment.recipe.build(experiment.data)
    state = stream.state(stream.versions[0])
    model.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    sample = stream.batch(0)
    return correct(model, sample) / len(sample[1])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
