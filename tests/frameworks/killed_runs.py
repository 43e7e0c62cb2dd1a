"""Trains with one framework and records, until it is killed; goes on from the newest version.

``python -m tests.frameworks.killed_runs FRAMEWORK FOLDER STEPS`` says on stdout ``call DIGESTS``
before a version is recorded, with a digest of each tensor of the model, and ``durable N``: at least
so many versions of this process are durable. At its end it says ``bits`` and a digest of all bits.
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
from tests.frameworks.trainings import NAMES, digests, runs

__all__ = ["CHECKPOINTS", "PATHS"]

PATHS = {"fsspec": "ck/model.pt", "dcp": "ck/model.safetensors"}
"""Where a framework keeps the model, if that is not the place of all others."""


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
    save: Callable[[Mapping[str, Any]], object],
    load: Callable[[dict[str, Any]], object] | None,
    steps: int,
) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if load is not None:
        state = model.state_dict()
        load(state)
        model.load_state_dict(state)
    for number in range(1, steps):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        call(model.state_dict().values())
        save(model.state_dict())
        durable(number)


def fsspec(folder: Path, steps: int) -> None:
    import fsspec as library

    url = f"mvc://{folder}@main/{PATHS['fsspec']}"

    def save(state: Mapping[str, Any]) -> None:
        with library.open(url, "wb") as file:
            torch.save(dict(state), file)

    def load(state: dict[str, Any]) -> None:
        with library.open(url, "rb") as file:
            state.update(torch.load(io.BytesIO(file.read()), weights_only=True))

    _loop(save, load if newest(folder) else None, steps)


def dcp(folder: Path, steps: int) -> None:
    import torch.distributed.checkpoint as library

    from mvc.frameworks.dcp import MvcReader, MvcWriter

    def save(state: Mapping[str, Any]) -> None:
        writer = MvcWriter(folder, path=PATHS["dcp"])
        library.save(dict(state), storage_writer=writer, no_dist=True)

    def load(state: dict[str, Any]) -> None:
        library.load(state, storage_reader=MvcReader(folder, path=PATHS["dcp"]), no_dist=True)

    _loop(save, load if newest(folder) else None, steps)


CHECKPOINTS = {run.__name__: run for run in (fsspec, dcp)}


# -- callbacks -------------------------------------------------------------------------------


def trained(name: str, folder: Path, steps: int) -> None:
    framework = runs(name)

    def act(_: int, tensors: Iterable[torch.Tensor]) -> None:
        report = recording.report
        durable(0 if report is None else report.durable)
        call(tensors)

    def train(rev: str | None) -> Any:
        return framework.train(folder.parent, steps, recording, resume=rev, act=act)

    going_on = newest(folder)
    recording = framework.recorder(folder)
    try:
        done = train("HEAD" if going_on else None)
    except CannotResume:  # it died between a batch and the end of its epoch
        done = train("HEAD~1")
    raw = b"".join(done.bits[key] for key in sorted(done.bits))
    os.write(1, f"bits {hashlib.sha256(raw).hexdigest()}\n".encode())


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, where, until = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if what in NAMES:
        trained(what, where, until)
    else:
        CHECKPOINTS[what](where, until)
