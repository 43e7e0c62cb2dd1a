"""Publishing: interrupted writes are healed, failures leave nothing, order is kept."""

from __future__ import annotations

import errno
import os
import threading
from functools import partial
from pathlib import Path

import pytest

from mvc.errors import Busy, MvcError, RefConflict, StorageFull, WrongUsage
from mvc.ids import CommitId, ManifestId, Root
from mvc.io import files
from mvc.limits import MAX_COMMIT, MAX_ENTRY
from mvc.model.commit import Commit
from mvc.store.journal.entries import Entry
from mvc.testing import FailingFS
from tests.faults.recording import RecordingFS
from tests.repo.working import new_context, open_handle


def note(text: str) -> Entry:
    return Entry("note", 1, text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    context = new_context(tmp_path / "repo")
    for text in ("first", "second"):
        context.store.publish(lambda text=text: note(text))
    context.store.close()
    return context.store.root


def notes(root: Path) -> list[str]:
    context = open_handle(root)
    found = [recorded.entry for recorded in context.store.snapshot.entries()]
    context.store.close()
    return [entry.note for entry in found if entry.operation == "note"]


def test_an_interrupted_write_is_removed(root: Path) -> None:
    journal = root / ".mvc/journal"
    sound = journal.read_bytes()
    for rest in (b"x", b"mvJ1" + bytes(600), os.urandom(3000)):
        journal.write_bytes(sound + rest)
        (root / ".mvc/witness").unlink(missing_ok=True)  # it knows of the rounds before
        context = open_handle(root)
        context.store.publish(lambda: note("next"))
        assert notes(root) == ["first", "second", "next"]
        next_entry = context.store.snapshot.tip
        assert next_entry is not None
        assert journal.stat().st_size == len(sound) + 2 * next_entry.half
        context.store.close()


def test_a_copy_that_was_cut_off_or_torn_is_completed(root: Path) -> None:
    journal = root / ".mvc/journal"
    sound = journal.read_bytes()
    context = open_handle(root)
    tip = context.store.snapshot.tip
    context.store.close()
    assert tip is not None
    for begin, end in ((0, tip.half), (tip.half, 2 * tip.half)):
        for cut in (False, True):
            if cut and begin == 0:
                continue
            data = bytearray(sound)
            data[tip.offset + begin + 5 : tip.offset + end - 5] = bytes(tip.half - 10)
            journal.write_bytes(data[: tip.offset + begin + 40] if cut else data)
            (root / ".mvc/witness").unlink(missing_ok=True)
            context = open_handle(root)
            assert notes(root) == ["first", "second"]
            context.store.snapshot.refresh()
            context.store.publish(lambda: note("next"))
            assert journal.read_bytes().startswith(sound)
            assert notes(root) == ["first", "second", "next"]
            context.store.close()


def test_what_refuses_leaves_the_journal_as_it_was(root: Path) -> None:
    before = (root / ".mvc/journal").read_bytes()
    context = open_handle(root)

    def refuse() -> Entry:
        raise RefConflict("no")

    with pytest.raises(RefConflict):
        context.store.publish(refuse)
    assert (root / ".mvc/journal").read_bytes() == before
    context.store.publish(lambda: note("next"))
    assert notes(root) == ["first", "second", "next"]


def test_what_could_not_be_read_again_is_not_written(root: Path) -> None:
    """A limit that readers have holds for every writer."""
    before, kept = ((root / f".mvc/{name}").read_bytes() for name in ("journal", "format"))
    context = open_handle(root)
    parent = CommitId(bytes(32))
    many = Commit(
        ManifestId(bytes(32)), Root(bytes(32)), (), "me", 1, 0, needs=(parent, parent)
    )  # named twice
    for entry in (
        Entry("commit", 1, commits=(many,)),
        note("x" * (MAX_COMMIT + 1)),
        Entry("note", 1, marks=tuple(bytes(8) for _ in range(MAX_ENTRY // 8 + 1))),
    ):
        with pytest.raises(WrongUsage):
            context.store.publish(lambda entry=entry: entry)
    assert (root / ".mvc/journal").read_bytes() == before
    assert (root / ".mvc/format").read_bytes() == kept
    context.store.publish(lambda: note("next"))
    assert notes(root) == ["first", "second", "next"]


def test_a_full_disk_takes_back_what_it_wrote(root: Path) -> None:
    before = (root / ".mvc/journal").read_bytes()
    for n in range(1, 20):
        fs = FailingFS(fail_at=n, error=errno.ENOSPC)
        context = open_handle(root, fs=fs)
        try:
            context.store.publish(lambda: note("next"))
        except MvcError as error:
            assert isinstance(error, StorageFull) or "flush" in error.message
            if isinstance(error, StorageFull):
                assert (root / ".mvc/journal").read_bytes() == before
        else:
            if not fs.failures:
                break
        (root / ".mvc/journal").write_bytes(before)
        (root / ".mvc/witness").unlink(missing_ok=True)
        context.store.close()
    assert n > 3


def test_one_flush_a_commit_for_a_lone_writer(root: Path) -> None:
    """The first one flushes what it found; after that each entry is flushed once."""
    fs = RecordingFS()
    context = open_handle(root, fs=fs)
    context.store.publish(lambda: note("a"))
    fs.calls.clear()
    for text in "bcd":
        context.store.publish(lambda text=text: note(text))
    assert [call.op for call in fs.calls if call.path.name == "journal"].count("sync") == 3
    other = open_handle(root, fs=RecordingFS())
    other.store.publish(lambda: note("e"))
    fs.calls.clear()
    context.store.publish(lambda: note("f"))  # behind an entry of somebody else
    assert fs.ops().count("sync") == 2
    assert notes(root) == ["first", "second", *"abcdef"]


def test_threads_publish_one_after_the_other(root: Path) -> None:
    contexts = [open_handle(root) for _ in range(3)]

    def work(i: int) -> None:
        for j in range(10):
            contexts[i % 3].store.publish(partial(note, f"{i}.{j}"))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = notes(root)[2:]
    assert sorted(found) == sorted(f"{i}.{j}" for i in range(6) for j in range(10))
    for i in range(6):
        assert [n for n in found if n.startswith(f"{i}.")] == [f"{i}.{j}" for j in range(10)]


def test_a_lock_that_is_held_too_long_is_busy(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.05)
    context = open_handle(root)
    with (
        context.store.fs.lock(root / ".mvc/journal"),
        pytest.raises(Busy, match=r"this process .* has been locking .*journal"),
    ):
        context.store.publish(lambda: note("late"))
    context.store.publish(lambda: note("next"))
    assert notes(root) == ["first", "second", "next"]
