"""Trainings whose optimizers do what nobody expects: every version comes back bit for bit.

Random optimizers with random numbers; between steps the numbers change, groups come, parameters
freeze, weights are clipped, gradients are zero, infinite, tiny or missing, states are reset, steps
are left out. Versions are Python states, checkpoint files or a Recorder's.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mvc
from tests.seeds import draw
from tests.training.runs import bits_of

ROUNDS = [*range(4), *(pytest.param(n, marks=pytest.mark.long) for n in range(4, 60))]
STEPS = 9

OPTIMIZERS: list[tuple[Any, dict[str, list[Any]]]] = [
    (
        torch.optim.Adam,
        {"amsgrad": [True, False], "fused": [True, None], "maximize": [True, False]},
    ),
    (torch.optim.AdamW, {"foreach": [True, False], "betas": [(0.9, 0.95), (0.0, 0.9)]}),
    (torch.optim.NAdam, {"decoupled_weight_decay": [True, False]}),
    (torch.optim.RAdam, {"decoupled_weight_decay": [True, False]}),
    (torch.optim.Adamax, {"eps": [1e-8, 0.0]}),
    (torch.optim.Adagrad, {"lr_decay": [0.0, 0.1]}),
    (torch.optim.RMSprop, {"centered": [True, False], "momentum": [0.0, 0.9]}),
    (torch.optim.SGD, {"momentum": [0.9, 0.0], "dampening": [0.1, 0.0]}),
    (torch.optim.SGD, {"momentum": [0.9], "nesterov": [True]}),
    (torch.optim.Rprop, {}),
    (torch.optim.ASGD, {}),
    (torch.optim.Adadelta, {}),
]


class Odd(nn.Module):
    """Shapes that repeat, a buffer of a parameter's shape, one number, nothing, tied weights."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.rows = nn.Embedding(40, 24)
        self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(3))
        self.norm = nn.BatchNorm1d(24)
        self.scale = nn.Parameter(torch.ones(()))
        self.empty = nn.Parameter(torch.ones(0, 3))
        self.tied = self.layers[0].weight
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.rows(x)
        for layer in self.layers:
            x = self.norm(torch.tanh(layer(x)))
        return x * self.scale + self.empty.sum()


class Trained:
    """A training that draws what happens."""

    def __init__(self, random: random.Random) -> None:
        self.random = random
        torch.manual_seed(random.getrandbits(31))
        dtype = random.choice([torch.float32] * 4 + [torch.float64, torch.bfloat16])
        self.model = Odd(dtype)
        kind, flags = random.choice(OPTIMIZERS)
        options = {name: random.choice(values) for name, values in flags.items()}
        options["lr"] = random.choice([1e-3, 0.1, 0.0, 1e-30, torch.tensor(0.01)])
        options["weight_decay"] = random.choice([0.0, 0.1])
        if isinstance(options["lr"], torch.Tensor) and (
            kind in {torch.optim.Adagrad, torch.optim.ASGD} or options.get("foreach")
        ):
            options["lr"] = 0.01
        if kind in {torch.optim.Rprop}:
            del options["weight_decay"]
        every = list(self.model.parameters())
        self.later = every[-2:] if random.random() < 0.5 else []
        first = every[: len(every) - len(self.later)]
        if random.random() < 0.3:
            random.shuffle(first)
        self.optimizer = kind(first, **options)
        self.what = f"{kind.__name__} {options} {dtype}"

    def step(self) -> None:
        draw = self.random
        x = torch.randint(40 if draw.random() < 0.8 else 5, (8,))
        self.optimizer.zero_grad(set_to_none=draw.random() < 0.5)
        self.model(x).float().square().mean().backward()
        event = draw.choice(["", "", "lr", "group", "freeze", "clip", "grad", "reset", "load"])
        every = list(self.model.parameters())
        if event == "lr":
            for group in self.optimizer.param_groups:
                group["lr"] = draw.choice([1e-4, 0.5, -0.1, 1e-300])
        elif event == "group" and self.later:
            self.optimizer.add_param_group({"params": [self.later.pop()]})
        elif event == "freeze":
            chosen = draw.choice(every)
            chosen.requires_grad_(not chosen.requires_grad)
        elif event == "grad":
            value = draw.choice([0.0, float("inf"), float("nan"), 1e-42, -0.0, None])
            chosen = draw.choice(every)
            chosen.grad = None if value is None else torch.full_like(chosen, value)
        elif event == "reset":
            self.optimizer.state.pop(draw.choice(every), None)
        elif event == "load":
            self.optimizer.load_state_dict(self.optimizer.state_dict())
        self.optimizer.step()
        if event == "clip":
            with torch.no_grad():
                draw.choice(every).clamp_(-0.01, 0.01)


def flat(value: Any) -> Any:
    """Every bit of a nested state."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), bits_of(value)
    if isinstance(value, dict):
        return {key: flat(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [flat(inner) for inner in value]
    return repr(value)


def versions(trained: Trained, repo: mvc.Repository, folder: Path, way: str) -> list[Any]:
    """The bits of each version that was made."""
    model, optimizer, bits = trained.model, trained.optimizer, []

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    if way == "recorder":
        with mvc.Recorder(repo, model, optimizer) as recorder:
            for _ in range(STEPS):
                trained.step()
                if trained.random.random() < 0.9:
                    recorder.step(wait=True)
                    bits.append(flat(state()["model"]))
        return bits
    for _ in range(STEPS):
        trained.step()
        if trained.random.random() < 0.9:
            if way == "state":
                repo.commit(state())
            else:
                torch.save(state(), folder / "last.pt")
                repo.commit([folder / "last.pt"])
            bits.append(flat(state()))
    return bits


@pytest.mark.parametrize("round_", ROUNDS)
def test_every_version_comes_back(tmp_path: Path, round_: int) -> None:
    trained = Trained(draw("training"))
    way = ["state", "file", "recorder", "state"][round_ % 4]
    print(way, trained.what)
    with mvc.Repository.init(tmp_path) as repo:
        made = versions(trained, repo, tmp_path, way)
        path = {"state": None, "file": "last.pt", "recorder": "model.safetensors"}[way]
        for entry, bits in zip(repo.log(), reversed(made), strict=True):
            assert flat(repo.checkout(entry.id, path=path)) == bits
        assert repo.storage.fsck(full=True).sound
