"""The redo journal: after any end of the process, the files are the old ones or the new ones."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import IoFailed, StorageFull
from mvc.io.files import FileSystem
from mvc.io.redo import BLOCK, ChangedFile, RedoJournal, carry_out, discard
from mvc.testing import FailingFS, HookedFS, Killed, KilledFS
from tests.faults.crashfs import CrashFS

Contents = dict[str, bytes | None]
"""Of the files below a folder; None for one that is not there."""

OLD: Contents = {
    "a": bytes(range(256)) * 1200,
    "b/grows": b"x" * 4_001,
    "shrinks": b"y" * 9_000,
    "gone": b"z",
    "b/c/new": None,
    "same": b"s" * 100,
}
NEW: Contents = {
    "a": b"\xff" + bytes(range(1, 256)) + bytes(range(256)) * 1198 + bytes(256),
    "b/grows": b"x" * 4_000 + b"!" * 200_000,
    "shrinks": b"Y" * 10,
    "gone": None,
    "b/c/new": b"n" * 3_000,
    "same": b"s" * 100,
}


def laid(folder: Path, contents: Contents) -> Path:
    for name, data in contents.items():
        if data is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
    return folder


def there(folder: Path, names: Contents) -> Contents:
    paths = {name: folder / name for name in names}
    return {name: p.read_bytes() if p.exists() else None for name, p in paths.items()}


def prepare(fs: FileSystem, path: Path, old: Contents, new: Contents) -> RedoJournal:
    files = [
        ChangedFile(name, *(None if data is None else len(data) for data in (old[name], new[name])))
        for name in new
    ]
    journal = RedoJournal(fs, path, files)
    for number, name in enumerate(new):
        journal.append(number, 0, old[name] or b"", new[name] or b"")
    return journal


def seal(fs: FileSystem, path: Path, old: Contents, new: Contents) -> None:
    prepare(fs, path, old, new).seal()


def started(fs: FileSystem, path: Path, folder: Path) -> None:
    """What a process does first."""
    carry_out(fs, path, folder)
    discard(fs, path)


def test_all_files_change_and_again(tmp_path: Path) -> None:
    fs, folder, path = FileSystem(), laid(tmp_path / "f", OLD), tmp_path / "journal"
    seal(fs, path, OLD, NEW)
    assert there(folder, OLD) == OLD
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size < 220_000
    for _ in range(2):
        assert carry_out(fs, path, folder)
        assert there(folder, NEW) == NEW
    discard(fs, path)
    assert not carry_out(fs, path, folder)


def test_a_journal_that_is_not_sealed_changes_nothing(tmp_path: Path) -> None:
    fs, folder, path = FileSystem(), laid(tmp_path / "f", OLD), tmp_path / "journal"
    prepare(fs, path, OLD, NEW)
    assert not carry_out(fs, path, folder)
    assert there(folder, OLD) == OLD


@given(st.data())
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    tmp = tmp_path_factory.mktemp("any")
    size = data.draw(st.sampled_from([0, 1, 7, 4096, BLOCK - 1, BLOCK, BLOCK + 2, 2 * BLOCK + 5]))
    old = bytes(size)
    new = np.zeros(max(0, size + data.draw(st.integers(-9, 9))), np.uint8)
    for _ in range(data.draw(st.integers(0, 4))):
        start, length = data.draw(st.integers(0, size)), data.draw(st.sampled_from([1, 2, 90_000]))
        new[start : start + length] = data.draw(st.integers(0, 255))
    (tmp / "f").write_bytes(old)
    fs, file = FileSystem(), ChangedFile("", size, new.size)
    journal = RedoJournal(fs, tmp / "journal", [file])
    step = data.draw(st.sampled_from([1 << 30, BLOCK, 4096, 999]))
    for at in range(0, new.size, step):
        journal.append(0, at, old[at : at + step], new[at : at + step].tobytes())
    journal.seal()
    assert carry_out(fs, tmp / "journal", tmp / "f")
    assert (tmp / "f").read_bytes() == new.tobytes()


def test_few_changes_take_four_bytes_each(tmp_path: Path) -> None:
    old = np.zeros(1 << 20, np.uint16)
    new = old.copy()
    new[:: 1 << 7] = 1
    fs = FileSystem()
    seal(fs, tmp_path / "j", {"a": old.tobytes()},
         {"a": new.tobytes()})  # fmt: skip
    assert (tmp_path / "j").stat().st_size < 4.2 * (1 << 13)


def whole(fs: FileSystem, path: Path, folder: Path, new: Contents = NEW) -> None:
    journal = prepare(fs, path, OLD, new)
    journal.seal()
    assert carry_out(fs, path, folder, journal)
    discard(fs, path)


def test_a_kill_at_every_call(tmp_path: Path) -> None:
    counting = HookedFS(lambda *_: None)
    whole(counting, tmp_path / "j", laid(tmp_path / "counted", OLD))
    seen = set()
    for number in range(1, counting.calls + 1):
        folder, path = laid(tmp_path / f"f{number}", OLD), tmp_path / f"j{number}"
        with pytest.raises(Killed):
            whole(KilledFS(lambda n, *_, at=number: n >= at), path, folder)
        for again in (number % 7 + 1, None):  # the next process is killed, too
            try:
                started(KilledFS(lambda n, *_, at=again: n == at), path, folder)
            except Killed:
                continue
        found = there(folder, OLD)
        assert found in (OLD, NEW), number
        assert not path.exists()
        seen.add(found == NEW)
    assert seen == {False, True}


def test_a_power_loss_after_every_change(tmp_path: Path) -> None:
    """It may leave garbage in what was being written: whole blocks take its place.

    Where few words of a block change, a follower sees it by the hash of the file.
    """
    (tmp_path / "root").mkdir()
    new = NEW | {"a": bytes(307_000)}
    folder, rng = laid(tmp_path / "root" / "f", OLD), random.Random(1)
    fs = CrashFS(tmp_path / "root")
    whole(fs, tmp_path / "root" / "j", folder, new)
    seen = set()
    for point in range(fs.crash_points() + 1):
        for image in range(3):
            left = tmp_path / f"{point}-{image}"
            fs.image(point, rng, left)
            if (left / "j").exists():
                (left / "j").chmod(0o600)  # images have no modes
            started(FileSystem(), left / "j", left / "f")
            found = there(left / "f", OLD)
            assert found in (OLD, new), point
            seen.add(found == new)
    assert seen == {False, True}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_failure_at_every_call(tmp_path: Path, error: int) -> None:
    for number in range(1, 500):
        folder, path = laid(tmp_path / f"f{number}", OLD), tmp_path / f"j{number}"
        fs = FailingFS(fail_at=number, error=error, persistent=True)
        try:
            whole(fs, path, folder)
        except IoFailed as failed:
            assert isinstance(failed, StorageFull) == (error == errno.ENOSPC) or fs.failures
        else:
            break
        started(FileSystem(), path, folder)
        assert there(folder, OLD) in (OLD, NEW), number
    assert there(folder, NEW) == NEW
    assert number > 10


def test_short_transfers_go_unnoticed(tmp_path: Path) -> None:
    folder = laid(tmp_path / "f", OLD)
    whole(FailingFS(fail_at=1, error="short", persistent=True), tmp_path / "j", folder)
    assert there(folder, NEW) == NEW


def small(folder: Path) -> Iterator[tuple[Path, bytes]]:
    old: Contents = {"a": bytes(600), "b": b"b" * 9}
    new: Contents = {"a": bytes(300) + b"!" + bytes(299), "b": b"c" * 12}
    path = folder / "j"
    laid(folder / "f", old)
    seal(FileSystem(), path, old, new)
    sealed = path.read_bytes()
    for i in range(len(sealed)):
        for flipped in (1, 0x80, 0xFF):
            yield path, sealed[:i] + bytes([sealed[i] ^ flipped]) + sealed[i + 1 :]
        yield path, sealed[:i]
    for extra in (b"\0", b"\xff" * 40):
        yield path, extra + sealed


def test_a_journal_that_was_tampered_with_is_refused(tmp_path: Path) -> None:
    for count, (path, data) in enumerate(small(tmp_path)):  # noqa: B007
        path.write_bytes(data)
        assert not carry_out(FileSystem(), path, tmp_path / "f")
        assert (tmp_path / "f/a").read_bytes() == bytes(600)
    assert count > 400


def test_a_journal_that_was_changed_since_it_was_sealed_is_refused(tmp_path: Path) -> None:
    fs, folder, path = FileSystem(), laid(tmp_path / "f", OLD), tmp_path / "renamed"
    journal = prepare(fs, tmp_path / "j", OLD, NEW)
    journal.seal()
    (tmp_path / "j").rename(path)
    sealed = path.read_bytes()
    for changed in (sealed[:-9] + b"!" + sealed[-8:], sealed[:-9], b""):
        path.write_bytes(changed)
        os.utime(path, ns=(0, journal.identity.mtime_ns + 1))
        assert not carry_out(fs, path, folder, journal)
        assert there(folder, OLD) == OLD
    path.write_bytes(sealed)
    assert carry_out(fs, path, folder, journal)
    assert there(folder, NEW) == NEW


@pytest.mark.parametrize(
    "file",
    [
        ChangedFile("../out", None, 5),
        ChangedFile("/tmp/out", None, 5),
        ChangedFile("a/../../out", None, 5),
        ChangedFile("a", None, 4),
        ChangedFile("a\nb", None, 5),
    ],
)
def test_a_journal_that_leads_elsewhere_is_refused(tmp_path: Path, file: ChangedFile) -> None:
    fs = FileSystem()
    (tmp_path / "f").mkdir()
    journal = RedoJournal(fs, tmp_path / "j", [file])
    journal.append(0, 0, b"", b"12345")
    journal.seal()
    assert not carry_out(fs, tmp_path / "j", tmp_path / "f")
    assert list((tmp_path / "f").iterdir()) == []
    assert not (tmp_path / "out").exists()


def test_links_are_not_followed(tmp_path: Path) -> None:
    fs, victim = FileSystem(), laid(tmp_path / "victim", {"a": OLD["a"]})
    for link in ("f/a", "f", "j"):
        home = tmp_path / f"at-{link.replace('/', '-')}"
        folder = laid(home / "f" / "sub", {"a": OLD["a"]}).parent
        old, new = {"sub/a": OLD["a"]}, {"sub/a": NEW["a"]}
        seal(fs, home / "j", old, new)
        place = {"f/a": folder / "sub/a", "f": folder / "sub", "j": home / "j"}[link]
        place.rename(home / "away")
        place.symlink_to({"f/a": victim / "a", "f": victim, "j": home / "away"}[link])
        with suppress(IoFailed):
            assert not carry_out(fs, home / "j", folder)
        assert (victim / "a").read_bytes() == OLD["a"]


def test_a_journal_of_another_user_or_that_others_may_write_is_refused(tmp_path: Path) -> None:
    fs, folder, path = FileSystem(), laid(tmp_path / "f", OLD), tmp_path / "j"
    seal(fs, path, OLD, NEW)
    path.chmod(0o620)
    assert not carry_out(fs, path, folder)
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
        assert not carry_out(fs, path, folder)
        os.chown(path, 0, -1)
    assert there(folder, OLD) == OLD
    assert carry_out(fs, path, folder)


def test_a_file_of_another_size_is_not_written(tmp_path: Path) -> None:
    fs, folder, path = FileSystem(), laid(tmp_path / "f", OLD), tmp_path / "j"
    seal(fs, path, OLD, NEW)
    (folder / "shrinks").write_bytes(b"three")
    assert not carry_out(fs, path, folder)
    assert there(folder, OLD) == {**OLD, "shrinks": b"three"}
