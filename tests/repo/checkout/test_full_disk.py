"""A checkout to another disk, where the disk of the repository has no room left for a plan."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.errors import StorageFull
from mvc.testing import HookedFS, fresh_process
from tests.cli.program import spawn
from tests.repo.checkout.test_together import SHARDS, World, held, world

__all__ = ["world"]

WRITING = {"make_dir", "open_write", "lock", "write", "replace"}
TARGETS = [pytest.param(SHARDS[:1], id="a file"), pytest.param([], id="a version")]


@pytest.mark.parametrize("paths", TARGETS)
def test_each_write_in_turn_finds_no_room(world: World, tmp_path: Path, paths: list[str]) -> None:
    """From the first, second, ... call on, nothing more can be written into ``.mvc``."""
    root = world.copy(tmp_path / "models")
    shutil.rmtree(root / ".mvc/checkouts", ignore_errors=True)
    wanted = {n: b for n, b in world.versions[0].items() if not paths or n in paths}
    refused = 1
    first = 0
    while refused:
        first, refused, seen = first + 1, 0, 0

        def full(_: int, op: str, path: Path, first: int = first) -> None:
            nonlocal refused, seen
            new = op in WRITING and not (op in {"make_dir", "lock"} and path.exists())
            if new and path.is_relative_to(root / ".mvc"):
                seen += 1
                if seen >= first:
                    refused += 1
                    raise StorageFull("no space left")

        output = tmp_path / f"out{first}"
        fresh_process()
        with Repository.open(root, fs=HookedFS(full)) as repo:
            repo.checkout(world.ids[0], path=paths, to=output / "x" if paths else output)
        found = held(output)
        assert (list(found.values()) == list(wanted.values())) if paths else found == wanted
        shutil.rmtree(output)
    assert first > 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk takes root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("paths", TARGETS)
def test_a_repository_on_a_full_disk(
    world: World, tmp_path: Path, small_disk: Path, paths: list[str]
) -> None:
    root = world.copy(small_disk / "models")
    shutil.rmtree(root / ".mvc/checkouts", ignore_errors=True)
    with (small_disk / "filler").open("wb", buffering=0) as file, pytest.raises(OSError):
        while file.write(bytes(4096)):
            pass
    output = tmp_path / "out"
    target = ["-o", str(output / "x") if paths else f"{output}/"]
    done = spawn("checkout", world.ids[0], *paths, *target, cwd=root)
    assert done.returncode == 0, done.stderr
    wanted = [b for n, b in world.versions[0].items() if not paths or n in paths]
    assert sorted(held(output).values()) == sorted(wanted)
