"""Trials of a second: a regression of digits, and a way to run them in a process."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch

from reproduce.data import load_data
from reproduce.rework.training import Experiment
from reproduce.rework.trials import trials
from reproduce.rework.workloads import WORKLOADS, Images
from reproduce.workspace import Workspace

SCHEMES = ("lc:x=2,huffman", "scar:0.05", "topn-coded:0.05", "full:5")
TRIALS = 3


def experiment(optimizer: str = "sgd") -> Experiment:
    workload = replace(WORKLOADS["mlr"], window=(5, 12), evaluated=200)
    return Experiment(workload, Images(load_data()), optimizer)


def run(folder: Path, schemes=SCHEMES, count: int = TRIALS, progress=lambda *_: None):
    """The figures of each trial by scheme."""
    torch.set_num_threads(1)
    columns = trials(experiment(), schemes, count, Workspace(folder, progress))
    return {
        scheme: [
            dict(zip(figures, row, strict=True)) for row in zip(*figures.values(), strict=True)
        ]
        for scheme, figures in columns.items()
    }


def main(folder: str, after: str) -> None:
    """Runs the trials, and kills itself once ``after`` of them are done."""

    def progress(_: str, done: int, __: int) -> None:
        if done == int(after):
            os.kill(os.getpid(), signal.SIGKILL)

    run(Path(folder), progress=progress)


if __name__ == "__main__":
    main(*sys.argv[1:])
