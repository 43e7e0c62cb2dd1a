"""fsck beside processes that write as fast as they can: never an alarm, never an untrue note."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import DamagedData
from mvc.model.statement import Deployment
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import encode_entry
from mvc.types import Progress

# Without the flush of each entry a writer publishes thousands of operations a second, so that
# runs of the index are added and merged while the other process checks.
WRITER = """
import sys
from mvc.api.repository import Repository
from mvc.model.statement import Deployment
from mvc.store.journal.entries import Entry
from mvc.store.publishing.publish import publish

with Repository.open(sys.argv[1]) as repo:
    target, store = sys.argv[2], repo.handle.store
    head = repo.find("HEAD")

    def make():
        now = store.clock.now_ns()
        return Entry("deploy", now, target, statements=(
            Deployment(subject=head, target=target, time_ns=now),))

    print("ready", flush=True)
    while True:
        publish(store.snapshot, make, sync=False)
        store.snapshot.index_tail()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Repository.init(tmp_path / "models") as repo:
        repo.commit({"w": np.arange(1000, dtype=np.float32)}, deploy="prod")
    return tmp_path / "models"


@pytest.fixture
def writers(root: Path) -> Iterator[list[subprocess.Popen[str]]]:
    command = [sys.executable, "-c", WRITER, str(root)]
    found = [
        subprocess.Popen([*command, f"target{i}"], stdout=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    try:
        for process in found:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield found
    finally:
        for process in found:
            process.kill()
            process.wait()


def test_no_alarm_and_no_note_beside_fast_writers(
    root: Path, writers: list[subprocess.Popen[str]]
) -> None:
    # Every check takes longer than the last, as the writers go on: on a busy machine without end.
    seen, end = list[int](), time.monotonic() + 60
    with Repository.open(root) as kept:
        for i in range(40):
            if i >= 10 and time.monotonic() > end:
                break
            if i % 2:
                report = kept.storage.fsck()
            else:
                with Repository.open(root) as fresh:
                    report = fresh.storage.fsck()
            assert report.problems == ()
            assert report.notes == ()
            seen.append(report.entries)
    assert seen == sorted(seen) and seen[-1] > seen[0]
    assert all(process.poll() is None for process in writers)


def after(entries: int, act: Callable[[], object]) -> tuple[Progress, list[int]]:
    """A progress that acts once so many entries were checked, and its calls so far."""
    calls: list[int] = []

    def progress(done: int, _total: int, _what: str) -> None:
        calls.append(done)
        if len(calls) == entries:
            act()

    return progress, calls


def test_the_index_moves_on_between_journal_and_index(root: Path) -> None:
    """Deployments that come in after the journal was read are no keys without a cause."""
    with Repository.open(root) as other, Repository.open(root) as repo:

        def deploy() -> None:
            for _ in range(5):
                other.deploy("HEAD", "prod")
            repo.handle.store.snapshot.refresh()

        progress, calls = after(2, deploy)
        report = repo.storage.fsck(progress=progress)
        assert report.sound and report.notes == () and report.entries == len(calls) == 2
        assert repo.storage.fsck().entries == 7


def test_an_entry_that_its_writer_took_back_is_no_alarm(root: Path) -> None:
    """The last entry of the check vanishes while it runs, and another one takes its place."""
    with Repository.open(root) as repo, Repository.open(root) as other:
        view = repo.handle.store.snapshot
        journal = root / ".mvc" / "journal"
        before = journal.read_bytes()
        head = repo.find("HEAD")
        deployed = Deployment(subject=head, node=bytes(16), target="test", time_ns=5)
        written, _ = encode_entry(Entry("deploy", 7, statements=(deployed,)), view.position)
        journal.write_bytes(before + written)

        def take_back() -> None:
            with journal.open("r+b") as file:
                file.truncate(len(before))
            other.deploy("HEAD", "prod")
            view.refresh()

        progress, calls = after(3, take_back)
        report = repo.storage.fsck(progress=progress)
        assert report.sound and report.entries == 3
        assert len(calls) == 6  # it looked twice


def test_a_write_that_is_under_way_is_no_interrupted_operation(root: Path) -> None:
    """The first half of an entry is there while its writer holds the journal's lock."""
    with Repository.open(root) as repo:
        store = repo.handle.store
        journal = root / ".mvc" / "journal"
        written, _ = encode_entry(Entry("deploy", 7), store.snapshot.position)
        lock = store.fs.lock(journal)
        with journal.open("ab") as file:
            file.write(written[:50])

        def finish() -> None:
            with journal.open("ab") as file:
                file.write(written[50:])
            lock.release()

        writer = threading.Timer(0.5, finish)
        writer.start()
        report = repo.storage.fsck()
        writer.join()
        assert report.sound and report.notes == () and report.entries == 2
        assert repo.storage.fsck().entries == 3


def test_an_interrupted_operation_is_noted(root: Path) -> None:
    with Repository.open(root) as repo:
        with (root / ".mvc" / "journal").open("ab") as journal:
            journal.write(b"mvJ1 an interrupted entry")
        (note,) = repo.storage.fsck().notes
        assert note == "the journal ends with 25 bytes of an interrupted operation"
        assert repo.storage.fsck().sound


def test_damage_is_still_reported_beside_fast_writers(
    root: Path, writers: list[subprocess.Popen[str]]
) -> None:
    pack = root / ".mvc" / "packs" / "00000001.pack"
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    with Repository.open(root) as repo:
        report = repo.storage.fsck()
        assert not report.sound and {p.kind for p in report.problems} <= {
            "payload", "record", "lost", "manifest",
        }  # fmt: skip
        with pytest.raises(DamagedData):
            repo.checkout("HEAD")
