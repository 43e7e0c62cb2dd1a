"""Trainings as they should not be: every version comes back bit for bit, however it was coded."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import pytest

import mvc
from tests import seeds

torch = pytest.importorskip("torch")
nn, optim = torch.nn, torch.optim

OPTIMIZERS = {
    "adam": (optim.Adam, {"amsgrad": bool, "weight_decay": float, "fused": bool}),
    "adamw": (optim.AdamW, {"maximize": bool, "weight_decay": float, "foreach": bool}),
    "nadam": (optim.NAdam, {"weight_decay": float, "decoupled_weight_decay": bool}),
    "radam": (optim.RAdam, {"weight_decay": float, "decoupled_weight_decay": bool}),
    "adamax": (optim.Adamax, {"weight_decay": float, "maximize": bool}),
    "adagrad": (optim.Adagrad, {"lr_decay": float, "eps": float}),
    "rmsprop": (optim.RMSprop, {"alpha": float, "momentum": float}),
    "sgd": (optim.SGD, {"momentum": float, "dampening": float, "maximize": bool}),
    "nesterov": (lambda p, **k: optim.SGD(p, momentum=0.9, nesterov=True, **k), {"lr": float}),
    "adadelta": (optim.Adadelta, {"rho": float}),
    "sparse adam": (optim.SparseAdam, {}),
}
WILD = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e-42, 3e38, 1e-20)


class Net(nn.Module):
    """Rows of which few are used, a layer that nothing moves, a scalar, and an empty tensor."""

    def __init__(self, dtype: Any, *, sparse: bool) -> None:
        super().__init__()
        self.rows = nn.Embedding(50, 16, sparse=sparse, dtype=dtype)
        self.layer = nn.Linear(16, 40, dtype=dtype)
        self.resting = nn.Linear(16, 16, dtype=dtype)
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=dtype))
        self.nothing = nn.Parameter(torch.zeros(0, 3, dtype=dtype))
        self.counted: Any
        self.register_buffer("counted", torch.zeros(3, dtype=torch.int64))

    def forward(self, at: Any) -> Any:
        self.counted += 1
        return (self.layer(self.rows(at)) * self.scale).square().mean()


def arguments(kinds: dict[str, type], random: Random) -> dict[str, Any]:
    """Values for some of the names."""
    chosen = {k: v for k, v in kinds.items() if random.random() < 0.6}
    return {k: bool(random.random() < 0.7) if v is bool else float(random.uniform(0.01, 0.9))
            for k, v in chosen.items()}  # fmt: skip


def bits(state: Any) -> Any:
    """Tensors as bytes, so that NaNs count as well."""
    if torch.is_tensor(state):
        return (str(state.dtype), tuple(state.shape), state.contiguous().numpy().tobytes())
    if isinstance(state, dict):
        return {k: bits(v) for k, v in state.items()}
    return [bits(v) for v in state] if isinstance(state, list | tuple) else state


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_version_of_a_wild_training_comes_back(tmp_path: Path, name: str) -> None:
    random = seeds.draw("training")
    torch.manual_seed(random.getrandbits(30))
    make, kinds = OPTIMIZERS[name]
    dtype = torch.float64 if random.random() < 0.3 else torch.float32
    sparse = name == "sparse adam" or (name == "adagrad" and random.random() < 0.5)
    net = Net(dtype, sparse=sparse)
    moved = [net.rows.weight] if name == "sparse adam" else [*net.rows.parameters(),
        *net.layer.parameters(), *net.resting.parameters(), net.nothing]  # fmt: skip
    optimizer = make(moved, **arguments(kinds, random))
    wanted = []
    with mvc.Repository.init(tmp_path) as repo:
        for step in range(9):
            optimizer.zero_grad()
            net(torch.randint(0, 20, (8,))).backward()
            if step in (4, 5) and net.layer.weight.grad is not None:
                net.layer.weight.grad.view(-1)[: len(WILD)] = torch.tensor(WILD, dtype=dtype)
            optimizer.step()
            if step == 3:
                for group in optimizer.param_groups:
                    group["lr"] *= 0.5
            if step == 6 and name != "sparse adam":
                optimizer.add_param_group({"params": [net.scale], "lr": 0.25})
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
            repo.commit(state, message=str(step))
            wanted.append(bits(state))
    with mvc.Repository.open(tmp_path) as repo:
        for ago, state in enumerate(reversed(wanted)):
            assert bits(repo.checkout(f"HEAD~{ago}")) == state, ago
        assert repo.storage.fsck(full=True).sound
    features = (tmp_path / ".mvc" / "format").read_text()
    assert "optim" in features or name not in {"adam", "adamw", "rmsprop", "nesterov"}
