"""Frozen repositories with maintenance: collected, forgotten, undone, relinked, lossy, trained."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

import mvc
from mvc.api.repository import Repository
from mvc.model.statement import Deployment
from mvc.repo.commit.request import CommitOptions
from mvc.store.journal.entries import Entry
from mvc.store.publishing import publish as publishing
from tests.frozen.made import AUTHOR, START, Ticking, model, moved


def maintained(root: Path) -> None:
    """Forgotten, undone, collected, repacked, and worked on afterwards."""
    with Repository.init(root, clock=Ticking()) as repo:
        state, ids = model(), []
        for i in range(9):
            state = moved(state, i)
            ids.append(
                repo.commit(
                    state,
                    options=CommitOptions(author=AUTHOR),
                    deploy="prod" if i % 3 == 0 else None,
                ).id
            )
        repo.storage.forget([ids[1]])
        repo.branch("side", "HEAD~2")
        repo.switch("side", force=True)
        repo.commit(moved(state, 20), options=CommitOptions(author=AUTHOR), message="undone")
        repo.undo()
        repo.switch("main", force=True)
        repo.storage.repack(interval=3)
        repo.storage.gc(grace=timedelta(0))
        repo.storage.forget(keep_last=6)
        repo.commit(moved(state, 21), options=CommitOptions(author=AUTHOR, reset_point=True))
        repo.storage.gc(grace=timedelta(0))
        repo.commit(moved(state, 22), options=CommitOptions(author=AUTHOR), deploy="prod")


def relinked(root: Path) -> None:
    """A deployment with a wrong predecessor, which repair has corrected."""
    with Repository.init(root, clock=Ticking()) as repo:
        state = model()
        for i in range(4):
            state = moved(state, i)
            head = repo.commit(state, options=CommitOptions(author=AUTHOR), deploy="prod").id
        wrong = Deployment(subject=head, target="prod", time_ns=START + 10**12)
        entry = Entry("deploy", START + 10**12, "prod", statements=(wrong,))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(publishing, "entry_before", lambda *_: 1)
            publishing.publish(repo.handle.store.snapshot, lambda: entry)
        repo.storage.repair()
        repo.commit(moved(state, 9), options=CommitOptions(author=AUTHOR), deploy="prod")


TOPK = "topk:0.075,min=0.001,loss=-0.5 | xor | lsb:20 | sparse | zstd:1"


def lossy(root: Path) -> None:
    """Production weights of every lossy kind, grids among them."""
    with Repository.init(root, clock=Ticking()) as repo:
        for number, pipeline in enumerate((TOPK, "frontier-0", "frontier-1")):
            state = model(shape=(40, 60))
            for i in range(4):
                state = moved(state, i)
                name = f"{number}.safetensors"
                repo.commit(
                    state,
                    path=name,
                    pipeline=pipeline,
                    options=CommitOptions(author=AUTHOR),
                    metrics={"loss": 0.5},
                )


def trained(root: Path) -> None:
    """Weights and the full state of a training, recorded behind it."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    optimizer = torch.optim.Adam(net.parameters())
    random = np.random.default_rng(0)
    with (
        Repository.init(root, clock=Ticking()) as repo,
        mvc.Recorder(repo, net, optimizer, deploy="prod") as recorder,
    ):
        for _ in range(4):
            batch = torch.from_numpy(random.standard_normal((8, 6)).astype(np.float32))
            optimizer.zero_grad()
            loss = net(batch).square().mean()
            loss.backward()
            optimizer.step()
            recorder.step(loss=float(loss.detach()))
