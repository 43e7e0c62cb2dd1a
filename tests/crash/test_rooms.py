"""Disks that are full on one side only: the repository's, or that of the output.

With a mount of its own for each where the tests run as root, and by a faulty file system.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import mvc
from mvc.api.repository import Repository
from mvc.errors import MvcError
from mvc.io.files import FileSystem
from mvc.testing import FailingFS, fresh_process, open_quietly
from tests.counters import count
from tests.crash.state import check_arrays, state_of
from tests.crash.test_failing_calls import (
    ACTS,
    FILE,
    FIRST,
    Act,
    attempt,
    check_after,
    checkout,
    make,
)

_SIZE = "6m"


@dataclass
class Room:
    """A disk. ``fs``: what full disks are simulated with, None for a real one."""

    path: Path
    fs: FailingFS | None

    def fill(self) -> None:
        if self.fs is not None:
            self.fs.within, self.fs.fail_at = self.path, 1
            return
        with (self.path / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            for size in (1 << 16, 1):
                with suppress(OSError):
                    while filler.write(bytes(size)):
                        pass
        with pytest.raises(OSError, match="No space left"):
            (self.path / "probe").write_bytes(b"x" * 5000)
        (self.path / "probe").unlink()

    def free(self) -> None:
        if self.fs is not None:
            self.fs.fail_at = 0
        (self.path / "filler").unlink(missing_ok=True)


@dataclass
class Rooms:
    repository: Room
    output: Room
    fs: FileSystem


@pytest.fixture(params=["mounted", "faulty"])
def rooms(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rooms]:
    paths = tmp_path / "repository", tmp_path / "output"
    for path in paths:
        path.mkdir()
    if request.param == "faulty":
        fs = FailingFS(error=errno.ENOSPC, persistent=True)
        yield Rooms(*(Room(path, fs) for path in paths), fs)
        return
    mounted: list[Path] = []
    try:
        for path in paths:
            _mount(path)
            mounted.append(path)
        yield Rooms(*(Room(path, None) for path in paths), FileSystem())
    finally:
        for path in mounted:
            subprocess.run(["umount", "--lazy", path], check=True)


def _mount(path: Path) -> None:
    command = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "mvc-test", path]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root can mount a disk")


def deploy(repo: Repository) -> None:
    """A rollback."""
    repo.deploy(state_of(repo.handle).commits[0], "prod")


# -- the repository's disk is full ---------------------------------------------------------


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_the_repositorys_disk_is_full(act: Act, rooms: Rooms) -> None:
    """The error is one of mvc's, nothing is lost, and it works once there is room."""
    world = make(rooms.repository.path / "repo")
    rooms.repository.fill()
    failed = attempt(world, act, rooms.fs)
    rooms.repository.free()
    if act is checkout:
        assert failed is None
    check_after(world, act, failed is not None)
    count("full disks, the repository's", tried=1, failed=int(failed is not None), lost=0)


@pytest.mark.parametrize("paths", [["file.bin"], []], ids=["a file", "all files"])
def test_what_is_written_elsewhere_needs_no_room_in_the_repository(
    paths: list[str], rooms: Rooms
) -> None:
    world = make(rooms.repository.path / "repo")
    out = rooms.output.path / ("out.bin" if paths else "out")
    rooms.repository.fill()
    fresh_process()
    with open_quietly(world.root, fs=rooms.fs) as repo:
        repo.checkout("main", path=paths, to=out)
    assert (out if paths else out / "file.bin").read_bytes() == FILE
    rooms.repository.free()
    with Repository.open(world.root) as repo:
        assert repo.storage.fsck(full=True).problems == ()


def test_a_rollback_waits_for_room(rooms: Rooms) -> None:
    world = make(rooms.repository.path / "repo")
    rooms.repository.fill()
    failed = attempt(world, deploy, rooms.fs)
    rooms.repository.free()
    fresh_process()
    with Repository.open(world.root) as repo:
        deploy(repo)
        assert len(repo.deployments("prod")) == 1 + (failed is None)
        assert repo.live("prod").commit == world.state.commits[0]
        assert repo.storage.fsck(full=True).problems == ()


def test_a_training_is_told_and_goes_on(rooms: Rooms) -> None:
    """What the Recorder has said to be durable is there; the next one begins behind it."""
    root = rooms.repository.path / "repo"
    torch.manual_seed(0)
    model = torch.nn.Linear(40, 40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Repository.init(root).close()
    repo = open_quietly(root, fs=rooms.fs)
    saved: list[np.ndarray] = []

    def train(recorder: mvc.Recorder, steps: int) -> None:
        for _ in range(steps):
            with torch.no_grad():
                model.weight += torch.randn(40, 40)
            saved.append(model.weight.detach().numpy().copy())
            recorder.step()

    recorder = mvc.Recorder(repo, model, optimizer)
    with pytest.raises(MvcError), recorder:
        train(recorder, 3)
        recorder.flush()
        rooms.repository.fill()
        train(recorder, 40)
        recorder.flush()
    durable = recorder.report.durable
    assert 3 <= durable < len(saved)
    repo.close()
    rooms.repository.free()
    fresh_process()
    with mvc.Repository.open(root) as repo:
        log = list(repo.log())[::-1]
        assert durable <= len(log)
        for array, entry in zip(saved, log, strict=False):
            check_arrays({"w": repo.checkout(entry.id)["weight"].numpy()}, {"w": array})
        resumed = mvc.resume(repo, model, optimizer)
        with mvc.Recorder(repo, model, optimizer, start=resumed) as again:
            again.step()
        assert len(list(repo.log())) == len(log) + 1
        assert repo.storage.fsck(full=True).problems == ()


# -- the output's disk is full -------------------------------------------------------------


@pytest.mark.parametrize("atomic", [False, True], ids=["in place", "swapped"])
def test_the_outputs_disk_is_full(atomic: bool, rooms: Rooms) -> None:
    """The version before stays whole, and the repository knows nothing of the attempt."""
    world = make(rooms.repository.path / "repo")
    out = rooms.output.path / "out"
    with open_quietly(world.root, fs=rooms.fs) as repo:
        repo.checkout("main~1", to=out / "x", atomic_dir=atomic)
        before = state_of(repo.handle)
        rooms.output.fill()
        with pytest.raises(MvcError, match="space"):
            repo.checkout("main", to=out / "x", force=not atomic, atomic_dir=atomic)
    found = repo_files(out / "x")
    rooms.output.free()
    with open_quietly(world.root, fs=rooms.fs) as repo:
        assert repo_files(out / "x") == found
        assert state_of(repo.handle) == before
        repo.checkout("main", to=out / "x", force=not atomic, atomic_dir=atomic)
        assert (out / "x" / "file.bin").read_bytes() == FILE
        check_arrays(repo.checkout("main~2", path="model.safetensors"), FIRST)
        assert repo.storage.fsck(full=True).problems == ()
    count("full disks, the output's", tried=1, lost=0)


def repo_files(place: Path) -> dict[str, bytes]:
    if place.is_file():
        return {"": place.read_bytes()}
    return {p.name: p.read_bytes() for p in place.iterdir() if not p.name.startswith(".mvc-")}


@pytest.mark.parametrize("act", [*ACTS, deploy], ids=lambda act: act.__name__)
def test_a_full_disk_elsewhere_disturbs_nothing(act: Act, rooms: Rooms) -> None:
    world = make(rooms.repository.path / "repo")
    rooms.output.fill()
    assert attempt(world, act, rooms.fs) is None
    rooms.output.free()
    if act is not deploy:
        check_after(world, act, failed=False)
