"""The index's data and its lock file belong together, whatever is done to one of them.

LMDB excludes writers by the lock file, and takes from it which state is the newest. With another
one it builds on an older state, writes over pages in use, and may end the process.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
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

WAITING = """
import sys
from pathlib import Path
from tests.store.test_index_lock import opened
print("ready", flush=True)
opened(Path(sys.argv[1])).close()
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


def put(lock_file: Path, data: bytes) -> None:
    """LMDB maps it: the same file, not a new one."""
    with lock_file.open("r+b") as file:
        file.write(data)


_NEWEST = slice(48, 56)  # of the lock file: which state is the newest


def put_elsewhere(lock_file: Path, newest: bytes) -> None:
    """In another process: to close a file ends all locks on it of the process that does."""
    code = (
        "import sys; file = open(sys.argv[1], 'r+b'); "
        f"file.seek({_NEWEST.start}); file.write(sys.stdin.buffer.read())"
    )
    subprocess.run([sys.executable, "-S", "-c", code, str(lock_file)], input=newest, check=True)


def seen_elsewhere(lock_file: Path) -> bytes:
    return subprocess.check_output(["cat", str(lock_file)])[_NEWEST]


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
    [(delete_the_lock, "has no lock file"), (exchange_the_data, "lock file was replaced")],
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


def test_a_writer_that_was_interrupted_in_the_middle_is_waited_for(folder: Path) -> None:
    """Its new state is in the data, and not yet in the lock file: on a busy machine for long."""
    mine = opened(folder)
    grow(mine, 1, 2)
    older = seen_elsewhere(folder / "lock.mdb")
    grow(mine, 1, 3)
    newer = seen_elsewhere(folder / "lock.mdb")
    put_elsewhere(folder / "lock.mdb", older)
    command = [sys.executable, "-c", WAITING, str(folder)]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        put_elsewhere(folder / "lock.mdb", newer)
        assert process.wait(60) == 0
    mine.close()


def test_a_lock_file_that_lags_behind_is_seen_by_a_writer_who_has_it_open(folder: Path) -> None:
    """The lock file's state goes back, as if somebody had written under another one."""
    mine = opened(folder)
    grow(mine, 2, 2)
    older = (folder / "lock.mdb").read_bytes()
    grow(mine, 2, 3)
    put(folder / "lock.mdb", older)
    with pytest.raises(DamagedData, match="lock file was replaced"):
        grow(mine, 1, 4)
    mine.close()
