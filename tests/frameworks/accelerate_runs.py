"""A small training with accelerate, every bit of which depends on what resuming restores.

As a program it goes on from HEAD and writes the bits: ``FOLDER STEPS RESULT``.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DataLoaderConfiguration
from torch import nn

from mvc.frameworks.accelerate.recording import Attached, attach

SAMPLES, BATCH, ACCUMULATE = 28, 4, 2  # 7 batches an epoch


class Count:
    """An object of the program's own, registered for checkpoints."""

    def __init__(self) -> None:
        self.value = 0
        self.marks: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "marks": list(self.marks)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self.marks = state["value"], list(state["marks"])


class Run:
    """Prepared model, optimizer, scheduler and loader; ``seedable``, ``own``: whence the order."""

    def __init__(
        self, seed: int = 3, *, seedable: bool = False, own: bool = False, hidden: int = 8
    ) -> None:
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
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
            torch.randn(SAMPLES, 6, generator=generator),
            torch.randint(3, (SAMPLES,), generator=generator),
        )
        order = torch.Generator().manual_seed(seed) if own else None
        loader = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True, generator=order)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
        self.net, self.optimizer, self.scheduler, self.loader = self.accelerator.prepare(
            net, optimizer, scheduler, loader
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
                if save_at and self.count.value in save_at:
                    self.accelerator.save_state(str(save_at[self.count.value]))
                if self.count.value == until:
                    return

    def bits(self) -> dict[str, bytes]:
        found = {f"model/{k}": raw(v) for k, v in self.net.state_dict().items()}
        names = {id(p): n for n, p in self.net.named_parameters()}
        for parameter, values in self.optimizer.optimizer.state.items():
            found.update({f"{names[id(parameter)]}/{k}": raw(v) for k, v in values.items()})
        found["lr"] = repr(self.scheduler.get_last_lr()).encode()
        found["count"] = repr(self.count.state_dict()).encode()
        found["torch"] = raw(torch.get_rng_state())
        found["numpy"] = np.asarray(np.random.get_state(legacy=True)[1]).tobytes()
        found["python"] = repr(random.getstate()).encode()
        return found


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().clone().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def main() -> None:
    folder, until, result = sys.argv[1:]
    torch.set_num_threads(1)
    run = Run(seed=50)
    with attach(run.accelerator, Path(folder) / "models") as attached:
        attached.load("HEAD")
        run.train(attached, int(until))
        torch.save(run.bits(), result)


if __name__ == "__main__":
    main()
