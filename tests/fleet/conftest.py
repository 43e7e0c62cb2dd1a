"""A served folder, and its repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from tests.server.moving import served_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return served_folder(tmp_path / "served")


@pytest.fixture
def repo(folder: Path) -> Iterator[Repository]:
    """``models`` in the folder."""
    with Repository.open(folder / "models") as opened:
        yield opened
