"""The commands: protocols on one task, a class that comes online, the thesis's appendix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from mvc.errors import WrongUsage

from ..experiment import Report, Row, option
from ..render import SCHEMA
from ..workspace import Workspace, digest, machine
from .measure import CENTRAL, Drifting, Setting, Training, run
from .render import SETTINGS, pairs, row_of
from .tasks import Task, load_task

__all__ = ["Appendix", "Compare", "Drift", "Tuning"]

_COMPARED = (
    *("central", "sync", "local-sgd@4", "local-sgd@16", "local-sgd@64", "diloco@16"),
    *("gm-full@10", "gm@10", "gm-hedge@10", "fgm@5", "fgm@10", "fgm@20"),
    *("fgm-rebalancing:0.5@10", "fgm-nesterov@10", "fda@10"),
    *("fgm@10+int8", "fgm@10+exponent", "fgm@10+topk:0.1"),
)
_DRIFTING = ("local-sgd@16", "gm@10", "fgm@10", "fgm@10+exponent")
_TUNED_ON = 2  # seeds


def _protocols(default: tuple[str, ...]) -> Any:
    text = "Such as fgm@10 (rho), fgm:cap@T0.5, local-sgd@16 (every), gm@10+int8; with commas."
    return option(default, text, "NAMES", show_default=False)


class _Case(NamedTuple):
    name: str
    setting: Setting
    training: Training


@dataclass(frozen=True)
class Tuning:
    """What is learned, how, and with which rates.

    Of several ``rates`` the best is taken for each setting and number of workers, by cross-entropy
    on samples held out of training, over the first two seeds. While the best lies at an edge, the
    next rate outwards is tried, ``widen`` times at most.
    """

    training: Training
    data: Path | None = option(
        None,
        "A folder with Toronto's crimes (train.csv.gz, test.csv.gz), a folder of IDX files, or a "
        "file of JSON lines. Default: scikit-learn's digits.",
        "PATH",
    )
    limit: int | None = option(None, "Training samples. Default: all.", "N")
    rates: tuple[float, ...] = option(
        (0.002, 0.005, 0.01, 0.02), "Learning rates, of which each protocol has the best.", "N,N"
    )
    central_rates: tuple[float, ...] = option((), "Those of central. Default: the same.", "N,N")
    widen: int = option(2, "More rates that are tried while the best lies at an edge.", "N")
    seeds: int = option(5, "Runs of which the figures are means.", "N")

    def __post_init__(self) -> None:
        """Raises WrongUsage for values out of range."""
        for name, least in (("seeds", 1), ("widen", 0)):
            if (value := getattr(self, name)) < least:
                raise WrongUsage(f"{name} is {value}: it must be at least {least}")
        rates = (*self.rates, *self.central_rates)
        if not self.rates or not all(0 < rate < math.inf for rate in rates):
            raise WrongUsage("rates must be positive numbers with commas, such as 0.003,0.01")

    @cached_property
    def task(self) -> Task:
        """The data, and the network that learns them."""
        return load_task(self.data, self.limit)

    def checked(self, protocols: Sequence[str]) -> list[Setting]:
        """Each once. Raises WrongUsage for what is no protocol."""
        settings = [Setting(text) for text in dict.fromkeys(protocols)]
        if not settings:
            raise WrongUsage("name at least one protocol")
        for setting in settings:
            setting.protocol(self.rates[0], 0)
        return settings

    def row(self, case: _Case, seeds: int, place: Workspace) -> Row:
        """Means over seeds at the best rate."""
        rate, tried = self._best_rate(case, seeds, place)
        runs = [self._run(case, rate, seed, place) for seed in range(seeds)]
        training = case.training
        more = {"batch_size": training.batch_size, "epochs": training.epochs}
        return row_of(runs, tried) | more

    def _best_rate(self, case: _Case, seeds: int, place: Workspace) -> tuple[float, list[float]]:
        """The best rate, and all that were tried, from the smallest."""
        central = case.setting.text == CENTRAL and self.central_rates
        tried = sorted(set(central or self.rates))
        if len(tried) == 1:
            return tried[0], tried

        def loss(rate: float) -> float:
            tuned_on = range(min(_TUNED_ON, seeds))
            return fmean(self._run(case, rate, seed, place)["validation"] for seed in tuned_on)

        for _ in range(self.widen):
            best = min(tried, key=loss)
            if best == tried[0]:
                tried.insert(0, float(f"{best * best / tried[1]:.6g}"))
            elif best == tried[-1]:
                tried.append(float(f"{best * best / tried[-2]:.6g}"))
            else:
                break
        return min(tried, key=loss), tried

    def _run(self, case: _Case, rate: float, seed: int, place: Workspace) -> dict[str, Any]:
        setting, training, task = case.setting, case.training, self.task
        parameters = {
            "task": task.name, "train": len(task.train[1]), "length": task.network.length,
            "setting": setting.text, "rate": rate, "seed": seed, **asdict(training),
        }  # fmt: skip
        if setting.text == CENTRAL:
            parameters["workers"] = 0  # nothing depends on them
        name = f"distributed-{digest(parameters, 16)}"
        figures = place.once(
            name, lambda: {"run": parameters, **run(task, setting, training, rate, seed)}
        )
        return figures | {"workers": training.workers}

    def report(self, name: str, title: str, rows: Sequence[Row], **more: Any) -> Report:
        """The rows with what they have in common; ``more`` is added, None is left out."""
        training, task = self.training, self.task
        about = {
            "parameters": task.network.length,
            "training samples": len(task.train[1]),
            "test samples": len(task.test[1]),
            "batch": training.batch_size,
            "epochs": f"{training.epochs:g} after {training.warm_epochs} of warm-up on "
            f"{100 * training.warm_share:g} %",
            "optimizer": training.optimizer,
            "rates": "/".join(f"{rate:g}" for rate in self.rates),
            "rates of central": "/".join(f"{rate:g}" for rate in self.central_rates) or None,
            "seeds": self.seeds,
            "machine": machine(),
            **more,
        }
        about = {key: value for key, value in about.items() if value is not None}
        schema = SCHEMA.format("distributed")
        return {
            "schema": schema, "name": f"distributed-{name}", "title": title, "about": about,
            "rows": list(rows), "pairs": pairs(rows),
        }  # fmt: skip


@dataclass(frozen=True)
class Compare:
    """Compare protocols on one task: bytes against accuracy."""

    tuning: Tuning
    workers: tuple[int, ...] = option((8,), "How many, with commas.", "N,N")
    protocols: tuple[str, ...] = _protocols(_COMPARED)

    def cases(self) -> Sequence[_Case]:
        settings, training = self.tuning.checked(self.protocols), self.tuning.training
        return [
            _Case(f"{setting.text}, k = {count}", setting, replace(training, workers=count))
            for count in self.workers
            for setting in settings
        ]

    def run(self, case: _Case, place: Workspace) -> Row:
        return self.tuning.row(case, self.tuning.seeds, place)

    def report(self, rows: Sequence[Row]) -> Report:
        return self.tuning.report("compare", f"Protocols on {self.tuning.task.name}", rows)


@dataclass(frozen=True)
class Drift:
    """Let a class come online, at all workers or at --sites of them."""

    tuning: Tuning
    workers: int = option(8, "How many.", "N")
    sites: int | None = option(None, "Workers with the new class. Default: all.", "N")
    label: int = option(0, "The new class.", "N")
    protocols: tuple[str, ...] = _protocols(_DRIFTING)

    def cases(self) -> Sequence[_Case]:
        sites = self.workers if self.sites is None else self.sites
        if not 0 < sites <= self.workers:
            raise WrongUsage(f"sites is {sites}: it must be from 1 to the number of workers")
        if not 0 <= self.label < len(self.tuning.task.classes):
            most = len(self.tuning.task.classes) - 1
            raise WrongUsage(f"label is {self.label}: it must be from 0 to {most}")
        training = replace(
            self.tuning.training, workers=self.workers, drifting=Drifting(self.label, sites)
        )
        return [_Case(each.text, each, training) for each in self.tuning.checked(self.protocols)]

    def run(self, case: _Case, place: Workspace) -> Row:
        return self.tuning.row(case, self.tuning.seeds, place)

    def report(self, rows: Sequence[Row]) -> Report:
        some = self.sites is not None and self.sites < self.workers
        where = f"{self.sites} workers only" if some else "all workers"
        task = self.tuning.task
        title = f"Class {task.classes[self.label]} of {task.name} comes at {where}"
        return self.tuning.report("drift-some" if some else "drift-all", title, rows)


@dataclass(frozen=True)
class Appendix:
    """Run the settings of the thesis's appendix, one seed each, its rows beside ours."""

    tuning: Tuning
    protocols: tuple[str, ...] = _protocols(("gm:norm", "gm:cap", "fgm:norm", "fgm:cap"))

    def cases(self) -> Sequence[_Case]:
        """Those that the data allow."""
        self.tuning.checked([f"{protocol}@T0.5" for protocol in self.protocols])
        samples, cases = len(self.tuning.task.train[1]) * 0.85, []
        for protocol in dict.fromkeys(self.protocols):
            for threshold, batch, workers in dict.fromkeys(SETTINGS):
                if samples >= workers * batch * 4:
                    name = f"{protocol}@T{threshold:g}"
                    training = replace(self.tuning.training, workers=workers, batch_size=batch)
                    cases.append(_Case(f"{name}, k = {workers}", Setting(name), training))
        return cases

    def run(self, case: _Case, place: Workspace) -> Row:
        return self.tuning.row(case, 1, place)

    def report(self, rows: Sequence[Row]) -> Report:
        task = self.tuning.task
        beside = "AFFR" if task.network.words else "SFCC"
        title = f"Settings of the appendix on {task.name}"
        return self.tuning.report("appendix", title, rows, beside=beside, batch=None, seeds=None)
