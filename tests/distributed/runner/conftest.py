from __future__ import annotations

import pytest

from mvc.distributed.runner.settings import TOKEN
from tests.cli.conftest import alone, mvc

__all__ = ["alone", "mvc"]


SECRET = "5e" * 16


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, SECRET)


@pytest.fixture(autouse=True)
def thread(one_thread: None) -> None:
    """Every test trains in one."""
