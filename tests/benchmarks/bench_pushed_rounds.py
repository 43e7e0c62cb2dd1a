"""What pushing costs the rounds of ``mvc train-distributed -O push=REMOTE``, in one run.

    python -m tests.benchmarks.bench_pushed_rounds [--blocks 30] [--parameters 1000000]

Two workers are processes of their own; their steps wait for a device that is not this processor.
Rounds come in blocks: in the first of three the remote gets every global model, in the second
nothing is pushed, in the third the remote is away. A round lasts from one global model to the
next. Printed are medians, their ratios to those of rounds without a push, and whether all global
models were at the remote in the end.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

import mvc
from mvc.distributed.runner import coordinator
from mvc.distributed.runner.launch import ADDRESS
from mvc.distributed.runner.settings import TOKEN
from mvc.training.pushing import Pusher
from tests.benchmarks.measuring import folder as work_folder

KINDS = ("pushed", "not pushed", "remote away")
ROUNDS, STEPS, WAIT = 5, 10, 0.05  # of a block; of a round; seconds of a step


class Switched(Pusher):
    """Passes commits on while ``on``."""

    on, held = True, 0

    def committed(self, count: int = 1) -> None:
        self.held += count
        if self.on:
            count, self.held = self.held, 0
            super().committed(count)


class Switches:
    """Hears of every round, and says what happens in the next one."""

    def __init__(self, remote: Path) -> None:
        self.durations: dict[str, list[float]] = defaultdict(list)
        self.port = 0
        self._remote, self._away = remote, remote.with_name("away")
        self._kind = KINDS[0]
        self._last = 0.0

    def tell(self, event: str, **fields: Any) -> None:
        if event == "listening":
            self.port = fields["port"]
        elif event == "round":
            now = time.perf_counter()
            if fields["round"] > ROUNDS:  # the first block warms up
                self.durations[self._kind].append(now - self._last)
            self._last = now
            self._switch(KINDS[fields["round"] // ROUNDS % len(KINDS)])
        elif event in {"begins", "not pushed", "pushed"}:
            print(event, fields, file=sys.stderr)

    def _switch(self, kind: str) -> None:
        if kind == self._kind:
            return
        self._kind = kind
        Switched.on = kind != "not pushed"
        if kind == "remote away":
            self._remote.rename(self._away)
        elif self._away.exists():
            self._away.rename(self._remote)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    blocks = options.blocks - options.blocks % len(KINDS)  # the last model is pushed again
    if options.work:
        work(options.parameters, blocks * ROUNDS * STEPS)
        return
    with work_folder() as folder:
        measure(folder, blocks, options.parameters)


def work(parameters: int, steps: int) -> None:
    """One worker."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(500, parameters // 1000), nn.Linear(parameters // 1000, 500))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with mvc.distributed.join(model) as worker:
        for _ in worker.batches(range(steps)):
            optimizer.zero_grad()
            model(torch.randn(4, 500)).square().mean().backward()
            optimizer.step()
            time.sleep(WAIT)


def measure(folder: Path, blocks: int, parameters: int) -> None:
    mvc.Repository.init(folder / "there", bare=True).close()
    with mvc.Repository.init(folder / "here") as repo:
        repo.remotes.add("origin", folder / "there")
    switches = Switches(folder / "there")
    coordinator.Pusher = Switched  # type: ignore[attr-defined]
    os.environ[TOKEN] = secrets.token_hex(16)
    settings = {"repo": str(folder / "here"), "protocol": "local-sgd", "every": STEPS}
    job = {"workers": 2, "start": 60.0, "settings": {**settings, "push": "origin"}}
    service = threading.Thread(target=coordinator.Service(job, switches.tell).run)
    service.start()
    while not switches.port:
        time.sleep(0.05)
    command = [sys.executable, "-m", "tests.benchmarks.bench_pushed_rounds", "--work", "1"]
    command += ["--parameters", str(parameters), "--blocks", str(blocks)]
    place = {ADDRESS: f"127.0.0.1:{switches.port}", "WORLD_SIZE": "2"}
    workers = [
        subprocess.Popen(command, env={**os.environ, **place, "RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]
    for worker in workers:
        assert worker.wait() == 0
    service.join()
    with (
        mvc.Repository.open(folder / "here") as repo,
        mvc.Repository.open(folder / "there") as there,
    ):
        made, known = ({d.commit for d in r.deployments("global")} for r in (repo, there))
    print(f"{len(made)} global models, {len(made - known)} of them not at the remote in the end")
    usual = statistics.median(switches.durations["not pushed"])
    for kind in KINDS:
        found = switches.durations[kind]
        middle = statistics.median(found)
        print(f"| {kind} | {len(found)} | {1000 * middle:.0f} | {middle / usual:.3f} |")


if __name__ == "__main__":
    main()
