"""What is given to LMDB: every sound file is, and no file on which it dies."""

from __future__ import annotations

import os
import random
import shutil
import struct
from pathlib import Path

import lmdb
import pytest

from mvc.errors import DamagedData
from mvc.io.files import FileSystem
from mvc.store.index.pages import check_pages
from tests.counters import count
from tests.seeds import draw

TRIED = 500
SIZES = (0, 1, 20, 300, 2000, 2050, 4080, 9000, 70_000)


def check(path: Path) -> None:
    with FileSystem().open_read(path) as file:
        check_pages(file)


def written(folder: Path, rng: random.Random, rounds: int) -> Path:
    """A file after transactions that put, replace and delete, up to trees of three levels."""
    with lmdb.open(str(folder), map_size=1 << 26, sync=False) as env:
        keys: set[bytes] = set()
        for _ in range(rounds):
            with env.begin(write=True) as txn:
                for _ in range(rng.choice((1, 5, 60))):
                    key = rng.randbytes(rng.choice((1, 8, 11, 300)))
                    txn.put(key, bytes(rng.choice(SIZES)))
                    keys.add(key)
                for key in rng.sample(sorted(keys), len(keys) // rng.choice((2, 9, 50))):
                    txn.delete(key)
                    keys.discard(key)
            check(folder / "data.mdb")
    return folder / "data.mdb"


@pytest.mark.parametrize("round_", range(8))
def test_every_state_that_lmdb_writes_is_sound(tmp_path: Path, round_: int) -> None:
    written(tmp_path, draw("transactions"), 25)


def test_an_emptied_file_and_a_new_one(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), sync=False) as env:
        check(tmp_path / "data.mdb")
        for _ in range(3):
            with env.begin(write=True) as txn:
                for i in range(200):
                    txn.put(b"%d" % i, bytes(1000))
            with env.begin(write=True) as txn:
                for i in range(200):
                    txn.delete(b"%d" % i)
            check(tmp_path / "data.mdb")


@pytest.mark.parametrize("length", [1, 100, 4096, 4097, 8191])
def test_the_beginning_of_a_file_is_none(tmp_path: Path, length: int) -> None:
    path = written(tmp_path, random.Random(1), 3)
    os.truncate(path, length)
    with pytest.raises(DamagedData):
        check(path)


def small(folder: Path) -> bytes:
    """Some dozen pages: two levels, values on pages of their own, free pages."""
    rng = random.Random(3)
    with lmdb.open(str(folder), map_size=1 << 26, sync=False) as env:
        for _ in range(5):
            with env.begin(write=True) as txn:
                for _ in range(30):
                    txn.put(rng.randbytes(9), bytes(rng.choice((20, 300, 900))))
                txn.put(b"large", bytes(9000))
                txn.delete(b"large")
                txn.put(b"large too", bytes(rng.choice((5000, 15000))))
    check(folder / "data.mdb")
    return (folder / "data.mdb").read_bytes()


def test_an_unsorted_list_of_free_pages_is_refused(tmp_path: Path) -> None:
    """LMDB searches it for consecutive pages by position, and would reuse pages of its trees."""
    sound, refused = small(tmp_path / "sound"), 0
    for at in range(0, len(sound) - 160, 2):
        count, *pages = struct.unpack_from("<20Q", sound, at)
        pages = pages[:count]
        if not 2 <= count < 20 or min(pages) < 2 or pages != sorted(set(pages), reverse=True):
            continue
        data = bytearray(sound)
        struct.pack_into("<2Q", data, at + 8, pages[1], pages[0])
        (tmp_path / "data.mdb").write_bytes(data)
        try:
            check(tmp_path / "data.mdb")  # passes for a list that only an older header reached
        except DamagedData as error:
            refused += "list of free pages" in error.message
    assert refused


def use(folder: Path) -> None:
    """Everything that could follow a bad pointer: each value read, pages let go and taken."""
    try:
        with lmdb.open(str(folder), map_size=1 << 26, sync=False) as env:
            with env.begin() as txn:
                keys = [key for key, value in txn.cursor() if sum(value[-1:]) >= 0]
                for key in (*keys, b"absent"):
                    txn.get(key)
            for size in (10, 9000):
                with env.begin(write=True) as txn:
                    for key in keys[::3]:
                        txn.delete(key)
                    for i in range(20):
                        txn.put(b"new%d" % i, bytes(size))
    except lmdb.Error:
        pass


def test_what_passes_does_not_kill(tmp_path: Path) -> None:
    """Bits of headers and pointers. All that pass are used in one child, which must live."""
    rng = draw("pages")
    sound = small(tmp_path / "sound")
    damaged = []
    for _ in range(TRIED):
        bit = 8 * 4096 * rng.randrange(len(sound) // 4096) + rng.randrange(8 * 64)
        if rng.random() < 0.2:
            bit = rng.randrange(8 * len(sound))
        data = bytearray(sound)
        data[bit // 8] ^= 1 << bit % 8
        (tmp_path / "data.mdb").write_bytes(data)
        try:
            check(tmp_path / "data.mdb")
        except DamagedData:
            continue
        damaged.append((bit, bytes(data)))
    shown = tmp_path / "at"
    child = os.fork()
    if not child:
        for bit, data in damaged:
            shown.write_text(str(bit))
            shutil.rmtree(tmp_path / "used", ignore_errors=True)
            (tmp_path / "used").mkdir()
            (tmp_path / "used/data.mdb").write_bytes(data)
            use(tmp_path / "used")
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    refused = TRIED - len(damaged)
    count("flipped bits of LMDB files", tried=TRIED, refused=refused, deaths=int(code < 0))
    assert code == 0, f"bit {shown.read_text()} of {len(sound)} bytes"
    assert 30 < refused < TRIED - 100
