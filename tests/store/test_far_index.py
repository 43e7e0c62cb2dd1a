"""A long journal without its index is indexed by the first who opens it, and only by that one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from mvc.api import Repository
from mvc.errors import HistoryMissing, IoFailed
from mvc.io.files import FileSystem
from mvc.limits import INDEX_BATCH
from mvc.store.index import keys
from mvc.store.index.index import Index
from mvc.store.snapshot import IndexThresholds, Snapshot
from tests.index_files import unindexed
from tests.store.repositories import CheckedHistory, state, view_of

ALL = (b"", b"\xff" * 40)
FAR = IndexThresholds(tail=INDEX_BATCH, far=1)


@pytest.fixture
def history(tmp_path: Path) -> CheckedHistory:
    return CheckedHistory(tmp_path / "repo", 6, thresholds=FAR)


@pytest.fixture
def extended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Journal offsets up to which an index was written."""
    made: list[int] = []
    inner = Index.extend

    def extend(self: Index, *given: object) -> object:
        meta = inner(self, *given)  # type: ignore[arg-type]
        made.append(meta.position.offset)
        return meta

    monkeypatch.setattr(Index, "extend", extend)
    return made


def everything(repo: Repository) -> list[bytes]:
    view_of(repo).under(keys.BLOB)
    return view_of(repo).scan(*ALL)


@pytest.mark.parametrize("batch", [1, 2, 50_000])
def test_opening_indexes_what_was_lost(
    history: CheckedHistory, extended: list[int], batch: int
) -> None:
    history.thresholds = None
    with history.open() as repo:
        before = everything(repo)
        assert unindexed(repo)
    history.thresholds = IndexThresholds(INDEX_BATCH, far=1, batch=batch)
    shutil.rmtree(history.root / ".mvc/index.lmdb")
    extended.clear()
    with history.open() as repo:
        assert not unindexed(repo)
        assert extended[-1] == history.journal.stat().st_size
        assert set(everything(repo)) == set(before)
        assert history.wrong(repo) == []
        history.add(repo)
        count = len(extended)
        assert history.wrong(repo) == []
        assert len(extended) == count
    with history.open() as repo:
        assert history.wrong(repo) == []


def test_who_sees_the_journal_replaced_finds_an_index(
    history: CheckedHistory, extended: list[int]
) -> None:
    with history.open() as reader, history.open() as repo:
        repo.branch("side")
        repo.switch("side", force=True)
        repo.commit(state(1000))
        repo.switch("main", force=True)
        repo.branch("side", force=True)
        extended.clear()
        assert repo.storage.gc(grace=timedelta(0)).commits
        by_gc = len(extended)
        assert by_gc
        view_of(reader).refresh()
        assert view_of(reader).generation == 1
        assert history.wrong(reader) == []
        assert history.wrong(repo) == []
        assert len(extended) == by_gc
        assert everything(reader) == everything(repo)


_OPEN = """
import sys
from pathlib import Path
from mvc.store.index.index import Index
from mvc.store.snapshot import IndexThresholds, Snapshot
from mvc.io.files import FileSystem
made = []
inner = Index.extend
Index.extend = lambda self, *given: (made.append(1), inner(self, *given))[1]
print("ready", flush=True)
sys.stdin.readline()
Snapshot(FileSystem(), Path(sys.argv[1]), writable=True, thresholds=IndexThresholds(512, far=1))
print(len(made), flush=True)
"""


def test_of_many_processes_one_builds_the_index(history: CheckedHistory) -> None:
    shutil.rmtree(history.root / ".mvc/index.lmdb")
    command = [sys.executable, "-c", _OPEN, str(history.root / ".mvc")]
    root = Path(__file__).parents[2]
    running = [
        subprocess.Popen(command, cwd=root, stdin=-1, stdout=-1, text=True) for _ in range(6)
    ]
    for process in running:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    told = [process.communicate()[0] for process in running]
    assert sorted(int(text) for text in told) == [0, 0, 0, 0, 0, 1]


def test_missing_history_is_not_forgotten_by_a_new_index(history: CheckedHistory) -> None:
    """Not even where the journal was put back from a copy that a collection once replaced."""
    history.index()
    with history.open() as repo:
        start = view_of(repo).entry(0).after.offset
    (history.journal.parent / "witness").unlink()
    os.truncate(history.journal, start)
    for _ in range(2):
        with pytest.raises(HistoryMissing, match="were acknowledged"):
            history.open()


class _NoLock(FileSystem):
    def lock(self, path: Path, **options: object) -> Iterator[None]:  # type: ignore[override]
        raise IoFailed(f"cannot lock {path}")


def test_without_the_lock_look_ups_work_from_memory(history: CheckedHistory) -> None:
    shutil.rmtree(history.root / ".mvc/index.lmdb")
    found = Snapshot(_NoLock(), history.root / ".mvc", writable=True, thresholds=FAR)
    assert found.indexed.sequence == 0
    assert found.position.offset == history.journal.stat().st_size
    found.close()
