"""For all tests: variables that mvc must not see; hypothesis measures no time; compiled modules.

A busy machine would fail by chance if hypothesis did. Compiled modules are kept, also where
PYTHONDONTWRITEBYTECODE is set: else each of some hundred processes would compile mvc again.
Files of tests lie in memory where there is enough of it: what is recorded is flushed, and a disk
takes longer for that than all else.
"""

from __future__ import annotations

import compileall
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from mvc.testing.fixtures import clock, repo
from tests import slow
from tests.histories import CheckedHistory
from tests.prepared import forking, prepared
from tests.variables import put_aside

__all__ = ["clock", "forking", "one_thread", "prepared", "repo"]

if find_spec("torch") is None:
    pytest_plugins = ["tests.without_torch"]

put_aside()

_MEMORY = Path("/dev/shm")
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

settings.register_profile("mvc", deadline=None)
settings.load_profile("mvc")


@pytest.fixture
def history(tmp_path: Path) -> Iterator[CheckedHistory]:
    """An empty repository that knows what was committed to it, closed at the end."""
    made = CheckedHistory(tmp_path / "history")
    yield made
    made.close()


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
