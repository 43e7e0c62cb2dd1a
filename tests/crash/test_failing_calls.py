"""Every call of a commit and of a checkout fails once, or from there on (SQLite's method).

Each time the error is one of mvc's, the repository is as before or as after, and the
same thing works as soon as nothing fails any more.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mvc.errors import MvcError
from mvc.repo import manifests
from mvc.repo.repository import Repository
from tests.crash.story import check_arrays, state_of
from tests.faults.failing import FailingFS
from tests.seeds import draw

ERRORS: dict[str, Any] = {
    "ENOSPC": errno.ENOSPC,
    "EIO": errno.EIO,
    "EMFILE": errno.EMFILE,
    "short": "short",
    "MemoryError": MemoryError,
}
FIRST = {"w": np.arange(4000, dtype=np.float32), "b": np.ones(5)}
SECOND = {"w": FIRST["w"] + 1, "b": np.ones(5)}

FILE = bytes(range(256)) * 40


@dataclass
class Try:
    """One operation on a fresh repository, ``fail_at``-th call failing."""

    root: Path
    act: Callable[[Repository], object]
    fs: FailingFS
    failed: BaseException | None = None

    def run(self) -> None:
        manifests._kept.clear()
        repo = None
        try:
            repo = Repository.open(self.root, fs=self.fs)
            self.act(repo)
        except (MvcError, MemoryError) as error:
            self.failed = error
        finally:
            if repo is not None:
                repo.close()


def make(root: Path) -> Repository:
    with Repository.init(root) as repo:
        repo.commit(FIRST)
        (root / "file.bin").write_bytes(FILE)
        repo.commit("file.bin", cwd=root)
        return repo


def commit(repo: Repository) -> None:
    repo.commit(SECOND, deploy="prod")


def commit_and_index(repo: Repository) -> None:
    repo.commit(SECOND, deploy="prod")
    repo.context.store.view.index_tail(force=True)


def checkout(repo: Repository) -> None:
    check_arrays(repo.checkout("main~1"), FIRST)


def restore(repo: Repository) -> None:
    repo.restore("main~1")


def check_after(root: Path, act: Callable[[Repository], object], before: Any) -> None:
    """Sound, as before or one commit further; and now it works."""
    manifests._kept.clear()
    with Repository.open(root) as repo:
        state = state_of(repo.context)
        if act in (commit, commit_and_index):
            assert state.commits[: len(before.commits)] == before.commits
            assert len(state.commits) - len(before.commits) in (0, 1)
            assert state.commits == before.commits or len(state.deployments) == 1
        else:
            assert state.commits == before.commits
        check_arrays(repo.checkout(before.commits[0]), FIRST)
        file = root / "file.bin"
        assert file.read_bytes() == FILE if file.exists() else act is restore
        act(repo)
        assert repo.fsck(full=True).problems == ()
        if act is commit:
            check_arrays(repo.checkout("HEAD", path="model.safetensors"), SECOND)
        left = [p.name for p in root.iterdir() if p.name.startswith(".mvc-tmp-")]
        assert len(left) <= 1  # where nothing works, what was begun cannot be taken away


def fail_each(
    folder: Path, act: Callable[[Repository], object], error: Any, persistent: bool, share: float
) -> None:
    rng: random.Random = draw("failing calls")
    n = failures = 0
    while True:
        n += 1
        if n > 1 and rng.random() > share:
            continue
        root = folder / f"{n}"
        make(root)
        with Repository.open(root) as repo:
            before = state_of(repo.context)
        attempt = Try(root, act, FailingFS(fail_at=n, error=error, persistent=persistent))
        attempt.run()
        if not attempt.fs.failures:
            assert attempt.failed is None
            break
        if error == "short":
            assert attempt.failed is None
        elif attempt.failed is not None:
            failures += 1
            is_memory = isinstance(attempt.failed, MemoryError)
            assert is_memory == (error is MemoryError)
        check_after(root, act, before)
    assert n > 3
    assert failures or error == "short"


ACTS = [commit, commit_and_index, checkout, restore]


@pytest.mark.parametrize("persistent", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_a_failing_call(act: Any, error: str, persistent: bool, tmp_path: Path) -> None:
    if act is checkout and error == "ENOSPC":
        pytest.skip("a checkout into memory writes nothing")
    # Few calls can run out of space: a fifth of them might miss every one that matters.
    fail_each(tmp_path, act, ERRORS[error], persistent, 1.0 if error == "ENOSPC" else 0.2)


@pytest.mark.long
@pytest.mark.parametrize("persistent", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_every_failing_call(act: Any, error: str, persistent: bool, tmp_path: Path) -> None:
    if act is checkout and error == "ENOSPC":
        pytest.skip("a checkout into memory writes nothing")
    fail_each(tmp_path, act, ERRORS[error], persistent, 1.0)
