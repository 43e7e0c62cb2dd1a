"""The index's data and its lock file belong together, whatever is done to one of them.

LMDB excludes writers by the lock file, and takes from it which state is the newest. With another
one it builds on an older state, writes over pages in use, and may end the process.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from mvc.errors import DamagedData
from mvc.io.files import FileSystem
from mvc.store.index.index import Index, Meta

PROJECT = Path(__file__).parents[2]
REPOSITORY = b"i" * 16
ANOTHER_PROCESS = """
import sys
from pathlib import Path
from tests.store.test_index_lock import grow, opened
index = opened(Path(sys.argv[1]))
grow(index, 3, 0)
index.close()
"""


def opened(folder: Path, *, create: bool = False) -> Index:
    return Index(FileSystem(), folder, writable=True, create=create)


def grow(index: Index, times: int, seed: int) -> Meta:
    random_, meta = random.Random(seed), index.meta(REPOSITORY)
    for _ in range(times):
        after = replace(meta.position, sequence=meta.position.sequence + 1)
        meta = index.extend(meta, [random_.randbytes(24) for _ in range(3000)], after)
    return meta


def another_process(folder: Path) -> str:
    command = [sys.executable, "-c", ANOTHER_PROCESS, str(folder)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    return (done.stderr.splitlines() or [""])[-1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    index = opened(tmp_path, create=True)
    grow(index, 6, 1)
    index.close()
    return tmp_path


def test_two_processes_that_share_the_lock_file(folder: Path) -> None:
    mine = opened(folder)
    for round_ in range(3):
        assert another_process(folder) == ""
        grow(mine, 2, round_)
    assert mine.meta(REPOSITORY).position.sequence == 6 + 3 * (3 + 2)
    mine.close()


def delete_the_lock(folder: Path) -> None:
    (folder / "lock.mdb").unlink()


def exchange_the_data(folder: Path) -> None:
    """An older copy of the data takes its place, as a restore puts it."""
    os.replace(folder / "older", folder / "data.mdb")


@pytest.mark.parametrize(
    ("disturb", "why"),
    [(delete_the_lock, "has lost its lock file"), (exchange_the_data, "do not belong together")],
)
def test_a_file_that_was_exchanged_in_use(
    folder: Path, disturb: Callable[[Path], None], why: str
) -> None:
    mine = opened(folder)
    (folder / "older").write_bytes((folder / "data.mdb").read_bytes())
    grow(mine, 2, 2)
    disturb(folder)
    for round_ in range(3):
        assert why in another_process(folder)
        meta = grow(mine, 2, round_)
        keys = [key for run in mine.readers(meta) for key in run.scan(b"", b"\xff" * 32)]
        assert len(keys) == 3000 * meta.position.sequence
    mine.close()


def test_a_lock_file_that_lags_behind_is_seen_by_a_writer_who_has_it_open(folder: Path) -> None:
    """The lock file's state goes back, as if somebody had written under another one."""
    mine = opened(folder)
    grow(mine, 2, 2)
    older = (folder / "lock.mdb").read_bytes()
    grow(mine, 2, 3)
    with (folder / "lock.mdb").open("r+b") as file:  # LMDB maps it: the same file, not a new one
        file.write(older)
    with pytest.raises(DamagedData, match="do not belong together"):
        grow(mine, 1, 4)
    mine.close()
