"""A training of seconds: digits, ten online batches, and a way to record it in a process."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from mvc.evaluation.common.data import load_data
from mvc.evaluation.drift.experiment import Experiment, Settings
from mvc.evaluation.drift.stream import Stream, record

from mvc.io.files import FileSystem

BATCHES = 24
SETTINGS = Settings(batches=BATCHES, epochs=2, offline="0.2")


def experiment(label: int = 0) -> Experiment:
    return Experiment.of(load_data(FileSystem()), SETTINGS, label)


def recorded(folder: Path, label: int = 0) -> Stream:
    torch.set_num_threads(1)
    return record(experiment(label), folder, FileSystem())


def main(folder: str, what: str, done: str) -> None:
    """Records, and kills itself once ``done`` of ``what`` are done."""

    def tell(said: str, count: int, _: int) -> None:
        if said.startswith(what) and count == int(done):
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    record(experiment(), Path(folder), FileSystem(), tell)


if __name__ == "__main__":
    main(*sys.argv[1:])
