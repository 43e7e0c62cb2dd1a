"""A training of several processes as a user would write it; options by ``--name=value``.

Separable data of four classes; the whole takes about a second. ``SEED`` decides everything.
"""

from __future__ import annotations

import os
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


def coordinator() -> int:
    """The process of the coordinator, which the same command, or this process, has started."""
    for parent in (os.getppid(), os.getpid()):
        for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            if "mvc.distributed.runner.coordinator" in Path(f"/proc/{pid}/cmdline").read_text():
                return int(pid)
    raise ProcessLookupError


class Hanging:
    """``--hang=RANK:HOW:STEP``: this process, or the coordinator, hangs at that step.

    ``hung`` in the working folder keeps when. STEP is also ``import``, ``end`` or ``exit``.
    """

    def __init__(self, option: str | None, rank: int) -> None:
        wanted, self._how, self._where = (option or ":::").split(":")[:3]
        self._everyone = wanted == "-1"
        self._mine = self._everyone or wanted == str(rank)

    def at(self, where: object) -> None:
        if self._mine and self._where == str(where) and (once("hung") or self._everyone):
            getattr(self, f"_{self._how.replace('-', '_')}")()

    def _stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def _stop_hub(self) -> None:
        os.kill(coordinator(), signal.SIGSTOP)

    def _block(self) -> None:
        threading.Event().wait()

    def _ignore(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._block()

    def _thread(self) -> None:
        threading.Thread(target=self._block).start()

    def _loader(self) -> None:
        """The process of a data loader is stopped, and this one waits for its batch."""
        loader = torch.utils.data.DataLoader(_Stopping(), num_workers=1)
        next(iter(loader))


class _Stopping(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGSTOP)
        return torch.zeros(1)


def main() -> None:
    import mvc.distributed

    torch.set_num_threads(1)
    options = dict(each[2:].split("=", 1) for each in sys.argv[1:])
    rank = int(os.environ["RANK"])
    width = int(options.get("width", 32))
    if options.get("other") == str(rank):
        width += 1
    given = dict(each.split(":") for each in options.get("settings", "").split(",") if each)
    settings = {k: v if k == "push" else float(v) for k, v in given.items()}
    count = 10 if options.get("short") == str(rank) else int(options.get("count", BATCHES))
    trainer = Trainer(rank, width, count)
    pause = float(options.get("pause", 0))
    hanging = Hanging(options.get("hang"), rank)
    hanging.at("import")
    if options.get("unjoined") == str(rank):
        return
    with mvc.distributed.join(trainer.model, trainer.optimizer, **settings) as worker:
        for batch in worker.batches(trainer.stream):
            trainer.step(batch)
            time.sleep(pause)
            hanging.at(worker.steps)
            if options.get("nan") == str(rank) and worker.steps == 9:
                with torch.no_grad():
                    trainer.model[0].bias[3] = float("nan")
            if options.get("fail") == str(rank) and worker.steps == 9:
                raise ValueError("no such thing")
            if options.get("kill") == f"{rank}:{worker.steps}" and once("killed-worker"):
                os.kill(os.getpid(), signal.SIGKILL)
            if options.get("decapitate") == f"{rank}:{worker.steps}" and once("killed-hub"):
                os.kill(coordinator(), signal.SIGKILL)
        hanging.at("end")
    hanging.at("exit")


if __name__ == "__main__":
    main()
