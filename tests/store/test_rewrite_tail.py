"""What is appended while the journal is being replaced, and what is taken back again."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np

from mvc.api.repository import Repository
from mvc.io.files import TEMPORARY
from mvc.maintenance import gc
from mvc.testing import HookedFS, fresh_process


class Meanwhile:
    """Another process commits once the new journal is begun; ``fails``: its flush fails, and
    it takes its entry back just before the journals are exchanged."""

    def __init__(self, root: Path, fails: bool) -> None:
        self.root, self.fails = root, fails
        self.size = 0
        self.state = {"a": np.arange(50)}

    def __call__(self, number: int, op: str, path: Path) -> None:
        journal = self.root / ".mvc" / "journal"
        if not self.size and op == "open_write" and path.name.startswith(f"{TEMPORARY}journal-"):
            self.size = journal.stat().st_size
            with Repository.open(self.root) as other:
                other.commit(self.state)
        elif self.size > 0 and op == "lock" and path == journal and self.fails:
            with journal.open("r+b") as file:
                file.truncate(self.size)
            (self.root / ".mvc" / "witness").unlink()
            self.size = -1


def _collect(root: Path, fails: bool) -> None:
    with Repository.init(root) as repo:
        repo.commit({"a": np.arange(40)})
        repo.commit({"a": np.arange(41)})
        repo.undo()
    meanwhile = Meanwhile(root, fails)
    with Repository.open(root, fs=HookedFS(meanwhile)) as repo:
        gc.collect(repo.handle.store, repo.handle.config, grace=timedelta(0))
    assert meanwhile.size != 0
    fresh_process()


def test_a_commit_meanwhile_is_taken_over(tmp_path: Path) -> None:
    _collect(tmp_path, fails=False)
    with Repository.open(tmp_path) as repo:
        assert [len(repo.checkout(entry.id)["a"]) for entry in repo.log()] == [50, 40]
        assert repo.storage.fsck(full=True).problems == ()


def test_a_commit_that_is_taken_back_meanwhile_is_not(tmp_path: Path) -> None:
    _collect(tmp_path, fails=True)
    with Repository.open(tmp_path) as repo:
        assert [len(repo.checkout(entry.id)["a"]) for entry in repo.log()] == [40]
        assert repo.storage.fsck(full=True).problems == ()
