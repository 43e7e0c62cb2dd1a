"""Three thousand versions: answers cost a few entries, and do not depend on the index."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import mvc.store.journal.reader as journal_reader
from mvc.errors import NoDeployment
from mvc.ids import CommitId
from mvc.repo import refs
from mvc.repo.checkout.versions import iter_versions
from mvc.repo.handle import Handle
from mvc.repo.history.log import LogEntry, LogOptions
from mvc.repo.history.log import log as logged
from mvc.repo.lookup import commits
from mvc.repo.lookup.commits import Ancestors
from mvc.repo.revisions import resolve
from mvc.repo.statements.live import list_deployments, live_at, live_between
from mvc.repo.statements.record import deploy, retract
from mvc.repo.statements.rollback import rollback
from mvc.testing import FixedClock
from mvc.times import format_time
from tests.index_files import index_file
from tests.repo.publishing import SECOND, START, UnsyncedFS, advance, commit, repository
from tests.repo.working import open_handle

VERSIONS = 3000


class Long:
    """A repository with one deployment a version, a minute apart."""

    def __init__(self, root: Path) -> None:
        self.root = root
        context = repository(root)
        self.ids: list[CommitId] = []
        for _ in range(VERSIONS):
            self.ids.append(commit(context, deploy="prod"))
            advance(context, 60)
        refs.create_tag(context.store, "old", self.ids[10].hex())
        self.end = START + VERSIONS * 60 * SECOND
        retract(context.store, context.config, self.ids[-1], "prod")
        context.store.close()

    def open(self) -> Handle:
        return open_handle(self.root, FixedClock(self.end), UnsyncedFS())


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Long:
    return Long(tmp_path_factory.mktemp("long") / "r")


@pytest.fixture
def context(long: Long) -> Iterator[Handle]:
    found = long.open()
    yield found
    found.store.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], int]:
    """Counts the journal entries that a question reads one by one."""
    offsets: list[int] = []
    inner = journal_reader.read_entry

    def counted(source: Any, offset: int, size: int | None = None) -> Any:
        offsets.append(offset)
        return inner(source, offset, size)

    def count(ask: Callable[[], Any]) -> int:
        offsets.clear()
        ask()
        return len(offsets)

    monkeypatch.setattr(journal_reader, "read_entry", counted)
    return count


def log(
    context: Handle, rev: CommitId | str = "HEAD", *, limit: int | None = None, **options: Any
) -> Iterator[LogEntry]:
    return logged(context.store, rev, LogOptions(**options), limit=limit)


def minute(i: int) -> int:
    return START + i * 60 * SECOND


def test_answers(long: Long, context: Handle) -> None:
    assert [e.id for e in log(context, limit=20)] == long.ids[:-21:-1]
    assert resolve(context.store, "HEAD~2990") == long.ids[9]
    assert resolve(context.store, long.ids[5].hex()[:16]) == long.ids[5]
    assert live_at(context.store).commit == long.ids[-2]
    for i in (0, 1, 1500, 2998):
        assert live_at(context.store, minute(i) + SECOND).commit == long.ids[i]
        assert resolve(context.store, f"main@{{{format_time(minute(i), 0)}}}") == long.ids[i]
    with pytest.raises(NoDeployment, match=long.ids[0].short):
        live_at(context.store, START - 1)
    assert len(list_deployments(context.store.fresh())) == VERSIONS


def test_a_question_reads_few_entries(
    long: Long, context: Handle, reads: Callable[[Callable[[], Any]], int]
) -> None:
    old = long.ids[100]
    assert reads(lambda: list(log(context, limit=20))) <= 30
    assert reads(lambda: list(log(context, old, limit=20))) <= 30
    assert reads(lambda: resolve(context.store, "HEAD~20")) <= 30
    assert reads(lambda: resolve(context.store, "old~3")) <= 6
    assert reads(lambda: commits.get(context.store.snapshot, long.ids[40])) <= 1
    assert reads(lambda: resolve(context.store, long.ids[50].hex()[:16])) <= 1
    assert reads(lambda: live_at(context.store)) <= 4
    assert reads(lambda: live_at(context.store, minute(700) + 1, "prod")) <= 3
    assert reads(lambda: before_the_first(context)) <= 1
    assert reads(lambda: live_between(context.store.fresh(), minute(9), minute(12), "prod")) <= 8
    assert reads(lambda: resolve(context.store, f"main@{{{format_time(minute(800), 0)}}}")) <= 2
    assert reads(lambda: refs.branches(context.store.fresh())) <= 2
    assert reads(lambda: list(islice(log(context, target="prod"), 20))) <= 60
    late = minute(VERSIONS - 5)
    assert reads(lambda: list(log(context, since=late))) <= 7
    assert reads(lambda: iter_versions(context.store, since=late)) <= 7
    assert reads(lambda: iter_versions(context.store, since=late, target="prod")) <= 8
    assert reads(lambda: long.ids[300] in Ancestors(context.store.fresh(), [long.ids[310]])) <= 15


def before_the_first(context: Handle) -> None:
    with pytest.raises(NoDeployment, match="its first deployment is"):
        live_at(context.store, START - 1, "prod")


def test_a_rollback_looks_a_few_times_at_each_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that rollbacks went back to again and again."""
    context = repository(tmp_path / "r")
    oldest, stable, tried = (commit(context, deploy="prod") for _ in range(3))
    for _ in range(60):
        assert rollback(context.store, context.config, "prod").commit == stable
        deploy(context.store, context.config, tried, "prod")
    rollback(context.store, context.config, "prod")
    looks, entry = list[int](), journal_reader.JournalReader.entry

    def counted(reader: journal_reader.JournalReader, offset: int) -> Any:
        looks.append(offset)
        return entry(reader, offset)

    monkeypatch.setattr(journal_reader.JournalReader, "entry", counted)
    assert rollback(context.store, context.config, "prod").commit == oldest
    assert len(looks) <= 120 * 20


def answers(context: Handle, ids: list[CommitId]) -> list[Any]:
    picked = ids[::150]
    return [
        [(e.id, e.refs, e.deployments) for e in log(context, limit=50)],
        [e.id for e in log(context, target="prod", until=minute(400), limit=30)],
        [commits.placed(context.store.snapshot, id_)[0].sequence for id_ in picked],
        [live_at(context.store, minute(i)) for i in range(0, VERSIONS, 97)],
        [resolve(context.store, id_.hex()[:14]) for id_ in picked],
        [
            resolve(context.store, f"main@{{{format_time(minute(i), 0)}}}")
            for i in range(0, VERSIONS, 97)
        ],
        [
            refs.head(context.store.fresh()),
            refs.branches(context.store.fresh()),
            refs.tags(context.store.fresh()),
            live_at(context.store),
        ],
        list_deployments(context.store.fresh()),
    ]


def test_a_new_index_gives_the_same_answers(long: Long, context: Handle) -> None:
    before = answers(context, long.ids)
    context.store.close()
    index = index_file(long.root)
    assert index.stat().st_size > 0
    index.unlink()
    fresh = long.open()
    assert answers(fresh, long.ids) == before
    fresh.store.close()


def test_no_index_at_all_gives_the_same_answers(
    long: Long, context: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that cannot be written, and never had an index."""
    before = answers(context, long.ids)
    context.store.close()
    index = index_file(long.root)
    index.unlink()
    monkeypatch.setattr(UnsyncedFS, "is_writable_dir", lambda self, path: False)
    bare = long.open()
    assert not bare.store.writable
    assert answers(bare, long.ids) == before
    bare.store.close()
    assert not index.exists()


_OTHER = """
import sys
from pathlib import Path
from mvc.io.clock import Clock
from tests.repo.publishing import commit
from tests.repo.working import open_handle
from mvc.repo import refs
from mvc.repo.checkout.versions import iter_versions
from mvc.repo.revisions import resolve
context = open_handle(Path(sys.argv[1]))
seen = resolve(context.store, "HEAD")
new = commit(context, deploy="prod")
refs.create_tag(context.store, "theirs")
print(seen.hex(), new.hex())
"""


def test_two_processes_see_each_other(tmp_path: Path) -> None:
    context = repository(tmp_path / "r")
    ours = commit(context)
    done = subprocess.run(
        [sys.executable, "-c", _OTHER, str(tmp_path / "r")],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True,
    )  # fmt: skip
    seen, new = (CommitId.parse(word) for word in done.stdout.split())
    assert seen == ours
    assert resolve(context.store, "HEAD") == resolve(context.store, "theirs") == new
    assert refs.head(context.store.fresh()).commit == new
    assert [e.id for e in log(context)] == [new, ours]
    assert live_at(context.store).commit == new
    after = commit(context)
    assert commits.get(context.store.snapshot, after).parents == (new,)


def test_an_open_repository_sees_what_another_one_publishes(tmp_path: Path) -> None:
    """More entries than the index leaves in memory, so that runs are added and merged."""
    context = repository(tmp_path / "r")
    other = open_handle(tmp_path / "r", FixedClock(START), UnsyncedFS())
    for _ in range(4):
        for _ in range(600):
            newest = commit(other)
        assert resolve(context.store, "HEAD") == newest
        mine = commit(context)
        assert commits.get(context.store.snapshot, mine).parents == (newest,)
        assert resolve(other.store, "HEAD~1") == newest
    assert sum(1 for _ in log(context)) == 4 * 601
