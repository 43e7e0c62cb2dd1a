"""Guards of the stories about the index: each protection, taken away, is missed.

A story that loses something needs several protections to fail at once, because each hides
that another is gone. So each has a test of its own, at the level at which it matters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.errors import MvcError
from mvc.io.files import FileSystem
from mvc.store.index.index import Index
from mvc.store.journal.frames import Position
from tests import children
from tests.counters import count
from tests.crash import mutations
from tests.crash.forks import run
from tests.crash.images import folder_in_memory
from tests.crash.ledger import Wrong
from tests.crash.workers import Worker, warm_up_all
from tests.lent_index import environment
from tests.seeds import draw

Patch = pytest.MonkeyPatch
LOCK_KEPT = "tests.crash.mutations.lock_kept"
TRUSTING = "tests.crash.mutations.truncation_trusts_the_index"


# -- nothing that destroys trusts the index --------------------------------------------------


def _lies(otherwise: Path, number: int, *mutation: str) -> Counter[str]:
    seed = draw("lies").getrandbits(32)
    with folder_in_memory(otherwise) as folder:
        return children.run("crash.lies", folder, seed, 0, number, *mutation)


@pytest.mark.parametrize("number", [12, pytest.param(500, marks=pytest.mark.long)])
def test_an_index_that_lies_takes_nothing_away(tmp_path: Path, number: int) -> None:
    counted = _lies(tmp_path, number)
    count("stories with an index that lies", **counted)
    assert [counted[what] for what in ("lost", "wrong", "foreign")] == [0, 0, 0]


def test_the_lies_see_a_truncation_that_trusts_the_index(tmp_path: Path) -> None:
    assert _lies(tmp_path, 200, TRUSTING)["lost"] == 1


# -- what one process writes to a replaced index never shows in the new one --------------------


def _stays(folder: Path, mutation: str | None) -> bool:
    """Whether a rebuilt index stays as it is when somebody writes to the one before."""
    root = folder / "repo"
    run(lambda send: Repository.init(root).close())
    late, other = (Worker(root, batch=4, mutation=mutation) for _ in range(2))
    try:
        made, _ = late.call("commit", "model.safetensors", 1, None)
        late.call("deploy", made, "prod", 20, None)
        other.call("rebuild")
        other.call("deploy", made, "prod", 20, None)
        known = other.call("indexed")
        for _ in range(3):
            late.call("extend open")
            if other.call("indexed") != known:
                return False
        return True
    finally:
        late.end()
        other.end()


def test_a_write_to_a_replaced_index_does_not_show_in_the_new_one(tmp_path: Path) -> None:
    warm_up_all(tmp_path)
    assert _stays(tmp_path, None)


def test_a_lock_that_is_kept_is_seen(tmp_path: Path) -> None:
    warm_up_all(tmp_path)
    with pytest.raises(Wrong, match="lock file was replaced"):
        _stays(tmp_path, LOCK_KEPT)


# -- a run is never taken for another ----------------------------------------------------------


def _index(folder: Path) -> Index:
    folder.mkdir()
    return Index(FileSystem(), folder, writable=True, create=True)


def _falls_back(index: Index) -> Callable[[], None]:
    """Sets LMDB back to what it holds now, as processes do that do not share a lock file."""
    with environment(index).begin() as txn:
        before = list(txn.cursor())

    def fall_back() -> None:
        with environment(index).begin(write=True) as txn:
            for key in [key for key, _ in txn.cursor()]:
                txn.delete(key)
            for key, value in before:
                txn.put(key, value)

    return fall_back


def _runs_are_told_apart(folder: Path) -> bool:
    """An index that fell back to an older snapshot and went another way answers by it."""
    index = _index(folder)
    identity = b"i" * 16
    first, second = ([b"k" + bytes([n, i]) for i in range(50)] for n in (1, 2))
    position = Position(100, 1, b"c" * 16)
    empty = index.meta(identity)
    fall_back = _falls_back(index)
    for keys in (first, second):
        made = index.extend(empty, keys, position)
        try:
            found = [k for run in index.readers(made) for k in run.scan(b"", b"\xff" * 8)]
        except MvcError:
            return False
        if found != keys:
            return False
        fall_back()
    return True


def test_runs_are_told_apart_after_a_fall_back(tmp_path: Path) -> None:
    assert _runs_are_told_apart(tmp_path / "index")


def test_runs_by_number_are_seen(tmp_path: Path, monkeypatch: Patch) -> None:
    mutations.runs_by_number(monkeypatch.setattr)
    assert not _runs_are_told_apart(tmp_path / "index")
