"""fsck --repair that is interrupted anywhere, beside commits, and of damage drawn at random."""

from __future__ import annotations

import errno
import random
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import MvcError
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.maintenance.repair.journal import before_opening
from mvc.repo.commit.request import CommitOptions
from mvc.store.writing import pack_writer
from mvc.testing import FailingFS, fresh_process, open_quietly
from tests.crash.images import folder_in_memory
from tests.damage.subject import file_of, named_lost
from tests.faults.crashfs import CrashFS
from tests.histories import CheckedHistory
from tests.maintenance.damaging import (
    lost,
    make,
    mend,
    moved,
    smash,
    smash_payload,
    step_of,
)
from tests.seeds import draw


def damaged(root: Path) -> CheckedHistory:
    """A repository with some of everything that can be healed."""
    history = make(root, resets=(0, 3, 6), count=7)
    for rev in ("HEAD~6", "HEAD~1"):
        smash_payload(root, step_of(root, rev))
    smash(root / ".mvc" / "journal", 60, 5)
    smash(root / ".mvc" / "format", 3, 4)
    return history


def attempt(root: Path, fs: FileSystem) -> BaseException | None:
    """A repair through ``fs``; what ended it."""
    fresh_process()
    try:
        before_opening(fs, root / ".mvc")
        with Repository.open(root, fs=fs) as repo:
            repo.storage.repair()
    except (MvcError, MemoryError) as error:
        return error
    return None


def fail_each(folder: Path, error: int | type[MemoryError], persistent: bool, share: float) -> None:
    """Each call fails once, or all from there on; afterwards a repair heals everything."""
    rng = draw("failing repair")
    history = damaged(folder / "damaged")
    n = failures = 0
    while True:
        n += 1
        if n > 1 and rng.random() > share:
            continue
        root = folder / f"{n}"
        shutil.copytree(folder / "damaged", root)
        fs = FailingFS(fail_at=n, error=error, persistent=persistent)
        ended = attempt(root, fs)
        if not fs.failures:
            assert ended is None
            break
        failures += ended is not None
        before_opening(FileSystem(), root / ".mvc")
        here = moved(history, root)
        assert lost(here) == []  # as before: every version had a way
        assert mend(root).after.sound
        here.check()
        shutil.rmtree(root)
    assert failures


@pytest.mark.parametrize("persistent", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, MemoryError], ids=str)
def test_a_failing_call(tmp_path: Path, error: int, persistent: bool) -> None:
    fail_each(tmp_path, error, persistent, 0.01 if error != errno.ENOSPC else 0.07)


@pytest.mark.long
@pytest.mark.parametrize("persistent", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EMFILE, MemoryError], ids=str)
def test_every_failing_call(tmp_path: Path, error: int, persistent: bool) -> None:
    with folder_in_memory(tmp_path) as folder:
        fail_each(folder, error, persistent, 1.0)


def crash(folder: Path, count: int) -> None:
    """Power is lost at any moment of a repair."""
    rng = draw("power loss in a repair")
    root = folder / "repo"
    history = damaged(root)
    shutil.rmtree(root / ".mvc" / "index.lmdb", ignore_errors=True)
    fs = CrashFS(root)
    assert attempt(root, fs) is None
    points = sorted(rng.randrange(fs.crash_points() + 1) for _ in range(count))
    for i, point in enumerate(points):
        image = folder / f"image{i}"
        fs.image(point, rng, image)
        shutil.rmtree(image / ".mvc" / "index.lmdb", ignore_errors=True)
        assert mend(image).after.sound, point
        moved(history, image).check()
        shutil.rmtree(image)


def test_power_loss(tmp_path: Path) -> None:
    crash(tmp_path, 8)


@pytest.mark.long
@pytest.mark.parametrize("round_", range(2))
def test_power_loss_at_every_point(round_: int, tmp_path: Path) -> None:
    with folder_in_memory(tmp_path) as folder:
        crash(folder, 500)


def test_commits_go_on_beside_a_repair(tmp_path: Path) -> None:
    """Another process commits all the while; nothing it was told is kept gets lost."""
    history = damaged(tmp_path)
    before_opening(FileSystem(), tmp_path / ".mvc")
    child = [sys.executable, "-m", "tests.crash.child", str(tmp_path), "beside", "25"]
    with subprocess.Popen(child, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline()]
        with Repository.open(tmp_path) as repo:
            assert repo.storage.repair().after.sound
        acknowledged += process.stdout.readlines()
    assert process.returncode == 0 and len(acknowledged) == 25
    history.check()
    kept = {str(entry.id) for entry in history.repo.log()}
    assert {line.split()[0] for line in acknowledged} <= kept


# -- damage drawn at random ------------------------------------------------------------


Held = dict[CommitId, dict[str, bytes]]


def held(root: Path) -> Held:
    """The files of every version that comes back."""
    found: Held = {}
    with open_quietly(root) as repo:
        for recorded in repo.handle.store.snapshot.entries():
            for commit in recorded.entry.commits:
                fresh_process()
                with suppress(MvcError):
                    entries = repo.manifest(commit.id).entries
                    found[commit.id] = {entry.path: file_of(repo, entry) for entry in entries}
    return found


def story(root: Path) -> Held:
    """Reset points on both sides, several packs, groups, files, a branch."""
    rng = np.random.default_rng(3)
    before, pack_writer.PACK_TARGET = pack_writer.PACK_TARGET, 24_000
    try:
        with Repository.init(root) as repo:
            w = rng.standard_normal(1500).astype(np.float32)
            for step in range(9):
                w = w + (1e-3 * rng.standard_normal(1500)).astype(np.float32)
                state = {"w": w, "v": w[:600] * 2, "n": np.array(step)}
                ends = step in {0, 4, 8}
                pipeline = "vsol" if step % 3 == 2 else None
                repo.commit(
                    state, deploy="prod", pipeline=pipeline, options=CommitOptions(reset_point=ends)
                )
                (root / "notes.bin").write_bytes(rng.bytes(1200 + step))
                repo.commit(root / "notes.bin")
        return held(root)
    finally:
        pack_writer.PACK_TARGET = before


def spoil(root: Path, rng: random.Random) -> None:
    """Flips bits, overwrites runs, deletes, cuts or exchanges packs."""
    files = sorted((root / ".mvc" / "packs").iterdir())
    for _ in range(rng.choice((1, 1, 2, 4))):
        path = rng.choice(files)
        size = path.stat().st_size if path.exists() else 0
        how = rng.choice(("bit", "run", "run", "sector", "cut", "gone"))
        if not size:
            continue
        if how == "gone":
            path.unlink()
        elif how == "cut":
            path.write_bytes(path.read_bytes()[: rng.randrange(size)])
        else:
            length = {"bit": 1, "run": rng.randrange(2, 40), "sector": 512}[how]
            smash(path, rng.randrange(size), length)


def random_damage(folder: Path, rounds: int) -> None:
    rng = draw("random damage")
    sound = folder / "sound"
    expected = story(sound)
    (sound / "notes.bin").unlink()
    healed = 0
    for i in range(10 * rounds):
        if i >= rounds and healed:
            break
        root = folder / f"{i}"
        shutil.copytree(sound, root)
        spoil(root, rng)
        before = held(root)
        done = mend(root)
        after = held(root)
        if list(expected)[-1] in after:
            with Repository.open(root) as repo:
                repo.commit({"new": np.arange(50)}, path="new.safetensors")
        assert all(after[id_] == expected[id_] for id_ in after)
        assert before.keys() <= after.keys()
        assert named_lost(done.after) == expected.keys() - after.keys()
        assert done.after.sound == (after.keys() == expected.keys())
        healed += len(done.healed)
        assert mend(root, sound).after.sound
        back = held(root)
        assert all(back[id_] == expected[id_] for id_ in expected)
        shutil.rmtree(root)
    assert healed


def test_damage_at_random(tmp_path: Path) -> None:
    random_damage(tmp_path, 3)


@pytest.mark.long
@pytest.mark.parametrize("round_", range(2))
def test_damage_at_random_many_times(round_: int, tmp_path: Path) -> None:
    with folder_in_memory(tmp_path) as folder:
        random_damage(folder, 200)
