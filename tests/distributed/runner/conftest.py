from __future__ import annotations

import pytest

from tests.cli.conftest import alone, mvc

__all__ = ["alone", "mvc"]


@pytest.fixture(autouse=True)
def thread(one_thread: None) -> None:
    """Every test trains in one."""
