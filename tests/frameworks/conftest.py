"""Where a test runs, and what a training in this process shares with one in another."""

from __future__ import annotations

import pytest

import mvc


@pytest.fixture
def beside(repo: mvc.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is that of the repository ``models``."""
    monkeypatch.chdir(repo.root.parent)
