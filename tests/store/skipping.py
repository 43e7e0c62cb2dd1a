"""Repositories in a given layout, and what each version must give back."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import mvc
from mvc.api.repository import Repository
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.model.manifest import Manifest
from mvc.repo.config import set_value
from mvc.testing import fresh_process

_STEPS = np.random.default_rng(3).random((128, 40, 30)) < 0.2


class CheckedHistory:
    """Versions of one matrix, a fifth of which moves each time."""

    def __init__(self, root: Path, layout: str, interval: int | None = None) -> None:
        self.root = root
        mvc.Repository.init(root).close()
        self.configure("store.layout", layout)
        if interval is not None:
            self.configure("store.reset_interval", str(interval))
        self.ids: list[CommitId] = []
        self.states: list[dict[str, np.ndarray]] = []
        self._now = np.random.default_rng(4).standard_normal((40, 30)).astype(np.float32)

    def configure(self, key: str, value: str) -> None:
        set_value(FileSystem(), self.root / ".mvc/config.yaml", key, value)

    def open(self) -> Repository:
        fresh_process()
        return mvc.Repository.open(self.root)

    def commit(self, repo: Repository, **options: object) -> CommitId:
        moved = self._now * np.float32(1 + 2e-6)
        self._now = np.where(_STEPS[len(self.ids) % 128], moved, self._now)
        self.states.append({"w": self._now})
        self.ids.append(repo.commit(self.states[-1], **options).id)  # type: ignore[arg-type]
        return self.ids[-1]

    def blobs(self, repo: Repository) -> list[bytes]:
        return [self.manifest(repo, i).entries[0].contents[0].id for i in range(len(self.ids))]

    def manifest(self, repo: Repository, i: int) -> Manifest:
        return repo.manifest(self.ids[i])

    def depths(self, repo: Repository) -> list[int]:
        """Deltas to each version's matrix."""
        return [repo.handle.store.graph.path(id_).depth for id_ in self.blobs(repo)]

    def check(self, repo: Repository, left: set[int] | None = None) -> None:
        for i, id_ in enumerate(self.ids):
            if left is None or i in left:
                assert repo.checkout(id_)["w"].tobytes() == self.states[i]["w"].tobytes()
        assert not repo.storage.fsck(full=True).problems
