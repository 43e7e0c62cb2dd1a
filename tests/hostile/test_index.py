"""T13: the index as other processes, forks and folders leave it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.canonical import Writer
from mvc.io.files import TEMPORARY, FileSystem
from mvc.store.index.index import Meta
from mvc.store.journal.frames import GENESIS
from tests.hostile.bounded import ROOT
from tests.index_files import index_runs
from tests.store.repositories import CheckedHistory


@pytest.fixture
def history(tmp_path: Path) -> CheckedHistory:
    made = CheckedHistory(tmp_path / "repo", 4)
    made.index()
    return made


def answers(history: CheckedHistory) -> bool:
    """Whether everything is there."""
    with history.open() as repo:
        assert [e.id for e in repo.log()] == history.ids[::-1]
        assert repo.live("prod").commit == history.ids[-1]
        return history.wrong(repo) == [] and not repo.storage.fsck().problems


WRITER = """
import sys, time
from pathlib import Path
from mvc.api.repository import Repository
from mvc.store.index.index import Index
def wait(self, meta):
    print("writing", flush=True)
    time.sleep(600)
Index.switch = wait
repo = Repository.open(sys.argv[1])
repo.deploy("HEAD", "edge")
repo.handle.store.snapshot.index_tail(force=True)
"""


def test_a_writer_that_is_killed_leaves_the_index_as_it_was(history: CheckedHistory) -> None:
    (history.index_file.parent / f"{TEMPORARY}0123456789abcdef").write_bytes(b"left over")
    other = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(history.root)], cwd=ROOT, text=True, stdout=-1
    )
    assert other.stdout is not None and other.stdout.readline() == "writing\n"
    with history.open() as repo:
        history.add(repo)
        assert not repo.handle.store.snapshot.rebuilt
        before = repo.handle.store.snapshot.indexed
        repo.handle.store.snapshot.index_tail()  # another process writes: the tail stays
        assert repo.handle.store.snapshot.indexed == before
    other.send_signal(signal.SIGKILL)
    other.communicate(timeout=30)
    assert answers(history)
    with history.open() as repo:
        repo.handle.store.snapshot.index_tail(force=True)
    left = {path.name for path in history.index_file.parent.iterdir()}
    meta = Meta.decode(history.index_file.read_bytes())
    assert left == {"current", "building", *(run.name for run in meta.runs)}


def test_a_forked_child_reads_an_index_of_its_own(history: CheckedHistory) -> None:
    with history.open() as repo:
        assert history.wrong(repo) == []
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = 0 if [e.id for e in repo.log()] == history.ids[::-1] else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        history.add(repo)
        repo.handle.store.snapshot.index_tail(force=True)
    assert answers(history)


class ReadOnlyFS(FileSystem):
    """A folder that cannot be written, also for root."""

    def is_writable_dir(self, path: Path) -> bool:
        return False


def test_a_folder_that_cannot_be_written(history: CheckedHistory) -> None:
    before = {p: p.read_bytes() for p in (history.root / ".mvc").rglob("*") if p.is_file()}
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in (history.root / ".mvc").rglob("*")}
    for path in modes:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        with Repository.open(history.root, fs=ReadOnlyFS()) as repo:
            assert not repo.handle.store.snapshot.writable
            assert repo.handle.store.snapshot.indexed.sequence
            assert [e.id for e in repo.log()] == history.ids[::-1]
            assert history.wrong(repo) == []
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    assert before == {p: p.read_bytes() for p in (history.root / ".mvc").rglob("*") if p.is_file()}


@pytest.mark.parametrize("kind", ["run", "current"])
@pytest.mark.parametrize("what", ["folder", "huge"])
def test_what_is_no_file_of_an_index_is_made_anew(
    history: CheckedHistory, kind: str, what: str
) -> None:
    path = history.index_file if kind == "current" else index_runs(history.root)[0]
    path.unlink()
    if what == "folder":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, 1 << 40)
    assert answers(history)


@pytest.mark.parametrize("version", [0, 4, 6, 1 << 40])
def test_an_index_of_another_release_is_made_anew(history: CheckedHistory, version: int) -> None:
    from blake3 import blake3

    with history.open() as repo:
        identity = repo.handle.store.snapshot.identity
    data = Writer().uint(version).raw(identity).uint(0).uint(0).raw(GENESIS.chain).uint(0).done()
    history.index_file.write_bytes(data + blake3(data).digest(16))
    with history.open() as repo:
        assert repo.handle.store.snapshot.rebuilt
    assert answers(history)


def test_two_handles_of_one_process(history: CheckedHistory) -> None:
    with history.open() as one, history.open() as two:
        for repo in (one, two, one):
            history.add(repo)
            repo.handle.store.snapshot.index_tail(force=True)
        assert [e.id for e in two.log()] == history.ids[::-1]
        assert history.wrong(one) == history.wrong(two) == []
