"""Trains and records approximated checkpoints until it is killed; tells what was acknowledged.

    python -m tests.training.lc_child REPOSITORY

Goes on from the newest version, if there is one. ``saved COMMIT DIGEST`` once a version is
durable: the digest is of the weights that the encoder has.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import nn

import mvc
from mvc.state import ServedVersion
from mvc.training import approximator
from tests.training.child import digest

PIPELINE = "lc:x=2"


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.Dropout(0.2), nn.Linear(128, 10))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    approximator.DUE = 24  # so that steps are joined while it runs
    trained = model()
    optimizer = torch.optim.Adam(trained.parameters())
    folder = Path(sys.argv[1])
    repo = mvc.Repository.open(folder) if (folder / ".mvc").exists() else None
    done: int | mvc.Resumed = 0
    if repo is None:
        repo = mvc.Repository.init(folder)
    elif list(repo.log(limit=1)):
        done = mvc.resume(repo, trained, optimizer)

    def told(version: ServedVersion) -> None:
        os.write(1, f"saved {version.commit} {digest(dict(version.state))}\n".encode())

    with mvc.Recorder(
        repo, trained, optimizer, pipeline=PIPELINE, on_deploy=told, start=done
    ) as recorder:
        batch = done.step if isinstance(done, mvc.Resumed) else done
        while True:
            optimizer.zero_grad()
            trained(torch.randn(16, 64)).square().mean().backward()
            optimizer.step()
            recorder.step(batch=batch)
            batch += 1


if __name__ == "__main__":
    main()
