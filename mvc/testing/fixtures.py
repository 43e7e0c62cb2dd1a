"""pytest fixtures for programs that use mvc. Import them in a ``conftest.py``, or name this module
in ``pytest_plugins``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mvc.api import Repository
from mvc.testing.process import FixedClock


@pytest.fixture
def clock() -> FixedClock:
    """A clock that advances by a microsecond whenever it is read."""
    return FixedClock(step_ns=1000)


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    """An empty repository in a temporary folder."""
    with Repository.init(tmp_path / "models") as opened:
        yield opened
