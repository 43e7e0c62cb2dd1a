"""The snapshot of journal, packs and index: right answers whatever becomes of the index."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import DamagedData, HistoryMissing
from mvc.io.files import FileSystem
from mvc.repo.commit.request import CommitOptions
from mvc.store.index import keys
from mvc.store.journal.entries import Entry
from mvc.store.snapshot import Snapshot
from tests.crash.story import state_of
from tests.index_files import open_files, unindexed
from tests.lent_index import open_index
from tests.store.repositories import CheckedHistory, state, view_of

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def history(tmp_path: Path) -> CheckedHistory:
    return CheckedHistory(tmp_path / "repo", 6)


def everything(repo: Repository) -> list[bytes]:
    view_of(repo).under(keys.BLOB)
    return view_of(repo).scan(b"", b"\xff" * 40)


def test_index_and_tail_give_the_same_answers(history: CheckedHistory) -> None:
    with history.open() as repo:
        view_of(repo).under(keys.BLOB)
        tail = everything(repo)
        view_of(repo).index_tail(force=True)
        assert everything(repo) == tail
        assert not unindexed(repo)
        history.add(repo)
        more = everything(repo)
        assert set(tail) < set(more)
    with history.open() as repo:
        view_of(repo).under(keys.BLOB)
        assert everything(repo) == more
        view_of(repo).rebuild_index()
        assert everything(repo) == more
    shutil.rmtree(history.index_file.parent)
    with history.open() as repo:
        view_of(repo).under(keys.BLOB)
        assert everything(repo) == more
        assert history.wrong(repo) == []


def test_many_small_batches_merge_and_stay_right(history: CheckedHistory) -> None:
    with history.open() as repo:
        for _ in range(25):
            history.add(repo)
            view_of(repo).index_tail(force=True)
        index = open_index(repo)
        assert index is not None
        assert len(index.meta(view_of(repo).identity).runs) < 10
        assert history.wrong(repo) == []
        before = everything(repo)
        view_of(repo).rebuild_index()
        assert everything(repo) == before


def test_two_views_index_in_turn(history: CheckedHistory) -> None:
    with history.open() as one:
        other = Snapshot(one.handle.store.fs, history.root / ".mvc", writable=True)
        for _ in range(12):
            history.add(one)
            other.refresh()
            other.index_tail(force=True)
            view_of(one).index_tail(force=True)
            other.under(keys.BLOB)
            assert everything(one) == other.scan(b"", b"\xff" * 40)
        assert history.wrong(one) == []
        other.close()


def test_an_index_of_another_repository_is_not_believed(
    history: CheckedHistory, tmp_path: Path
) -> None:
    history.index()
    foreign = CheckedHistory(tmp_path / "foreign", 3)
    foreign.index()
    shutil.copy(foreign.index_file, history.index_file)
    with history.open() as repo:
        assert view_of(repo).rebuilt
        assert history.wrong(repo) == []


def test_an_older_index_is_caught_up_with(history: CheckedHistory) -> None:
    history.index()
    old = history.index_file.read_bytes()
    with history.open() as repo:
        history.add(repo)
        view_of(repo).index_tail(force=True)
    history.index_file.write_bytes(old)
    with history.open() as repo:
        assert not view_of(repo).rebuilt
        assert history.wrong(repo) == []
        assert len(repo.deployments("prod")) == 7


@pytest.mark.parametrize("damage", ["cut", "empty", "garbage", "zeros"])
def test_a_broken_index_file_is_replaced(history: CheckedHistory, damage: str) -> None:
    history.index()
    size = history.index_file.stat().st_size
    with history.index_file.open("r+b") as file:
        if damage in {"cut", "empty"}:
            file.truncate(size // 2 + 17 if damage == "cut" else 0)
        else:
            file.write(bytes(size) if damage == "zeros" else random.Random(1).randbytes(size))
    with history.open() as repo:
        assert history.wrong(repo) == []
        history.add(repo)
        view_of(repo).index_tail(force=True)
        assert history.wrong(repo) == []


def test_a_flipped_bit_in_the_index_never_gives_a_wrong_answer(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.store.index_flips", str(tmp_path / "repo"), "300"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["right"] > 250


def test_a_journal_shorter_than_the_index_is_missing_history(history: CheckedHistory) -> None:
    with history.open() as repo:
        start = view_of(repo).tip.offset
    history.index()
    os.truncate(history.journal, start)
    for _ in range(2):
        with pytest.raises(HistoryMissing, match="were acknowledged") as caught:
            history.open()
        assert "fsck" in str(caught.value.hint)
    history.index_file.unlink()
    with pytest.raises(HistoryMissing, match="were acknowledged"):
        history.open()
    (history.journal.parent / "witness").unlink()
    with history.open() as repo:
        assert state_of(repo.handle).commits == tuple(history.ids[:-1])


def test_an_acknowledged_entry_that_vanishes_while_open_is_noticed(history: CheckedHistory) -> None:
    with history.open() as repo:
        history.add(repo)
        os.truncate(history.journal, view_of(repo).tip.offset)
        with pytest.raises(HistoryMissing, match="which was acknowledged"):
            view_of(repo).refresh()


def test_an_entry_taken_back_by_its_writer_is_forgotten(history: CheckedHistory) -> None:
    """A reader saw the first copy; then the writer met a full disk."""
    size = history.journal.stat().st_size
    with history.open() as reader:
        with history.open() as writer:
            phantom = writer.commit(state(77)).id
        half = (history.journal.stat().st_size - size) // 2
        os.truncate(history.journal, size + half)
        assert state_of(reader.handle).commits[-1] == phantom
        os.truncate(history.journal, size)
        (history.journal.parent / "witness").unlink()  # a writer that fails leaves none
        assert state_of(reader.handle).commits == tuple(history.ids)
        with history.open() as writer:
            history.add(writer)
        assert state_of(reader.handle).commits == tuple(history.ids)
        history.add(reader)
        assert history.wrong(reader) == []
        assert reader.storage.fsck(full=True).problems == ()


def test_a_forked_child_reads_and_commits(history: CheckedHistory) -> None:
    history.index()
    with history.open() as repo:
        history.wrong(repo)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                good = not history.wrong(repo)
                made = repo.commit(state(50))
                os.write(write, made.id if good else b"?")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        id_ = os.read(read, 100)
        assert state_of(repo.handle).commits == (*history.ids, id_)
        assert repo.checkout("HEAD")["step"] == 50
        repo.commit(state(51))
        assert history.wrong(repo) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission_is_read(history: CheckedHistory) -> None:
    folder = history.root / ".mvc"
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with history.open() as repo:
            assert history.wrong(repo) == []
    finally:
        folder.chmod(stat.S_IRWXU)


class _ReadOnly(FileSystem):
    def is_writable_dir(self, path: Path) -> bool:
        return False


@pytest.mark.parametrize("index", ["none", "current", "old", "garbage"])
def test_a_read_only_view_works_with_any_index(history: CheckedHistory, index: str) -> None:
    if index != "none":
        history.index()
    if index == "old":
        with history.open() as repo:
            history.add(repo)
    elif index == "garbage":
        history.index_file.write_bytes(random.Random(1).randbytes(32768))
    before = {p: p.read_bytes() for p in (history.root / ".mvc").rglob("*") if p.is_file()}
    history.options["fs"] = _ReadOnly()
    with history.open() as repo:
        assert not repo.handle.store.writable
        assert history.wrong(repo) == []
        assert repo.live("prod").commit == history.ids[-1]
        assert len(state_of(repo.handle).commits) == len(history.ids)
    after = {p: p.read_bytes() for p in (history.root / ".mvc").rglob("*") if p.is_file()}
    assert {p: d for p, d in after.items() if p.name != "lock.mdb"} == {
        p: d for p, d in before.items() if p.name != "lock.mdb"
    }


@pytest.mark.parametrize("indexed", [False, True], ids=["tail", "index"])
def test_a_damaged_record_leaves_other_versions_readable(
    history: CheckedHistory, indexed: bool
) -> None:
    """Also when it is met before it is indexed."""
    with history.open() as repo:
        repo.commit(
            {"w": np.arange(9.0)}, path="other.safetensors", options=CommitOptions(reset_point=True)
        )
        entry = view_of(repo).entries()
        regions = [r.entry.regions[0] for r in entry if r.entry.regions]
    if indexed:
        history.index()
    with history.pack.open("r+b") as file:
        file.seek(regions[3].start + 30)
        byte = file.read(1)[0]
        file.seek(regions[3].start + 30)
        file.write(bytes([byte ^ 8]))
    with history.open() as repo:
        lost = history.wrong(repo)
        assert 3 in lost
        assert not {0, 1, 2} & set(lost)
        with pytest.raises(DamagedData):
            repo.checkout(history.ids[3])
        history.add(repo)
        assert len(history.ids) - 1 not in history.wrong(repo)
        assert everything(repo)
    with history.open() as repo:
        assert not {0, 1, 2, len(history.ids) - 1} & set(history.wrong(repo))


def test_a_missing_pack_is_named(history: CheckedHistory) -> None:
    history.pack.rename(history.pack.with_name("moved"))
    with history.open() as repo, pytest.raises(DamagedData, match=r"00000001\.pack"):
        repo.checkout("HEAD")


def test_environments_are_shared_and_closed_with_the_last_user(history: CheckedHistory) -> None:
    history.index()
    with history.open() as one, history.open() as two:
        assert open_index(one) is not None and open_index(one) is open_index(two)
        one.close()
        assert history.index_file in open_files()
        assert history.wrong(two) == []
    assert history.index_file not in open_files()


def test_an_empty_operation_is_an_entry(history: CheckedHistory) -> None:
    with history.open() as repo:
        recorded = repo.handle.store.publish(lambda: Entry("note", 1, "hello"))
        assert view_of(repo).entry(recorded.offset).entry.note == "hello"


def test_a_journal_cut_between_entries_is_missed(tmp_path):
    import numpy as np

    import mvc
    from mvc.errors import HistoryMissing

    with mvc.Repository.init(tmp_path) as repo:
        for i in range(5):
            repo.commit({"w": np.full(4, i, np.float32)})
        entries = list(repo.handle.store.snapshot.entries())
    journal = tmp_path / ".mvc" / "journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole[: entries[3].offset])
    with pytest.raises(HistoryMissing, match="acknowledged"):
        mvc.Repository.open(tmp_path)
    journal.write_bytes(whole)
    (tmp_path / ".mvc" / "witness").write_bytes(b"garbage")
    with mvc.Repository.open(tmp_path) as repo:
        assert len(list(repo.log())) == 5


@pytest.mark.parametrize("deleted", ["folder", "environment"])
def test_an_index_deleted_while_it_is_rebuilt(tmp_path: Path, deleted: str) -> None:
    """Somebody's clean-up beside a rebuild: it begins again."""

    class CleansUp(FileSystem):
        left = 2

        def make_dir(self, path: Path, exist_ok: bool = False, *, within=None) -> None:  # type: ignore[no-untyped-def]
            super().make_dir(path, exist_ok, within=within)
            if path.parent.name == "index.lmdb" and self.left:
                self.left -= 1
                shutil.rmtree(path.parent if deleted == "folder" else path)

    with Repository.init(tmp_path) as repo:
        repo.commit({"w": np.zeros(3)})
    with Repository.open(tmp_path, fs=CleansUp()) as repo:
        CleansUp.left = 2
        repo.storage.rebuild_index()
        assert repo.storage.fsck(full=True).sound
        assert len(repo.log()) == 1
