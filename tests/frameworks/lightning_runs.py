"""A small Lightning training whose every bit depends on everything that resuming has to restore."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import mvc
from mvc.errors import NotARepository
from mvc.frameworks.lightning.callback import MVCCallback
from tests.frameworks.trainings import Act, Trained, bits_of_all, buffers, disturb

BATCHES = EPOCH = 5
LOGS = ENDS = True
HYPER = {"plateau": "false"}
SIZE = 4
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "num_sanity_val_steps": 2,
}
_generator = torch.Generator().manual_seed(7)
INPUTS = torch.randn(BATCHES * SIZE, 6, generator=_generator)
LABELS = torch.randint(3, (BATCHES * SIZE,), generator=_generator)


class Noisy(Dataset[Any]):
    """Draws from the global generators for every sample, as augmentation does."""

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, index: int) -> Any:
        noise = torch.randn(6) + random.gauss(0, 1) + np.random.standard_normal()
        return INPUTS[index] + 0.01 * noise.float(), LABELS[index]


class Net(pl.LightningModule):
    """Dropout, batch norm, a frozen layer, a buffer outside of the state, a trace of its bits."""

    def __init__(self, plateau: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(6, 12)
        self.norm = nn.BatchNorm1d(12)
        self.frozen = nn.Linear(12, 12)
        self.frozen.requires_grad_(False)
        self.drop = nn.Dropout(0.4)
        self.last = nn.Linear(12, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)
        self.plateau = plateau
        self.save_hyperparameters()
        self.trace: list[str] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.last(self.drop(torch.tanh(self.frozen(x)))) + 1e-3 * self.calls

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.calls += 1
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.trace.append(digest(self.state_dict(), batch))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self(x), y) + torch.rand(()))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=0.01)
        if self.plateau:
            scheduler: Any = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            return {"optimizer": optimizer, "lr_scheduler": {
                "scheduler": scheduler, "monitor": "val_loss"}}  # fmt: skip
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 3, 8], gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {
            "scheduler": scheduler, "interval": "step"}}  # fmt: skip


def digest(state: dict[str, Any], *more: Any) -> str:
    made = hashlib.sha256()
    for tensor in [*state.values(), *[t for item in more for t in item]]:
        made.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    return made.hexdigest()


def same(a: Any, b: Any) -> bool:
    """Types, order and bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and digest({"": a}) == digest({"": b})
    if isinstance(a, dict):
        notes = [getattr(x, "_metadata", None) for x in (a, b)]
        return list(a) == list(b) and same(*notes) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(repr(a) == repr(b)) if isinstance(a, float) else bool(a == b)


def bits(module: pl.LightningModule, trainer: pl.Trainer) -> list[str]:
    """Weights, buffers outside of the state, moments and rates, the next random numbers."""
    rows = [digest(module.state_dict(), [b for _, b in module.named_buffers()])]
    for optimizer in trainer.optimizers:
        values = [v for state in optimizer.state_dict()["state"].values() for v in state.values()]
        rows.append(digest({}, [torch.as_tensor(v) for v in values]))
        rows.append(repr([group["lr"] for group in optimizer.param_groups]))
    return rows


def loader(workers: int = 0, **options: Any) -> DataLoader[Any]:
    return DataLoader(Noisy(), batch_size=SIZE, shuffle=True, num_workers=workers, **options)


def validation() -> DataLoader[Any]:
    return DataLoader(TensorDataset(INPUTS, LABELS), batch_size=10, shuffle=True)


def existing(folder: Path) -> Path:
    """The folder, which is a repository from now on."""
    try:
        mvc.Repository.open(folder, discover=False).close()
    except NotARepository:
        mvc.Repository.init(folder).close()
    return folder


def fit(
    *callbacks: pl.Callback,
    resume: str | None = None,
    module: Callable[[], Any] = Net,
    train: Any = None,
    validate: Any = None,
    first_seed: int = 0,
    **options: Any,
) -> tuple[Any, pl.Trainer]:
    """A fresh training with new objects; where it resumes, its seed must not matter."""
    disturb(first_seed)
    model = module()
    trainer = pl.Trainer(callbacks=list(callbacks), **{**QUIET, **options})
    trainer.fit(model, loader() if train is None else train, validate, ckpt_path=resume)
    return model, trainer


class Acts(pl.Callback):
    def __init__(self, act: Act) -> None:
        self._act = act

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self._act(trainer.global_step, pl_module.state_dict().values())


def recorder(repo: Any, every: int = 1, **options: Any) -> MVCCallback:
    return MVCCallback(repo, every_n_steps=every, **options)


def wider() -> Net:
    made = Net()
    made.last = nn.Linear(12, 4)
    return made


def train(
    folder: Path, steps: int, recording: Any = None, *, resume: str | None = None, seed: int = 3,
    act: Act | None = None, wide: bool = False,
) -> Trained:  # fmt: skip
    callbacks = [*([] if act is None else [Acts(act)]), *([] if recording is None else [recording])]
    model, trainer = fit(
        *callbacks, resume=None if resume is None else recording.resume(resume or None),
        module=wider if wide else Net, validate=validation(), first_seed=seed, max_steps=steps,
    )  # fmt: skip
    found = bits_of_all(model, trainer.optimizers, generators=False)
    return Trained(found, buffers(model), None if recording is None else recording.resumed)
