"""Trains with one framework and records, until it is killed; goes on from the newest version.

``python -m tests.frameworks.killed_runs FRAMEWORK FOLDER`` says on stdout ``call DIGESTS`` before
a version is recorded, with a digest of each tensor of the model, and ``durable N`` behind it: at
least so many versions of this process are durable.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

import mvc
from mvc.errors import CannotResume, UnknownRevision

__all__ = ["PATHS", "RUNS", "digests"]

PATHS = {"fsspec": "ck/model.pt", "dcp": "ck/model.safetensors"}
"""Where a framework keeps the model, if that is not the place of all others."""
_STEPS = 10_000
_STAGED = 3  # versions that may wait: two in the queue, and that of the step that is not over


def digests(tensors: Iterable[torch.Tensor]) -> set[str]:
    """By content alone: frameworks name tensors each in their own way."""
    return {hashlib.sha256(_bits(tensor)).hexdigest()[:20] for tensor in tensors}


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def call(tensors: Iterable[torch.Tensor]) -> None:
    os.write(1, f"call {' '.join(sorted(digests(tensors)))}\n".encode())


def durable(count: int) -> None:
    os.write(1, f"durable {count}\n".encode())


def newest(folder: Path) -> bool:
    """Whether there is a version to go on from; the repository is there afterwards."""
    if not (folder / ".mvc").exists():
        mvc.Repository.init(folder).close()
    with mvc.Repository.open(folder) as repo:
        try:
            return repo.find("HEAD") is not None
        except UnknownRevision:
            return False


# -- checkpoints that a loop of one's own writes ---------------------------------------------


def _loop(
    save: Callable[[Mapping[str, Any]], object], load: Callable[[dict[str, Any]], object] | None
) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if load is not None:
        state = model.state_dict()
        load(state)
        model.load_state_dict(state)
    for number in range(1, _STEPS):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        call(model.state_dict().values())
        save(model.state_dict())
        durable(number)


def fsspec(folder: Path) -> None:
    import fsspec as library

    url = f"mvc://{folder}@main/{PATHS['fsspec']}"

    def save(state: Mapping[str, Any]) -> None:
        with library.open(url, "wb") as file:
            torch.save(dict(state), file)

    def load(state: dict[str, Any]) -> None:
        with library.open(url, "rb") as file:
            state.update(torch.load(io.BytesIO(file.read()), weights_only=True))

    _loop(save, load if newest(folder) else None)


def dcp(folder: Path) -> None:
    import torch.distributed.checkpoint as library

    from mvc.frameworks.dcp import MvcReader, MvcWriter

    def save(state: Mapping[str, Any]) -> None:
        writer = MvcWriter(folder, path=PATHS["dcp"])
        library.save(dict(state), storage_writer=writer, no_dist=True)

    def load(state: dict[str, Any]) -> None:
        library.load(state, storage_reader=MvcReader(folder, path=PATHS["dcp"]), no_dist=True)

    _loop(save, load if newest(folder) else None)


# -- callbacks -------------------------------------------------------------------------------


def huggingface(folder: Path) -> None:
    from transformers import TrainerCallback

    from mvc.frameworks.huggingface.callback import MVCCallback
    from tests.frameworks.huggingface_runs import trainer

    class Before(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **live: Any) -> None:
            call(live["model"].state_dict().values())

    class After(TrainerCallback):
        steps = 0

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.steps += 1  # the callback reports at its end alone
            durable(max(0, self.steps - _STAGED))

    going_on = newest(folder)
    recording = MVCCallback(folder)
    run = trainer(folder.parent, [Before(), recording, After()], max_steps=_STEPS)
    if going_on:
        recording.resume(run)
    else:
        run.train()


def keras(folder: Path) -> None:
    from tests.frameworks.keras_runs import MVCCallback, fit, made
    from tests.frameworks.keras_runs import keras as library

    class Before(library.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            call(variable.value for variable in self.model.weights)

    class After(library.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            durable(recording.report.durable)

    going_on = newest(folder)
    with mvc.Repository.open(folder) as repo:
        recording = MVCCallback(repo, resume="HEAD" if going_on else None)
        fit(made(), Before(), recording, After(), epochs=_STEPS)


def lightning(folder: Path) -> None:
    import lightning.pytorch as library

    from mvc.frameworks.lightning.callback import MVCCallback
    from tests.frameworks.lightning_runs import fit

    class Before(library.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            call(pl_module.state_dict().values())

    class After(library.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            durable(recording.report.durable)

    going_on = newest(folder)
    recording, path = MVCCallback(folder), None
    if going_on:
        try:
            path = recording.resume("HEAD")
        except CannotResume:  # it died between a batch and the end of its epoch
            path = recording.resume("HEAD~1")
    fit(Before(), recording, After(), resume=path, max_epochs=_STEPS)


RUNS = {run.__name__: run for run in (fsspec, dcp, huggingface, keras, lightning)}

if __name__ == "__main__":
    torch.set_num_threads(1)
    RUNS[sys.argv[1]](Path(sys.argv[2]))
