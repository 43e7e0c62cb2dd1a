"""One run of ``python -m mvc.evaluation mmlib``: models, results and tables under ``out``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mvc.errors import WrongUsage
from mvc.evaluation.common.data import Dataset
from mvc.evaluation.common.progress import Tell
from mvc.evaluation.common.results import write_table
from mvc.evaluation.provenance import measure, render, tables
from mvc.evaluation.provenance.approaches import Approach, approach_named
from mvc.evaluation.provenance.architectures import architecture_named
from mvc.evaluation.provenance.flow import Experiment, Settings, record
from mvc.io.files import FileSystem
from mvc.io.process import cpu_count

__all__ = ["Session", "draw"]


@dataclass(frozen=True)
class Session:
    """The options of a run. ``repeats``: runs whose medians are the figures."""

    fs: FileSystem
    out: Path
    data: Dataset
    settings: Settings
    architectures: Sequence[str]
    relations: Sequence[str]
    approaches: Sequence[str]
    repeats: int = 1
    tell: Tell | None = None

    def run(self, *, plot: bool) -> str:
        """Measures what is not measured yet; writes the report, returns it as Markdown."""
        if self.repeats < 1:
            raise WrongUsage(f"repeats is {self.repeats}: it must be at least 1")
        experiments = list(self._experiments())
        approaches = [approach_named(name) for name in dict.fromkeys(self.approaches)]
        if not experiments or not approaches:
            raise WrongUsage("name at least one architecture, one relation and one approach")
        chosen = {
            experiment.name: [each for each in approaches if _fits(each, experiment)]
            for experiment in experiments
        }
        if not all(chosen.values()):
            raise WrongUsage(
                "provenance trains models again, and no training makes a grafted one",
                hint="choose another relation, or name other approaches, too",
            )
        groups = []
        for experiment in experiments:
            with record(experiment, self.out / "models", self.fs, self.tell) as models:
                lines = []
                for approach in chosen[experiment.name]:
                    folder = self.out / "results"
                    found = measure.runs(models, approach, self.repeats, folder, self.fs, self.tell)
                    lines.append(tables.line_of(approach, found))
                groups.append(tables.group_of(experiment, lines))
        report = tables.Report(tuple(groups), _machine(self.repeats))
        if plot:
            write_table(self.fs, self.out, "mmlib.png", render.bars(report))
        text = render.markdown(report)
        write_table(self.fs, self.out, "mmlib.json", tables.report_bytes(report))
        write_table(self.fs, self.out, "mmlib.md", text.encode())
        return text

    def _experiments(self) -> Iterator[Experiment]:
        """From the smallest to the largest network; each once."""
        for name in dict.fromkeys(self.architectures):
            architecture = architecture_named(name)
            for relation in dict.fromkeys(self.relations):
                yield Experiment.of(architecture, relation, self.data, self.settings)


def _fits(approach: Approach, experiment: Experiment) -> bool:
    return not approach.retrains or experiment.relation != "grafted"


def draw(fs: FileSystem, file: Path, out: Path) -> Path:
    """Draws a report from its JSON; returns the picture in ``out``."""
    return write_table(
        fs, out, f"{file.stem}.svg", render.bars(tables.read_report(fs, file), "svg")
    )


def _machine(repeats: int) -> str:
    runs = "one run" if repeats == 1 else f"medians of {repeats} runs"
    threads, cores = torch.get_num_threads(), cpu_count()
    return f"torch {torch.__version__}, its threads: {threads}, processors: {cores}; {runs}."
