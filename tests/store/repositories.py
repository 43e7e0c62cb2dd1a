"""Small repositories and what was put into them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mvc.api.repository import Repository
from mvc.ids import CommitId
from mvc.store.snapshot import IndexThresholds, Snapshot
from mvc.testing import fresh_process, open_repository
from tests.index_files import index_file

_BASE = np.random.default_rng(5).standard_normal((50, 40)).astype(np.float32)


def state(step: int) -> dict[str, np.ndarray]:
    return {"w": _BASE + np.float32(step * 1e-3), "step": np.array(step), "constant": _BASE[0]}


@dataclass
class History:
    """``count`` commits to a fresh repository, each deployed."""

    root: Path
    count: int
    ids: list[CommitId] = field(default_factory=list)
    thresholds: IndexThresholds | None = None

    def __post_init__(self) -> None:
        with Repository.init(self.root) as repo:
            for _ in range(self.count):
                self.add(repo)

    def add(self, repo: Repository) -> None:
        made = repo.commit(state(len(self.ids)), deploy="prod")
        self.ids.append(made.id)

    def open(self) -> Repository:
        fresh_process()
        return open_repository(self.root, thresholds=self.thresholds)

    def index(self) -> None:
        with self.open() as repo:
            repo.context.store.snapshot.index_tail(force=True)

    @property
    def index_file(self) -> Path:
        return index_file(self.root)

    @property
    def journal(self) -> Path:
        return self.root / ".mvc/journal"

    @property
    def pack(self) -> Path:
        return self.root / ".mvc/packs/00000001.pack"

    def wrong(self, repo: Repository) -> list[int]:
        """The steps whose state does not come back; raises for wrong bits."""
        from mvc.errors import DamagedData

        lost = []
        for step, id_ in enumerate(self.ids):
            fresh_process()
            try:
                found = repo.checkout(id_, path="model.safetensors")
            except DamagedData:
                lost.append(step)
                continue
            assert all(found[k].tobytes() == v.tobytes() for k, v in state(step).items())
        return lost


def view_of(repo: Repository) -> Snapshot:
    return repo.context.store.snapshot
