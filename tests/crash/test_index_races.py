"""The index is exchanged or deleted at each call to the system that a process makes on it.

A rebuild deletes the environment that other processes are about to open. Whatever they have
seen of it a moment ago, they go over to the new one; no error reaches who called.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.testing import HookedFS
from tests.crash import treatments
from tests.index_files import index_file

_NAMES = iter(f"{number:016x}" for number in range(1, 1 << 30))


def exchange(root: Path) -> None:
    """As a rebuild in another process does it: a new environment, then the old one goes."""
    old = index_file(root).parent
    if not old.exists():
        return
    new = old.with_name(next(_NAMES))
    shutil.copytree(old, new)
    (new / "lock.mdb").unlink(missing_ok=True)
    fresh = old.with_name("fresh")
    fresh.write_text(f"{new.name}\n")
    fresh.replace(old.with_name("current"))
    shutil.rmtree(old)


def delete(root: Path) -> None:
    treatments.delete(root / treatments.INDEX)


def at_each_call(root: Path, act: Callable[[Path], None], work: Callable[[HookedFS], None]) -> int:
    """Runs ``work`` again and again; ``act`` happens before one call on the index, the next
    one each time. How many there were.
    """
    for wanted in range(1, 1000):
        met = 0

        def hook(number: int, op: str, path: Path, wanted: int = wanted) -> None:
            nonlocal met
            if root / treatments.INDEX in (path, *path.parents):
                met += 1
                if met == wanted:
                    act(root)

        work(HookedFS(hook))
        if met < wanted:
            return wanted - 1
    raise AssertionError("the calls never end")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with Repository.init(tmp_path / "repo") as repo:
        made = repo.commit({"w": [1.0]})
        for _ in range(3):
            repo.deploy(made.id, "prod")
    yield tmp_path / "repo"


@pytest.mark.parametrize("act", [exchange, delete])
def test_an_opening_outlives_an_index_that_vanishes_under_it(
    root: Path, act: Callable[[Path], None]
) -> None:
    def work(fs: HookedFS) -> None:
        with Repository.open(root, fs=fs) as repo:
            assert len(repo.deployments("prod")) == 3

    assert at_each_call(root, act, work) > 4


@pytest.mark.parametrize("act", [exchange, delete])
def test_an_open_repository_outlives_an_index_that_vanishes_while_it_goes_over(
    root: Path, act: Callable[[Path], None]
) -> None:
    count = 3

    def work(fs: HookedFS) -> None:
        nonlocal count
        inner, fs.hook = fs.hook, lambda number, op, path: None
        with Repository.open(root, fs=fs) as repo:
            exchange(root)
            fs.hook = inner
            repo.deploy("HEAD", "prod")
            count += 1
            assert len(repo.deployments("prod")) == count

    assert at_each_call(root, act, work) > 4
