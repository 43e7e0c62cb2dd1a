"""Repositories to damage, made anew by each run: what they hold is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mvc.api.repository import Repository
from mvc.repo.commit.request import CommitOptions
from mvc.store.writing import pack_writer
from mvc.testing import FixedClock
from tests.adamw import training

__all__ = ["large", "small", "tiny"]

_START = 1_750_000_000_000_000_000
_SECOND = 1_000_000_000


def _moved(
    random: np.random.Generator, state: dict[str, Any], share: float = 0.4
) -> dict[str, Any]:
    """A step of training: some weights move a little."""

    def moved(array: np.ndarray) -> np.ndarray:
        step = 1e-4 * random.standard_normal(array.shape) * (random.random(array.shape) < share)
        return array + step.astype(array.dtype)

    return {k: moved(v) if isinstance(v, np.ndarray) and v.ndim else v for k, v in state.items()}


def small(root: Path) -> None:
    """About 64 KiB in format, journal and packs, of every kind of entry and record.

    Full records, deltas walked either way (a reset point ends the chain), groups, patches,
    a resize, a file with CRCs, an opaque one, steps of an optimizer; deployments, a retraction,
    refs, a removal.
    """
    random = np.random.default_rng(64)
    clock = FixedClock(_START, _SECOND)
    with Repository.init(root, clock=clock) as repo:
        state: dict[str, Any] = {
            "weight": random.standard_normal((50, 48)).astype(np.float32),
            "bias": random.standard_normal(50).astype(np.float32),
            "table": random.standard_normal((12, 20)).astype(np.float32),
            "step": np.array(0),
        }
        for step in range(6):
            state = _moved(random, state) | {"step": np.array(step)}
            if step == 4:
                table = random.standard_normal((2, 20)).astype(np.float32)
                state["table"] = np.concatenate([state["table"], table])
            options = {"deploy": "prod"} if step % 2 else {}
            repo.commit(
                state,
                message=f"step {step}",
                **options,
                options=CommitOptions(reset_point=step == 3),
            )
        repo.tag("v1", "HEAD~2")
        repo.branch("side", "HEAD~1")
        group = {k: state[k] for k in ("weight", "bias")}
        for _ in range(3):
            group = _moved(random, group)
            repo.commit(group, path="whole.safetensors", pipeline="vsol", metrics={"loss": 0.5})
        np.savez(root / "m.npz", w=state["bias"], n=np.arange(40))
        (root / "notes.bin").write_bytes(random.bytes(9000))
        repo.commit([root / "m.npz", root / "notes.bin"])
        (root / "notes.bin").write_bytes((root / "notes.bin").read_bytes()[:5500] + b"inserted")
        repo.commit(root / "notes.bin", deploy="edge")
        repo.retract(None, "edge")
        repo.deploy("v1", "prod", at=_START + 5 * _SECOND)
        (root / "notes.bin").unlink()
        repo.commit(root / "notes.bin")
        for step in range(4):
            repo.commit(training(step, 5), path="trained.safetensors")
        repo.commit(_moved(random, state), message="the last one")


def tiny(root: Path) -> None:
    """A few KiB in several packs: six versions, deltas, a group, patches, a reset point."""
    random = np.random.default_rng(6)
    clock = FixedClock(_START, _SECOND)
    before, pack_writer.PACK_TARGET = pack_writer.PACK_TARGET, 1500
    try:
        with Repository.init(root, clock=clock) as repo:
            state: dict[str, Any] = {"w": random.standard_normal((16, 24)).astype(np.float32)}
            repo.commit(state, deploy="prod")
            repo.commit(_moved(random, state))
            repo.commit(_moved(random, state), options=CommitOptions(reset_point=True))
            (root / "notes.bin").write_bytes(random.bytes(700))
            repo.commit(root / "notes.bin", message="a file")
            state |= {"b": random.standard_normal(40).astype(np.float32)}
            repo.commit(_moved(random, state), pipeline="vsol", deploy="prod")
            (root / "notes.bin").write_bytes((root / "notes.bin").read_bytes() + b"more")
            repo.commit(root / "notes.bin")
    finally:
        pack_writer.PACK_TARGET = before


def large(root: Path) -> None:
    """Some tens of MB, as a repository in use: 80 versions of 20 tensors, two pipelines."""
    random = np.random.default_rng(100)
    with Repository.init(root, clock=FixedClock(_START, _SECOND)) as repo:
        state = {
            f"layer{i}": random.standard_normal((96, 96)).astype(np.float32) for i in range(20)
        }
        for step in range(80):
            state = _moved(random, state, 0.7)
            name = "whole.safetensors" if step % 8 == 7 else "model.safetensors"
            repo.commit(
                state,
                path=name,
                pipeline="vsol" if step % 8 == 7 else None,
                deploy="prod",
                options=CommitOptions(reset_point=step % 10 == 9),
            )
