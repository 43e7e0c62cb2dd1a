from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from mvc.distributed.runner.settings import TOKEN
from tests.cli.conftest import alone, mvc

__all__ = ["alone", "mvc"]


SECRET = "5e" * 16


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, SECRET)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
