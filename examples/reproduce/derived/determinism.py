"""What it costs to train deterministically (figure 34 of the thesis), and an epoch (its table 3).

Each network trains batches with torch's deterministic kernels and with any. ``layer_cost`` names
the layers that the deterministic ones slow down.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from mvc.errors import WrongUsage

from ..data import load_data
from ..experiment import Report, Row, known, option
from ..render import SCHEMA
from ..workspace import Workspace, machine
from .architectures import ARCHITECTURES
from .flow import Experiment, Settings
from .layer_cost import cost_of

__all__ = ["Determinism"]

_MODES = ("any", "deterministic")
_SHOWN = 3  # layers
_TIMED = 16  # images by which layers are timed


@dataclass(frozen=True)
class Determinism:
    """Measure what deterministic kernels cost a training, and which layers they slow down.

    An epoch is as many images as the thesis's smaller data sets have.
    """

    architectures: tuple[str, ...] = option(
        tuple(ARCHITECTURES), f"{', '.join(ARCHITECTURES)}, with commas.", "NAMES"
    )
    images: int = option(512, "Images of an epoch.", "N")
    batch_size: int = option(64, "Images of a batch.", "N")
    size: int = option(64, "Height and width to which images grow.", "PIXELS")
    pairs: int = option(20, "Pairs of runs by which layers are timed.", "N")
    data: Path | None = option(
        None, "A folder of IDX files. Default: scikit-learn's digits.", "FOLDER"
    )

    def cases(self) -> Sequence[Experiment]:
        """A network each, all of whose parameters are trained."""
        if self.images < self.batch_size or self.pairs < 1:
            raise WrongUsage("an epoch has at least one batch, and layers are timed at least once")
        settings = Settings(
            batches=self.images // self.batch_size, batch_size=self.batch_size, size=self.size
        )
        data = load_data(self.data)
        return [
            Experiment.of(known("architecture", ARCHITECTURES, name), "version", data, settings)
            for name in dict.fromkeys(self.architectures)
        ]

    def run(self, case: Experiment, place: Workspace) -> Row:
        """Seconds by mode; measured once."""
        name = f"determinism/{case.name}-{self.pairs}"
        return place.once(name, lambda: _measured(case, self.pairs))

    def report(self, rows: Sequence[Row]) -> Report:
        return {
            "schema": SCHEMA.format("derived"),
            "name": "derived-determinism",
            "determinism": list(rows),
            "setting": {
                name: getattr(self, name) for name in ("images", "batch_size", "size", "pairs")
            },
            "machine": f"{machine()}.",
        }


def _measured(experiment: Experiment, pairs: int) -> Row:
    torch.manual_seed(experiment.settings.seed)
    network = experiment.architecture.build()
    images, labels = next(experiment.samples("U3.1.1"))
    cost = cost_of(
        network,
        lambda model: functional.cross_entropy(model(images[:_TIMED]), labels[:_TIMED]),
        pairs,
    )
    return {
        "architecture": experiment.architecture.name,
        "epoch": _epochs(experiment, network),
        "slow": [{"layer": each.layer, "type": each.type} for each in cost.slow[:_SHOWN]],
        "slow_layers": len(cost.slow),
        "layers": len(cost.layers),
    }


def _epochs(experiment: Experiment, network: nn.Module) -> dict[str, dict[str, float]]:
    """Of both kinds of kernels the seconds of all batches, and medians of a batch.

    Batch after batch is trained with both, so what else the machine does slows down both.
    """
    optimizer = experiment.prepare(network)
    laps: dict[str, list[Lap]] = {mode: [] for mode in _MODES}
    before = torch.are_deterministic_algorithms_enabled()
    try:
        for number, (images, labels) in enumerate(experiment.samples("U3.1.1")):
            for mode in _MODES[:: 1 if number % 2 else -1]:
                torch.use_deterministic_algorithms(mode == "deterministic")
                laps[mode].append(_batch(network, optimizer, images, labels))
    finally:
        torch.use_deterministic_algorithms(before)
    return {
        mode: {
            "epoch": sum(sum(lap) for lap in each),
            "forward": statistics.median(lap.forward for lap in each),
            "backward": statistics.median(lap.backward for lap in each),
        }
        for mode, each in laps.items()
    }


class Lap(NamedTuple):
    """Seconds of a batch."""

    forward: float
    backward: float
    step: float


def _batch(
    network: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor
) -> Lap:
    optimizer.zero_grad()
    times = [time.perf_counter()]
    loss = functional.cross_entropy(network(images), labels)
    times.append(time.perf_counter())
    loss.backward()  # type: ignore[no-untyped-call]
    times.append(time.perf_counter())
    optimizer.step()
    times.append(time.perf_counter())
    return Lap(*(end - begin for begin, end in pairwise(times)))
