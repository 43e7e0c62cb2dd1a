"""Where a test runs, and what a training in this process shares with one in another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import mvc


@pytest.fixture
def beside(repo: mvc.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is that of the repository ``models``."""
    monkeypatch.chdir(repo.root.parent)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Other sums come of two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
