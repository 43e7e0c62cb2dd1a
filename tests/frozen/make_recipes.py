"""A frozen repository with recipes: a base, a stored data set, three recorded trainings.

The weights of the first were dropped and collected, those of the second stored again by a replay.
"""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import patch

import torch

import mvc
from mvc.io.files import FileSystem
from mvc.models import environment
from mvc.repo.config import set_value
from tests.frozen.made import AUTHOR, Ticking

SERVICE = '''"""The training of a frozen repository."""

import torch


def train(model, optimizer, data, *, epochs):
    numbers = [float(line) for line in open(data)]
    for _ in range(epochs):
        optimizer.zero_grad()
        x = torch.randn(4, 16) + sum(numbers)
        model(x).square().mean().backward()
        optimizer.step()
'''


def recipes(root: Path) -> None:
    """A base, three trainings in a row, and a version on top without a recipe."""
    (root.parent / "frozen_service.py").write_text(SERVICE)
    (root.parent / "numbers.txt").write_text("1.5\n2.5\n")
    sys.path.insert(0, str(root.parent))
    import frozen_service

    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = mvc.constructed(torch.nn.Linear, 16, 24)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    mvc.Repository.init(root, clock=Ticking()).close()
    set_value(FileSystem(), root / ".mvc/config.yaml", "user.name", AUTHOR)
    with (
        patch.object(environment, "host_name", lambda: "example"),
        patch.object(environment.platform, "release", lambda: "6.1"),
        mvc.Repository.open(root, clock=Ticking()) as repo,
    ):
        repo.commit(model.state_dict())
        made = []
        for epochs in (1, 2, 3):
            with mvc.record(
                repo,
                model,
                optimizer,
                data=root.parent / "numbers.txt",
                service=frozen_service.train,
                verify=False,
            ) as run:
                run.train(epochs=epochs)
            assert run.result is not None
            made.append(run.result.id)
        repo.storage.repack(interval=1)  # no delta needs what is given up
        trust = list(map(str, made))
        for id_ in made[:2]:
            mvc.retrain(repo, id_, trust=trust)
        mvc.recipes.drop_weights(repo, made[:2])
        repo.storage.gc(grace="0")
        mvc.recipes.store_weights(repo, made[1], trust=trust)
        state = {name: value + 1 for name, value in model.state_dict().items()}
        repo.commit(state)
        repo.storage.gc(grace="0")
