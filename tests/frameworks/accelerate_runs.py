"""A small training with accelerate, every bit of which depends on what resuming restores."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DataLoaderConfiguration
from torch import nn

import mvc
from mvc.frameworks.accelerate.recording import Attached, attach
from tests.frameworks.trainings import Act, Trained, bits_of_all, buffers, disturb

SAMPLES, BATCH, ACCUMULATE = 28, 4, 2
EPOCH = 7
LOGS = ENDS = False
HYPER = {"optimizer.lr": "0.01", "optimizer.betas": "[0.9, 0.999]", "num_processes": "1"}


class Count:
    """An object of the program's own, registered for checkpoints."""

    def __init__(self) -> None:
        self.value = 0
        self.marks: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "marks": list(self.marks)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self.marks = state["value"], list(state["marks"])


def cosine(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)


class Run:
    """Prepared model, optimizer, scheduler and loader; ``seedable``, ``own``: whence the order."""

    def __init__(
        self, seed: int = 3, *, seedable: bool = False, own: bool = False, hidden: int = 8,
        rows: int = SAMPLES, batch: int = BATCH, schedule: Callable[[Any], Any] = cosine,
        act: Act | None = None,
    ) -> None:  # fmt: skip
        self._act = act
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        disturb(seed)
        self.accelerator = Accelerator(
            cpu=True,
            gradient_accumulation_steps=ACCUMULATE,
            dataloader_config=DataLoaderConfiguration(use_seedable_sampler=seedable),
        )
        net = nn.Sequential(
            nn.Linear(6, hidden), nn.BatchNorm1d(hidden), nn.Dropout(0.3), nn.Linear(hidden, 3)
        )
        generator = torch.Generator().manual_seed(7)
        data = torch.utils.data.TensorDataset(
            torch.randn(SAMPLES, 6, generator=generator)[:rows],
            torch.randint(3, (SAMPLES,), generator=generator)[:rows],
        )
        order = torch.Generator().manual_seed(seed) if own else None
        loader = torch.utils.data.DataLoader(data, batch_size=batch, shuffle=True, generator=order)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        self.net, self.optimizer, self.scheduler, self.loader = self.accelerator.prepare(
            net, optimizer, schedule(optimizer), loader
        )
        self.count = Count()
        self.accelerator.register_for_checkpointing(self.count)

    def train(self, attached: Attached, until: int, save_at: dict[int, Path] | None = None) -> None:
        """Batches up to number ``until``, over as many epochs as it takes."""
        while self.count.value < until:
            for inputs, labels in attached.batches(self.loader):
                with self.accelerator.accumulate(self.net):
                    noise = float(np.random.standard_normal()) + random.gauss(0, 1)
                    loss = nn.functional.cross_entropy(self.net(inputs + 0.01 * noise), labels)
                    self.accelerator.backward(loss)
                    self.optimizer.step()
                    self.scheduler.step()
                    self.optimizer.zero_grad()
                self.count.value += 1
                self.count.marks.append(loss.item())
                if self._act is not None:
                    self._act(self.count.value, self.net.state_dict().values())
                if save_at and self.count.value in save_at:
                    self.accelerator.save_state(str(save_at[self.count.value]))
                if self.count.value == until:
                    return

    def bits(self) -> dict[str, bytes]:
        count = repr(self.count.state_dict()).encode()
        return {**bits_of_all(self.net, [self.optimizer]), "count": count}


class Attaching:
    """What ``attach`` is given, and ``Attached`` once a training has begun."""

    def __init__(self, repo: Any, every: int = 1, **options: Any) -> None:
        attach(Run().accelerator, repo, **options).close()  # looks at all arguments
        self._repo, self._options = repo, options
        self.every = every
        self.attached: Any = None

    def attach(self, accelerator: Any) -> Any:
        self.attached = attach(accelerator, self._repo, **self._options)
        return self.attached

    @property
    def report(self) -> Any:
        return self.attached.report


recorder = Attaching


def train(
    folder: Path, steps: int, recording: Any = None, *, resume: str | None = None, seed: int = 3,
    act: Act | None = None, wide: bool = False,
) -> Trained:  # fmt: skip
    """A step is a batch, after which the state is saved."""
    run = Run(seed, hidden=9 if wide else 8, act=act)
    every = steps + 1 if recording is None else recording.every
    saves = dict.fromkeys(range(every, steps + 1, every), folder / "saved")
    with ExitStack() as closing:
        if recording is None:  # for its order of batches
            plain = closing.enter_context(mvc.Repository.init(folder / secrets.token_hex(8)))
            attached = closing.enter_context(attach(run.accelerator, plain))
        else:
            attached = closing.enter_context(recording.attach(run.accelerator))
        resumed = None if resume is None else attached.load(resume or None)
        run.train(attached, steps, saves)
    return Trained(run.bits(), buffers(run.net), resumed)
