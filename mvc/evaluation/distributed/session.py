"""One call of ``python -m mvc.evaluation fgm``: runs, results and tables under ``out``."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from mvc.errors import WrongUsage
from mvc.evaluation.common.progress import Tell
from mvc.evaluation.common.results import read_result, write_result, write_table
from mvc.evaluation.distributed import report as reports
from mvc.evaluation.distributed.measure import CENTRAL, Drifting, Setting, Training, run
from mvc.evaluation.distributed.tasks import Task
from mvc.evaluation.distributed.thesis import SETTINGS
from mvc.io.files import FileSystem
from mvc.io.process import cpu_count

__all__ = ["COMPARED", "DRIFTING", "Session", "draw"]

COMPARED = (
    "central,sync,local-sgd@4,local-sgd@16,local-sgd@64,diloco@16,gm-full@10,gm@10,gm-hedge@10,"
    "fgm@5,fgm@10,fgm@20,fgm-rebalancing:0.5@10,fgm-nesterov@10,fda@10,fda-sketch@10,"
    "fgm@10+int8,fgm@10+exponent,fgm@10+topk:0.1"
)
DRIFTING = "local-sgd@16,gm@10,fgm@10,fgm@10+exponent"
_TUNED_ON = 2  # seeds


@dataclass(frozen=True)
class Session:
    """``rates``: learning rates of which the best is taken for each setting and number of workers,
    by cross-entropy on samples held out of training, over the first two seeds. While the best of
    several lies at an edge, the next rate outwards is tried, ``widen`` times at most. Central
    training has ``central_rates``, or the same ones if that is empty.
    """

    fs: FileSystem
    out: Path
    task: Task
    training: Training
    rates: Sequence[float]
    seeds: int = 5
    widen: int = 2
    central_rates: Sequence[float] = ()
    tell: Tell | None = None

    def __post_init__(self) -> None:
        """Raises WrongUsage for values out of range."""
        if self.seeds < 1:
            raise WrongUsage(f"seeds is {self.seeds}: it must be at least 1")
        if self.widen < 0:
            raise WrongUsage(f"widen is {self.widen}: it must be at least 0")
        if not self.rates or not all(
            0 < rate < math.inf for rate in (*self.rates, *self.central_rates)
        ):
            raise WrongUsage("rates must be positive numbers with commas, such as 0.003,0.01")

    def compare(self, settings: Sequence[str], workers: Sequence[int], *, plot: bool) -> str:
        """The protocols on one task; returns the report as Markdown."""
        chosen = self._checked(settings)
        cells = [
            (setting, replace(self.training, workers=k)) for k in workers for setting in chosen
        ]
        rows = self._rows("fgm", cells)
        made = reports.Report(f"Protocols on {self.task.name}", self._about(), rows)
        return self._write("fgm-compare", made, reports.markdown, plot)

    def drift(self, settings: Sequence[str], label: int, sites: int, *, plot: bool) -> str:
        """A class that comes online at all workers, then at some only."""
        chosen = self._checked(settings)
        if not 0 < sites < self.training.workers:
            raise WrongUsage(
                f"sites is {sites}: it must be more than 0 and less than the number of workers"
            )
        texts = []
        for count in (self.training.workers, sites):
            training = replace(self.training, drifting=Drifting(label, count))
            rows = self._rows("drift", [(setting, training) for setting in chosen])
            where = "all workers" if count == self.training.workers else f"{count} workers only"
            title = f"Class {self.task.classes[label]} of {self.task.name} comes at {where}"
            made = reports.Report(title, self._about(), rows)
            name = "fgm-drift-all" if count == self.training.workers else "fgm-drift-some"
            texts.append(self._write(name, made, reports.markdown, plot))
        return "\n".join(texts)

    def appendix(self, protocols: Sequence[str], *, plot: bool) -> str:
        """Settings of the thesis's appendix that the data allow, one seed, its rows beside ours."""
        cells = []
        for each in self._checked([f"{protocol}@T0.5" for protocol in protocols]):
            name = each.text.partition("@")[0]
            for threshold, batch, workers in dict.fromkeys(SETTINGS):
                if len(self.task.train[1]) * 0.85 >= workers * batch * 4:
                    training = replace(self.training, workers=workers, batch_size=batch)
                    cells.append((Setting(f"{name}@T{threshold:g}"), training))
        rows = replace(self, seeds=1)._rows("appendix", cells)
        about = self._about() | {"beside": "AFFR" if self.task.network.words else "SFCC"}
        del about["batch"], about["seeds"]
        made = reports.Report(f"Settings of the appendix on {self.task.name}", about, rows)
        return self._write("fgm-appendix", made, reports.appendix, plot)

    def _checked(self, settings: Sequence[str]) -> list[Setting]:
        chosen = [Setting(text) for text in dict.fromkeys(settings)]
        if not chosen:
            raise WrongUsage("name at least one protocol")
        for setting in chosen:
            setting.protocol(self.rates[0], 0)
        return chosen

    def _rows(
        self, name: str, cells: Sequence[tuple[Setting, Training]]
    ) -> tuple[dict[str, Any], ...]:
        rows = []
        for done, (setting, training) in enumerate(cells):
            if self.tell:
                self.tell(f"{name}: {setting.text}, k = {training.workers}", done, len(cells))
            rate, tried = self._best_rate(setting, training)
            runs = [self._run(setting, training, rate, seed) for seed in range(self.seeds)]
            row = reports.row_of(runs, tried)
            rows.append(row | {"batch_size": training.batch_size, "epochs": training.epochs})
        return tuple(rows)

    def _best_rate(self, setting: Setting, training: Training) -> tuple[float, list[float]]:
        """The best rate, and all that were tried, from the smallest."""
        central = setting.text == CENTRAL and self.central_rates
        tried = sorted(set(central or self.rates))
        if len(tried) == 1:
            return tried[0], tried

        def loss(rate: float) -> float:
            seeds = range(min(_TUNED_ON, self.seeds))
            return fmean(self._run(setting, training, rate, seed)["validation"] for seed in seeds)

        for _ in range(self.widen):
            best = min(tried, key=loss)
            if best == tried[0]:
                tried.insert(0, float(f"{best * best / tried[1]:.6g}"))
            elif best == tried[-1]:
                tried.append(float(f"{best * best / tried[-2]:.6g}"))
            else:
                break
        return min(tried, key=loss), tried

    def _run(self, setting: Setting, training: Training, rate: float, seed: int) -> dict[str, Any]:
        """The figures of a run, from its file if there is one."""
        parameters = {
            "task": self.task.name, "train": len(self.task.train[1]),
            "length": self.task.network.length, "setting": setting.text, "rate": rate,
            "seed": seed, **asdict(training),
        }  # fmt: skip
        if setting.text == CENTRAL:
            parameters["workers"] = 0  # nothing depends on them
        digest = hashlib.sha256(json.dumps(parameters).encode()).hexdigest()[:16]
        file = self.out / "results" / f"fgm-{digest}.json"
        known = read_result(self.fs, file)
        if known is None:
            known = run(self.task, setting, training, rate, seed)
            self.fs.make_dirs(file.parent)
            write_result(self.fs, file, {"run": parameters, **known})
        return known | {"workers": training.workers}

    def _about(self) -> dict[str, Any]:
        training, central = self.training, self.central_rates
        return {
            "parameters": self.task.network.length,
            "training samples": len(self.task.train[1]),
            "test samples": len(self.task.test[1]),
            "batch": training.batch_size,
            "epochs": f"{training.epochs:g} after {training.warm_epochs} of warm-up on "
            f"{100 * training.warm_share:g} %",
            "optimizer": training.optimizer,
            "rates": "/".join(f"{rate:g}" for rate in self.rates),
            **({"rates of central": "/".join(f"{rate:g}" for rate in central)} if central else {}),
            "seeds": self.seeds,
            "torch": torch.__version__,
            "processors": cpu_count(),
        }

    def _write(
        self, name: str, made: reports.Report, render: Callable[[reports.Report], str], plot: bool
    ) -> str:
        text = render(made)
        if plot:
            write_table(self.fs, self.out, f"{name}.png", _drawn(name, made, "png"))
        write_table(self.fs, self.out, f"{name}.json", reports.report_bytes(made))
        write_table(self.fs, self.out, f"{name}.md", text.encode())
        return text


def draw(fs: FileSystem, file: Path, out: Path) -> Path:
    """Draws a report from its JSON; returns the picture in ``out``."""
    made = reports.read_report(fs, file)
    return write_table(fs, out, f"{file.stem}.svg", _drawn(file.stem, made, "svg"))


def _drawn(name: str, made: reports.Report, form: str) -> bytes:
    return (reports.sweeps if "appendix" in name else reports.plane)(made, form)
