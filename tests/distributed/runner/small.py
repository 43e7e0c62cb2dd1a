"""A training of several processes as a user would write it; options by ``--name=value``.

Separable data of four classes; the whole takes about a second. ``SEED`` decides everything.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from torch import nn

SEED, BATCH, BATCHES, FEATURES, CLASSES = 7, 16, 60, 20, 4


def data(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(SEED))
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (count,), generator=draw)
    return centres[labels] + torch.randn(count, FEATURES, generator=draw), labels


def make(width: int = 32) -> nn.Module:
    torch.manual_seed(SEED)
    return nn.Sequential(
        nn.Linear(FEATURES, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, CLASSES)
    )


def batches(worker: int, count: int = BATCHES) -> list[tuple[torch.Tensor, torch.Tensor]]:
    inputs, labels = data(100 + worker, count * BATCH)
    return list(zip(inputs.split(BATCH), labels.split(BATCH), strict=True))


class Trainer:
    """One worker's model, optimizer and stream."""

    def __init__(self, worker: int, width: int = 32, count: int = BATCHES) -> None:
        self.model = make(width)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.stream = batches(worker, count)

    def step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        inputs, labels = batch
        self.model.train()
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(inputs), labels).backward()
        self.optimizer.step()


def accuracy(state: dict[str, torch.Tensor]) -> float:
    model = make(state["0.weight"].shape[0])
    model.load_state_dict(state)
    model.eval()
    inputs, labels = data(1, 4000)
    with torch.no_grad():
        return (model(inputs).argmax(1) == labels).double().mean().item()


def once(flag: str) -> bool:
    """True the first time that any process asks, ever."""
    try:
        Path(flag).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def main() -> None:
    import mvc.distributed

    torch.set_num_threads(1)
    options = dict(each[2:].split("=", 1) for each in sys.argv[1:])
    rank = int(os.environ["RANK"])
    given = dict(each.split(":") for each in options.get("settings", "").split(",") if each)
    settings = {k: float(v) if v[0].isdigit() else v for k, v in given.items()}
    trainer = Trainer(rank, count=int(options.get("count", BATCHES)))
    who, how, when = options.get("do", "-1:-:0").split(":")

    def act() -> None:
        Path("acted").touch()
        os.kill(os.getpid(), signal.SIGSTOP if how == "stop" else signal.SIGKILL)

    if options.get("unjoined") == str(rank):
        return
    with mvc.distributed.join(trainer.model, trainer.optimizer, **settings) as worker:
        for batch in worker.batches(trainer.stream):
            trainer.step(batch)
            time.sleep(float(options.get("pause", 0)))
            if who == str(rank) and worker.steps == int(when) and once("acted"):
                if how == "fail":
                    raise ValueError("no such thing")
                if how == "block":
                    threading.Event().wait()
                if how == "note":
                    continue
                if how == "soon":  # somewhere in an exchange, a commit, a batch
                    threading.Timer(random.random() / 5, act).start()
                else:
                    act()


if __name__ == "__main__":
    main()
