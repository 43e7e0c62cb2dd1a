"""Histories of approximated versions, small enough for every test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import mvc
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.repo.config import set_value
from mvc.testing import fresh_process, open_quietly

State = dict[str, Any]


def start(folder: Path, settings: Mapping[str, Any] | None = None) -> mvc.Repository:
    """A new repository without reset points, unless ``settings`` say otherwise."""
    mvc.Repository.init(folder).close()
    for key, value in ({"store.reset_interval": 1000} | dict(settings or {})).items():
        set_value(FileSystem(), folder / ".mvc/config.yaml", key, str(value))
    return mvc.Repository.open(folder)


def first(seed: int = 0) -> State:
    """Weights of all four dtypes, and what is never approximated."""
    torch.manual_seed(seed)
    return {
        "wide": torch.randn(40, 30, dtype=torch.float64),
        "layer.weight": torch.randn(60, 50),
        "layer.bias": torch.randn(60),
        "half": torch.randn(33, 7).half(),
        "brain": torch.randn(21, 10).bfloat16(),
        "scalar": torch.tensor(0.5),
        "norm.running_var": torch.rand(60),
        "count": torch.arange(5),
    }


def moved(state: Mapping[str, Any], by: float = 0.01) -> State:
    """The state one step later."""
    return {
        name: value + (by * torch.randn(value.shape)).to(value.dtype)
        if value.is_floating_point()
        else value + 1
        for name, value in state.items()
    }


def bits(state: Mapping[str, Any]) -> dict[str, bytes]:
    """Every tensor as bytes."""
    return {
        name: value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, value in state.items()
    }


def grow(
    repo: mvc.Repository, state: State, count: int, pipeline: str = "lc:x=2"
) -> tuple[dict[CommitId, dict[str, bytes]], State]:
    """Commits ``count`` versions; returns what each stored, and the state after the last."""
    made = {}
    for _ in range(count):
        done = repo.commit(state, pipeline=pipeline)
        made[done.id] = bits(done.state)
        state = moved(state)
    return made, state


def packed_bytes(root: Path) -> int:
    """Bytes of all packs."""
    return sum(path.stat().st_size for path in (root / ".mvc/packs").iterdir())


def check(repo: mvc.Repository, made: Mapping[CommitId, dict[str, bytes]]) -> None:
    """Every version is what was stored, for a process that knows nothing of it."""
    fresh_process()
    with open_quietly(repo.root) as other:
        for id_, expected in made.items():
            assert bits(other.checkout(id_)) == expected
