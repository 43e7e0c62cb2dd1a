"""For all tests: variables that mvc must not see; hypothesis measures no time; compiled modules.

A busy machine would fail by chance if hypothesis did. Compiled modules are kept, also where
PYTHONDONTWRITEBYTECODE is set: else each of some hundred processes would compile mvc again.
"""

from __future__ import annotations

import compileall
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from mvc.testing.fixtures import clock, history, repo
from tests import slow
from tests.prepared import forking, prepared
from tests.variables import put_aside

__all__ = ["clock", "forking", "history", "one_thread", "prepared", "repo"]

put_aside()

settings.register_profile("mvc", deadline=None)
settings.load_profile("mvc")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Of torch: other sums come of two."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    compileall.compile_dir(Path(__file__).parents[1] / "mvc", quiet=2)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = before


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow.mark(items)
