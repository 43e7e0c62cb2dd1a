"""A frozen repository of optimizers' steps.

Each optimizer trains in a file of its own, so that records name bases, inputs and signs by every
rule that its steps take, also after versions were forgotten and stored anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from mvc.api.repository import Repository
from mvc.ids import CommitId
from tests.frozen.made import Ticking

_STEPS = 4
_Made = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, _Made] = {
    "adam": lambda p: torch.optim.Adam(p, amsgrad=True, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
    "rmsprop-momentum": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.1),
    "sgd-nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
}


def predicted(root: Path) -> None:
    torch.set_num_threads(1)
    with Repository.init(root, clock=Ticking()) as repo:
        made = [_train(repo, make, name) for name, make in OPTIMIZERS.items()]
        for ids in made[:2]:
            repo.storage.forget(ids[1], reason="in the middle of a run")
        repo.storage.gc(grace="0")


def _train(repo: Repository, make: _Made, name: str) -> list[CommitId]:
    torch.manual_seed(7)
    model = torch.nn.Linear(20, 10, dtype=torch.float64 if name == "sgd" else torch.float32)
    optimizer = make(model.parameters())
    ids = []
    for step in range(_STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 20, dtype=model.weight.dtype)).square().mean().backward()
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        ids.append(repo.commit(state, path=f"{name}.safetensors", message=f"{step}").id)
    return ids
