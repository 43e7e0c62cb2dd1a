"""Fixtures of the tests of ``mvc.repo``."""

from __future__ import annotations

from pathlib import Path

import pytest

from mvc.repo.handle import Handle
from tests.repo.publishing import repository


@pytest.fixture
def context(tmp_path: Path) -> Handle:
    """An empty repository whose clock stands, and which flushes nothing."""
    return repository(tmp_path / "r")
