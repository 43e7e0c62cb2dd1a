"""Trains with the callback until it is killed; says on stdout after each batch what it did."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from mvc.frameworks.lightning.callback import MVCCallback
from tests.frameworks.lightning_runs import existing, fit, validation

EPOCHS = 6


class Says(pl.Callback):
    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        os.write(1, f"batch {trainer.global_step}\n".encode())


if __name__ == "__main__":
    torch.set_num_threads(1)
    fit(MVCCallback(existing(Path(sys.argv[1]))), Says(), validate=validation(), max_epochs=EPOCHS)
