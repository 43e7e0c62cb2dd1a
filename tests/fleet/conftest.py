"""A served folder, and its repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from tests.remote.kit.serving import serving, token
from tests.server.moving import served_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return served_folder(tmp_path / "served")


@pytest.fixture
def repo(folder: Path) -> Iterator[Repository]:
    """``models`` in the folder."""
    with Repository.open(folder / "models") as opened:
        yield opened


@pytest.fixture(params=["folder", "http"])
def url(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """``models`` by its path, and at a server that lets it be read."""
    if request.param == "folder":
        yield str(folder / "models")
        return
    monkeypatch.setenv("MVC_TOKEN_ORIGIN", token(folder, "read"))
    with serving(folder) as server:
        yield f"{server.url}/models"
