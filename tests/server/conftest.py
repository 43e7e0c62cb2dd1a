"""A served folder, and a repository to push to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from tests.server.moving import record, served_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder to serve, with an empty bare repository ``models``."""
    return served_folder(tmp_path / "served")


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Repository]:
    """A repository with three versions."""
    with Repository.init(tmp_path / "source") as repo:
        for value in range(3):
            record(repo, value)
        yield repo
