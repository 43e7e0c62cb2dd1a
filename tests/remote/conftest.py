"""The history of all kinds, built once a process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mvc.repo.handle import Handle
from tests.remote.kit.mixed import mixed
from tests.repo.publishing import repository

Copy = Callable[[Path], Path]


@pytest.fixture(scope="session")
def mixed_history(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """Writes a copy of it to a folder."""
    built = mixed(tmp_path_factory.mktemp("mixed") / "repo")

    def copy(root: Path) -> Path:
        shutil.copytree(built, root)
        return root

    return copy


@pytest.fixture
def context(tmp_path: Path) -> Handle:
    """An empty repository whose clock stands, and which flushes nothing."""
    return repository(tmp_path / "r")
