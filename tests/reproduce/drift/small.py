"""A training of seconds: digits, ten online batches, and a way to record it in a process."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from reproduce.data import load_data
from reproduce.drift.split import Experiment, Settings
from reproduce.drift.stream import Stream, record

BATCHES = 24
SETTINGS = Settings(batches=BATCHES, epochs=2, offline="0.2")


def experiment(label: int = 0) -> Experiment:
    return Experiment.of(load_data(), SETTINGS, label)


def recorded(folder: Path, label: int = 0) -> Stream:
    torch.set_num_threads(1)
    return record(experiment(label), folder)


def main(folder: str, what: str, done: str) -> None:
    """Records, and kills itself once ``done`` of ``what`` are done."""

    def progress(what_: str, count: int, _: int) -> None:
        if what_.startswith(what) and count == int(done):
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    record(experiment(), Path(folder), progress)


if __name__ == "__main__":
    main(*sys.argv[1:])
