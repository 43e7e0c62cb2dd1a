"""One run of ``python -m mvc.evaluation rework``: trials, tables and plots under ``out``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mvc.codecs.pipeline import Pipeline
from mvc.errors import WrongUsage
from mvc.evaluation.common.progress import Tell
from mvc.evaluation.common.results import read_result, write_result, write_table
from mvc.evaluation.rework import render, tables
from mvc.evaluation.rework.breakdown import bucket_errors, sizes
from mvc.evaluation.rework.overhead import FAILURE, overhead
from mvc.evaluation.rework.schemes import checkpoints
from mvc.evaluation.rework.training import Experiment, Training
from mvc.evaluation.rework.trials import Trial, results_name, trials
from mvc.evaluation.rework.workloads import Source, workload_named
from mvc.io.files import FileSystem
from mvc.io.process import cpu_count

__all__ = ["Session", "draw"]

_CASE_BATCH = 50
_CASE_RATE = 0.5

Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Session:
    """The options of a run. ``sources``: what networks are trained with, by kind."""

    fs: FileSystem
    out: Path
    sources: Mapping[str, Source]
    models: Sequence[str]
    optimizers: Sequence[str]
    tell: Tell | None = None

    def rework(self, schemes: Sequence[str], count: int, *, plot: bool) -> str:
        """Runs the trials that are missing; writes the report, returns it as Markdown."""
        if count < 1:
            raise WrongUsage(f"trials is {count}: it must be at least 1")
        chosen = tuple(dict.fromkeys(schemes))
        experiments = self._experiments()
        for experiment in experiments:
            for scheme in chosen:
                checkpoints(scheme, {}, experiment.workload.block)
        groups = []
        for experiment in experiments:
            folder = self.out / "results"
            found = trials(experiment, chosen, count, folder, self.fs, self.tell)
            lines = [{"scheme": scheme, **_columns(made)} for scheme, made in found.items()]
            groups.append(_group(experiment, lines, trials=count))
        return self._publish("rework", groups, plot=plot)

    def sizes(self, *, plot: bool) -> str:
        """What the stages save."""
        return self._once("sizes", lambda experiment: tuple(sizes(experiment)), plot=plot)

    def buckets(self, *, plot: bool) -> str:
        """What each bucket is worth."""
        return self._once("buckets", lambda experiment: tuple(bucket_errors(experiment)), plot=plot)

    def overhead(self, pipelines: Sequence[str], epochs: int, *, plot: bool) -> str:
        """The case study, always measured anew: matrix factorisation, an epoch an iteration."""
        if epochs < FAILURE:
            raise WrongUsage(f"epochs is {epochs}: it must be at least {FAILURE}")
        for pipeline in pipelines:
            Pipeline.parse(pipeline)
        common = workload_named("mf")
        workload = replace(common, batch_size=_CASE_BATCH, rates={"sgd": _CASE_RATE})
        experiment = Experiment(workload, self.sources["ratings"], "sgd")
        folder = self.out / "overhead"
        lines = [
            overhead(experiment, pipeline, epochs, folder, self.tell)
            for pipeline in dict.fromkeys(pipelines)
        ]
        return self._publish("overhead", [_group(experiment, lines)], plot=plot)

    def _once(self, kind: str, measure: Callable[[Experiment], Lines], *, plot: bool) -> str:
        """A report of what each experiment has once; what is known is not measured again."""
        groups = []
        for number, experiment in enumerate(experiments := self._experiments()):
            if self.tell:
                self.tell(f"{kind}: {experiment.workload.title}", number, len(experiments))
            folder = self.out / "results" / results_name(experiment)
            self.fs.make_dirs(folder)
            file = folder / f"{kind}.json"
            with self.fs.lock(file.with_suffix(".lock")):
                known = read_result(self.fs, file)
                if known is None:
                    known = {"lines": measure(experiment)}
                    write_result(self.fs, file, known)
            groups.append(_group(experiment, known["lines"]))
        return self._publish(kind, groups, plot=plot)

    def _experiments(self) -> list[Experiment]:
        if not self.models or not self.optimizers:
            raise WrongUsage("name at least one model and one optimizer")
        found = []
        for name in dict.fromkeys(self.models):
            workload = workload_named(name)
            source = self.sources[workload.kind]
            for optimizer in dict.fromkeys(self.optimizers):
                found.append(Experiment(workload, source, optimizer))
        return found

    def _publish(self, kind: str, groups: Iterable[tables.Group], *, plot: bool) -> str:
        report = tables.Report(kind, tuple(groups), _machine())
        if plot:
            write_table(self.fs, self.out, f"{kind}.png", render.draw(report))
        text = render.markdown(report)
        write_table(self.fs, self.out, f"{kind}.json", tables.report_bytes(report))
        write_table(self.fs, self.out, f"{kind}.md", text.encode())
        return text


def draw(fs: FileSystem, file: Path, out: Path) -> Path:
    """Draws a report from its JSON as SVG; returns the picture in ``out``."""
    return write_table(
        fs, out, f"{file.stem}.svg", render.draw(tables.read_report(fs, file), "svg")
    )


def _group(experiment: Experiment, lines: Lines, **more: Any) -> tables.Group:
    state = Training(experiment, 0).state
    setting = {
        **experiment.parameters,
        "parameters": state["weights"].size,
        "state": sum(values.nbytes for values in state.values()),
        **more,
    }
    return tables.Group(setting, tuple(lines))


def _columns(made: Sequence[Trial]) -> dict[str, list[Any]]:
    """From the name of each figure to its values, trial by trial."""
    rows = [asdict(each) for each in made]
    return {name: [row[name] for row in rows] for name in rows[0]}


def _machine() -> str:
    threads, cores = torch.get_num_threads(), cpu_count()
    return f"torch {torch.__version__}, its threads: {threads}; {cores} processors."
