"""Trials of a second: a regression of digits, and a way to run them in a process."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch
from mvc.evaluation.common.data import load_data
from mvc.evaluation.rework.training import Experiment
from mvc.evaluation.rework.trials import trials
from mvc.evaluation.rework.workloads import Images, workload_named

from mvc.io.files import FileSystem

SCHEMES = ("lc:x=2,huffman", "scar:0.05", "topn-coded:0.05", "full:5")
TRIALS = 3


def experiment(optimizer: str = "sgd") -> Experiment:
    workload = replace(workload_named("mlr"), window=(5, 12), evaluated=200)
    return Experiment(workload, Images(load_data(FileSystem())), optimizer)


def run(folder: Path, schemes=SCHEMES, count: int = TRIALS, tell=None):
    torch.set_num_threads(1)
    found = trials(experiment(), schemes, count, folder, FileSystem(), tell)
    return {scheme: [asdict(each) for each in made] for scheme, made in found.items()}


def main(folder: str, after: str) -> None:
    """Runs the trials, and kills itself once ``after`` of them are done."""

    def tell(_: str, done: int, __: int) -> None:
        if done == int(after):
            os.kill(os.getpid(), signal.SIGKILL)

    run(Path(folder), tell=tell)


if __name__ == "__main__":
    main(*sys.argv[1:])
