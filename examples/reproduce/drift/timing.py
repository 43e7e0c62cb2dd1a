"""Seconds to learn, to save and to load, measured while nothing else runs (thesis, RQ1).

The tables measure one row after the other, for hours, and by the clock: what else runs meanwhile
counts, and one disturbed row is in the mean over labels. Here a preset takes a minute, scores no
accuracies, and has beside its seconds how many processors other work kept busy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from mvc.errors import WrongUsage

from ..experiment import Report, Row, argument, option
from ..render import SCHEMA, grid, notes
from ..workspace import Workspace, digest, machine
from .commands import Drifts, PipelineCase, streamed
from .comparison import role_of
from .measure import Scorer, State, expanded, replay
from .stream import Stream, learn
from .thesis import LEARNING, STATED, Configuration

__all__ = ["Times", "markdown"]

_PRESETS = (
    *("lossless", "vsol"),
    *(f"vsol-{bound}-{speed}" for bound in ("0", "0.1", "1") for speed in ("fast", "slow")),
    *("frontier-0", "frontier-0.1", "frontier-1", "frontier-1-slow"),
)
_STAT = Path("/proc/stat")


class _Unscored(Scorer):
    """Answers what decisions ask, and nothing else: no seconds go into scores."""

    def add(self, state: State) -> None:
        pass


@dataclass(frozen=True)
class Times:
    """Measure seconds to save and to load beside those to learn, while nothing else runs.

    PIPELINEs are lines or presets; by default the thesis's, lossless and the frontier's.
    """

    drifts: Drifts
    pipelines: tuple[str, ...] = argument(_PRESETS, "PIPELINE...")
    interval: int = option(148, "Versions between reset points.", "N")

    def cases(self) -> Sequence[PipelineCase]:
        """Every pipeline on every training. Raises WrongUsage where there is no /proc/stat."""
        if not _STAT.exists():
            raise WrongUsage(f"drift times needs Linux: it reads in {_STAT} what else runs")
        return self.drifts.cases(self.pipelines)

    def run(self, case: PipelineCase, place: Workspace) -> Row:
        """Seconds, mean and longest, with those that the thesis states."""
        stream = streamed(case.experiment, place)
        own = Configuration(expanded(case.pipeline), self.interval)
        folder = f"{case.experiment.name}/times"
        key = f"{folder}-{digest((own.pipeline, own.interval), 12)}"
        role = role_of(case.experiment)
        return {
            "training": case.experiment.name,
            "pipeline": case.pipeline,
            "learning": place.once(f"{folder}-learning", lambda: _beside(lambda: _learned(stream))),
            "storing": place.once(
                key, lambda: _beside(lambda: _stored(stream, own, place.empty(folder)))
            ),
            "stated": {"learn": LEARNING[role], **STATED.get(own, {}).get(role, {})},
        }

    def report(self, rows: Sequence[Row]) -> Report:
        """All rows, of one machine."""
        names = "-".join(dict.fromkeys(data.name for data in self.drifts.datasets))
        schema = {"schema": SCHEMA.format("drift"), "name": f"times-{names}"}
        return {**schema, "times": list(rows), "machine": machine()}


def _beside(measure: Callable[[], Row]) -> Row:
    """What is measured; and ``others``: how many processors were busy with other work meanwhile."""
    begun, busy = time.perf_counter(), _busy()
    measured = measure()
    spent = time.perf_counter() - begun
    return {**measured, "others": max(0.0, _busy() - busy) / spent}


def _busy() -> float:
    """Seconds that processors were busy so far, less those of this process."""
    _, user, nice, system, _, _, *interrupts = _STAT.read_text().split("\n", 1)[0].split()
    ticks = sum(map(int, (user, nice, system, *interrupts[:3])))
    return ticks / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


def _learned(stream: Stream) -> Row:
    """Every online step once more, from the offline weights on, after one to warm up."""
    recipe = stream.experiment.recipe
    model = recipe.build(stream.experiment.data)
    offline = stream.state(stream.versions[0])
    model.load_state_dict({name: torch.from_numpy(array) for name, array in offline.items()})
    optimizer, seconds = recipe.optimizer(model), []
    for number in (0, *range(len(stream.versions) - 1)):
        sample = stream.batch(number)
        begun = time.perf_counter()
        learn(model, optimizer, sample)
        seconds.append(time.perf_counter() - begun)
    return {"learn": _both(seconds[1:])}


def _stored(
    stream: Stream, configuration: Configuration, empty: AbstractContextManager[Path]
) -> Row:
    with empty as folder:
        replayed = replay(stream, configuration, folder, judge=_Unscored)
    return {"saved": replayed.saved, "save": _both(replayed.save), "load": _both(replayed.load)}


def _both(seconds: Sequence[float]) -> tuple[float, float]:
    return fmean(seconds), max(seconds)


_TITLES = (
    *("preset", "versions", "save s", "x learning", "thesis save s", "x learning"),
    *("load s", "thesis load s", "others"),
)
_NOTES = (
    "save: seconds a batch for lossy stages, decisions and the durable commit, skipped batches "
    "included; load: seconds to read the version that was live after a batch; mean / longest.",
    "x learning: mean seconds to save a batch by mean seconds to learn one.",
    "others: processors that were busy with other work meanwhile, on average.",
    "Seconds of the thesis are from another machine, with a GPU and no flush to disk.",
)


def markdown(report: Mapping[str, Any]) -> str:
    """A table for every training."""
    return "\n".join([*_parts(report), notes((*_NOTES, f"{report['machine']}."))])


def _parts(report: Mapping[str, Any]) -> Iterator[str]:
    groups: dict[str, list[Row]] = {}
    for row in report["times"]:
        groups.setdefault(row["training"], []).append(row)
    for training, rows in groups.items():
        learning, stated = rows[0]["learning"], rows[0]["stated"]["learn"]
        yield (
            f"## {training}\n\nOne batch takes {_pair(learning['learn'])} s to learn "
            f"(thesis: {_pair(stated)} s; others {learning['others']:.2f}).\n"
        )
        yield grid(_TITLES, map(_row, rows))
        yield ""


def _row(row: Row) -> tuple[str, ...]:
    storing, stated, learn = row["storing"], row["stated"], row["learning"]["learn"][0]
    theirs, loads = ((stated.get(name), stated.get(f"{name}_max")) for name in ("save", "load"))
    return (
        *(row["pipeline"], str(storing["saved"])),
        *(_pair(storing["save"]), f"{storing['save'][0] / learn:.2f}"),
        _pair(theirs),
        "" if theirs[0] is None else f"{theirs[0] / stated['learn'][0]:.2f}",
        *(_pair(storing["load"]), _pair(loads), f"{storing['others']:.2f}"),
    )


def _pair(values: Sequence[float | None]) -> str:
    return " / ".join(f"{value:.3f}" for value in values if value is not None)
