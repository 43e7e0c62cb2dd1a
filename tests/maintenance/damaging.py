"""Repositories to damage, ways to damage them, and a repair that is tried twice."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Container
from pathlib import Path

import numpy as np

from mvc.api import Repository, heal
from mvc.errors import DamagedData
from mvc.maintenance.report import Repaired
from mvc.store.graph.search import PathStep
from mvc.testing import fresh_process
from tests.histories import CheckedHistory, assert_same

LAST = 5


def weights(step: int) -> np.ndarray:
    start = np.random.default_rng(7).standard_normal(30_000).astype(np.float32)
    return start + np.float32(1e-3) * np.float32(step)


def make(
    root: Path,
    resets: Container[int] = (0, LAST),
    *,
    count: int = LAST + 1,
    layout: str = "chain",
) -> CheckedHistory:
    """Versions of one tensor of 120 kB, deltas in a layout, full where ``resets`` says."""
    history = CheckedHistory(root, settings={"store.layout": layout})
    for step in range(count):
        commit(history, step, reset_point=step in resets)
    history.close()
    return history


def commit(history: CheckedHistory, step: int, *, reset_point: bool = False) -> None:
    state = {"w": weights(step), "b": np.full(10, step)}
    history.commit(state, message=f"step {step}", reset_point=reset_point)


def moved(history: CheckedHistory, root: Path) -> CheckedHistory:
    """The same history in a copy of its repository."""
    history.close()
    other = copy.copy(history)
    other.root = root
    return other


def lost(history: CheckedHistory) -> list[int]:
    """The places of the versions that do not come back; wrong bits raise."""
    with history.open() as repo:
        return lost_in(history, repo)


def lost_in(history: CheckedHistory, repo: Repository) -> list[int]:
    """As ``lost``, of an open repository."""
    found = []
    for place, id_ in enumerate(history.ids):
        fresh_process()
        try:
            state = repo.checkout(id_, path="model.safetensors")
        except DamagedData:
            found.append(place)
        else:
            assert_same(state, history.states[id_])
    return found


def step_of(root: Path, rev: str, *, full: bool | None = None, key: str = "w") -> PathStep:
    """A stored coding of a tensor; ``full`` or a delta if it matters."""
    with Repository.open(root) as repo:
        fresh_process()
        entry = repo.manifest(rev).entries[0]
        content = next(entry.contents[t.content] for t in entry.tensors if t.key == key)
        steps = repo.handle.store.graph.codings(content.id)
        return next(s for s in steps if full is None or full == (not s.member.base))


def pack_of(root: Path, number: int) -> Path:
    return root / ".mvc" / "packs" / f"{number:08d}.pack"


def smash(path: Path, at: int, length: int = 9) -> None:
    """Turns bytes over: more than a checksum could set right."""
    data = bytearray(path.read_bytes())
    for i in range(at, min(at + length, len(data))):
        data[i] ^= 0x5A
    path.write_bytes(data)


def smash_payload(root: Path, step: PathStep) -> None:
    at = step.offset + step.header.body_at + step.member.at
    smash(pack_of(root, step.pack), at + step.member.stored // 2)


def mend(root: Path, other: Path | None = None) -> Repaired:
    """A whole repair; then once more, which must find nothing."""
    fresh_process()
    done = heal(root, other=other, full=True)
    fresh_process()
    again = heal(root, other=other, full=True)
    assert (again.healed, again.quarantined) == ((), ())
    assert again.after.problems == done.after.problems
    return done


def backup_of(root: Path) -> Path:
    """A copy of the repository beside it, without the index."""
    target = root.parent / "backup"
    shutil.copytree(root / ".mvc", target, ignore=shutil.ignore_patterns("index.lmdb"))
    return target
