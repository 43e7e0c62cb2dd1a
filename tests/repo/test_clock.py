"""A clock that stands where no time can be written down: one clear line, and nothing half-done."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.api import Repository
from mvc.errors import InvalidTime
from mvc.ids import CommitId
from mvc.repo.commit.request import CommitOptions
from mvc.store.journal.entries import Entry, RefChange
from mvc.store.journal.frames import encode_entry
from mvc.testing import FixedClock

YEAR = 31_556_952 * 10**9
OUT_OF_RANGE = {
    "a nanosecond before 1970": -1,
    "1960": -10 * YEAR,
    "1500": -470 * YEAR,
    "2262": (1 << 63) - 1,
    "2400": 430 * YEAR,
    "2600": 630 * YEAR,
    "9999": 8029 * YEAR,
    "no calendar": 10**30,
}
BACK = {"1970": 0, "2001": 31 * YEAR, "the last": (1 << 63) - 2}
Act = Callable[[Repository], object]


WRITES: dict[str, Act] = {
    "commit": lambda repo: repo.commit({"w": np.ones(4)}),
    "commit of a file": lambda repo: repo.commit([repo.root / "g.bin"]),
    "commit with a time": lambda repo: repo.commit(
        {"w": np.ones(4)}, options=CommitOptions(time=10**18)
    ),
    "commit and deploy": lambda repo: repo.commit({"w": np.ones(4)}, deploy="prod"),
    "commit, deploy at": lambda repo: repo.commit(
        {"w": np.ones(4)}, deploy="prod", options=CommitOptions(at=10**18)
    ),
    "deploy": lambda repo: repo.deploy("HEAD", "prod"),
    "deploy at": lambda repo: repo.deploy("HEAD", "prod", at=10**18),
    "retract": lambda repo: repo.retract(None, "prod"),
    "tag": lambda repo: repo.tag("v2"),
    "branch": lambda repo: repo.branch("new"),
    "switch": lambda repo: repo.switch("side"),
    "switch to a new one": lambda repo: repo.switch("new", create=True),
    "checkout": lambda repo: repo.checkout("HEAD~3", to=repo.root),
    "undo": lambda repo: repo.undo(),
    "forget": lambda repo: repo.storage.forget("HEAD~3"),
    "forget by rule": lambda repo: repo.storage.forget(keep_last=1),
    "gc": lambda repo: repo.storage.gc(grace="0s"),
    "gc after 14 days": lambda repo: repo.storage.gc(),
    "repack": lambda repo: repo.storage.repack(interval=1),
    "import": lambda repo: mvc.import_checkpoints(repo, [repo.root / "g.bin"]),
}
READS: dict[str, Act] = {
    "checkout": lambda repo: repo.checkout()["w"].tolist(),
    "by time": lambda repo: repo.checkout(at=10**18 * 2, target="prod")["w"].tolist(),
    "live": lambda repo: repo.live("prod").commit,
    "log": lambda repo: [entry.id for entry in repo.log()],
    "deployments": lambda repo: len(repo.deployments()),
    "oplog": lambda repo: len(list(repo.operations())),
    "reflog": lambda repo: repo.find("main@{2030-01-01}"),
    "status": lambda repo: repo.status().clean,
    "fsck": lambda repo: repo.storage.fsck(full=True).problems,
    "stats": lambda repo: repo.storage.stats().versions,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions of a file and of a state, something to collect, something to undo."""
    root = tmp_path_factory.mktemp("made") / "models"
    with Repository.init(root, clock=FixedClock()) as repo:
        for i in range(3):
            (root / "f.bin").write_bytes(b"x" * 100 * (i + 1))
            repo.commit([root / "f.bin"], deploy="prod")
            repo.commit({"w": np.ones(3) * i}, deploy="prod")
        repo.branch("side", "HEAD~2")
        repo.commit({"w": np.ones(3) * 9})
        repo.undo()
        repo.tag("v1")
    return root


def contents(root: Path) -> dict[str, bytes]:
    """Every file but the index, which is derived, and the note of the journal's length."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and "index.lmdb" not in path.parts and path.name != "witness"
    }


@pytest.mark.parametrize("now", [-1, 430 * YEAR, 10**30], ids=["1969", "2400", "no calendar"])
@pytest.mark.parametrize("act", WRITES.values(), ids=WRITES)
def test_nothing_is_written(made: Path, tmp_path: Path, act: Act, now: int) -> None:
    root = tmp_path / "models"
    shutil.copytree(made, root)
    (root / "g.bin").write_bytes(b"other")
    before = contents(root)
    with Repository.open(root, clock=FixedClock(now)) as repo:
        with pytest.raises(InvalidTime, match="clock") as caught:
            act(repo)
        assert "\n" not in str(caught.value) and "set the clock" in (caught.value.hint or "")
    assert contents(root) == before
    with Repository.open(root, clock=FixedClock()) as repo:
        act(repo)
        assert not repo.storage.fsck(full=True).problems


@pytest.mark.parametrize("now", OUT_OF_RANGE.values(), ids=OUT_OF_RANGE)
def test_no_repository_is_made(tmp_path: Path, now: int) -> None:
    with pytest.raises(InvalidTime, match="clock"):
        Repository.init(tmp_path / "a/b", clock=FixedClock(now))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("now", OUT_OF_RANGE.values(), ids=OUT_OF_RANGE)
@pytest.mark.parametrize("act", READS.values(), ids=READS)
def test_what_is_there_can_be_read(made: Path, act: Act, now: int) -> None:
    with Repository.open(made, clock=FixedClock()) as repo:
        wanted = act(repo)
    with Repository.open(made, clock=FixedClock(now)) as repo:
        assert act(repo) == wanted


@pytest.mark.parametrize("now", OUT_OF_RANGE.values(), ids=OUT_OF_RANGE)
def test_repair_writes_nothing_either(made: Path, tmp_path: Path, now: int) -> None:
    root = tmp_path / "models"
    shutil.copytree(made, root)
    before = contents(root)
    with (
        Repository.open(root, clock=FixedClock(now)) as repo,
        pytest.raises(InvalidTime, match="clock"),
    ):
        repo.storage.repair(full=True)
    assert contents(root) == before


@pytest.mark.parametrize("now", BACK.values(), ids=BACK)
def test_every_time_that_can_be_written_down_is_good(tmp_path: Path, now: int) -> None:
    with Repository.init(tmp_path, clock=FixedClock(now)) as repo:
        first = repo.commit({"w": np.ones(3)}, deploy="prod").id
        assert repo.live("prod").commit == first
        assert repo.log()[0].commit.time_ns == now
        repo.commit({"w": np.zeros(3)})
        repo.undo()
        repo.storage.gc(grace="0s")
        assert repo.find() == first and not repo.storage.fsck(full=True).problems


def test_a_repository_in_which_such_a_time_stands_can_be_used(made: Path, tmp_path: Path) -> None:
    """A clock after 2262 has such times: more than 63 bits of nanoseconds."""
    root = tmp_path / "models"
    shutil.copytree(made, root)
    with Repository.open(root, clock=FixedClock()) as repo:
        tip: CommitId = repo.find()
        end = repo.handle.store.snapshot.position
    late = Entry("tag", 430 * YEAR, "late", refs=(RefChange("tags/late", None, tip),))
    with (root / ".mvc/journal").open("r+b") as journal:
        journal.truncate(end.offset)
        journal.seek(end.offset)
        journal.write(encode_entry(late, end)[0])
    with Repository.open(root, clock=FixedClock()) as repo:
        assert repo.find("late") == tip
        assert next(repo.operations()).entry.time_ns == 430 * YEAR
        repo.commit({"w": np.ones(7)})
        repo.undo()
        assert not repo.storage.fsck(full=True).problems


def test_a_file_of_such_a_time_is_not_imported(made: Path, tmp_path: Path) -> None:
    root = tmp_path / "models"
    shutil.copytree(made, root)
    place = root / "g.bin"
    place.write_bytes(b"checkpoint")
    os.utime(place, ns=(0, 430 * YEAR))
    if place.stat().st_mtime_ns != 430 * YEAR:
        pytest.skip("this file system keeps no such time")
    before = contents(root)
    with Repository.open(root) as repo, pytest.raises(InvalidTime, match=r"g\.bin"):
        mvc.import_checkpoints(repo, [place])
    assert contents(root) == before
