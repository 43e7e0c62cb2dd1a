"""Checkouts whose large writes go past the system's cache: through failures, crashes and damage."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from mvc.api.repository import Repository
from mvc.errors import DamagedData, MvcError
from mvc.io.handles import LARGE, PAGE
from mvc.limits import MIB
from mvc.model.hashing import BlobHasher
from mvc.repo.commit.request import FileOptions
from mvc.store.recovery.recover import Recovery
from mvc.testing import FailingFS, fresh_process
from tests.faults.crashfs import CrashFS
from tests.io.test_direct_writes import Disk, disk
from tests.store.sizes import shrink

__all__ = ["disk"]

OLD = b"an older file"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a file of large and small tensors, at places of all kinds."""
    shrink(monkeypatch, PIECE=2 * MIB)
    root, rng = tmp_path / "repo", np.random.default_rng(0)
    sizes = [LARGE, 3 * PAGE, 5 * MIB + 40, 1, LARGE - PAGE, 700_000, 2 * MIB + 8]
    with Repository.init(root) as repo:
        for version in range(2):
            model = {f"t{i}": rng.bytes(size) for i, size in enumerate(sizes)}
            arrays = {name: np.frombuffer(data, np.uint8) for name, data in model.items()}
            arrays["zeros"] = np.zeros(3 * MIB, np.uint8)
            save_file(arrays, root / "model.safetensors", metadata={"odd": "." * version})
            repo.commit([root / "model.safetensors"], files=FileOptions(cwd=root))
    return root


def test_every_byte_comes_back(root: Path, disk: Disk, tmp_path: Path) -> None:
    expected = (root / "model.safetensors").read_bytes()
    with Repository.open(root) as repo:
        repo.checkout("HEAD", to=tmp_path / "a.safetensors")
        assert disk.direct > 7 * MIB
        repo.checkout("HEAD", to=tmp_path / "b", atomic_dir=True)
        repo.checkout("HEAD", force=True, to=root)
    for path in (tmp_path / "a.safetensors", tmp_path / "b/model.safetensors"):
        assert path.read_bytes() == expected
        assert os.stat(path).st_blocks * 512 < len(expected) - 2 * MIB, "zeros stay holes"
    assert (root / "model.safetensors").read_bytes() == expected


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, "short"])
def test_a_failing_call_leaves_the_old_file_or_the_new_one(
    root: Path, disk: Disk, tmp_path: Path, error: int
) -> None:
    out, expected = tmp_path / "out/a.safetensors", (root / "model.safetensors").read_bytes()
    out.parent.mkdir()
    for n in range(1, 300):
        out.write_bytes(OLD)
        fresh_process()
        fs, disk.direct = FailingFS(fail_at=n, error=error, within=out.parent), 0
        with Repository.open(root, fs=fs) as repo:
            try:
                repo.checkout("HEAD", to=out, force=True)
            except MvcError:
                assert out.read_bytes() in (OLD, expected)
            else:
                assert out.read_bytes() == expected
                assert disk.direct
        left = [path for path in out.parent.iterdir() if path != out]
        assert sum(path.stat().st_size for path in left) < MIB, "a plan at most"
        if not fs.failures:
            break
    assert n > 8


def test_a_crash_leaves_the_old_file_or_the_new_one(root: Path, disk: Disk, tmp_path: Path) -> None:
    place, expected = tmp_path / "out", (root / "model.safetensors").read_bytes()
    place.mkdir()
    (place / "a.safetensors").write_bytes(OLD)
    fs, rng, seen = CrashFS(place), Random(0), set[bytes]()
    with Repository.open(root, fs=fs) as repo:
        repo.checkout("HEAD", to=place / "a.safetensors", force=True)
    assert disk.direct
    for point in range(fs.crash_points() + 1):
        fs.image(point, rng, image := tmp_path / f"image{point}")
        seen.add((image / "a.safetensors").read_bytes())
    assert seen == {OLD, expected}


def test_damage_that_shows_after_the_last_piece_replaces_nothing(
    root: Path, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.safetensors").write_bytes(OLD)
    wrong = type("Wrong", (BlobHasher,), {"done": lambda _: b"another"})
    monkeypatch.setattr("mvc.repo.content.contents.BlobHasher", wrong)
    with Repository.open(root) as repo, pytest.raises(DamagedData, match="its hash"):
        repo.checkout("HEAD", to=tmp_path / "a.safetensors", force=True)
    assert (tmp_path / "a.safetensors").read_bytes() == OLD
    assert disk.direct


def test_damage_that_only_the_hash_shows_is_found_and_gone_around(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the first attempt is left, neither in large contents nor in holes."""
    real, damaged = Recovery.piece, list[int]()

    def piece(*line: Any, check: bool = True, **options: Any) -> None:
        real(*line, check=check, **options)
        if not check:
            damaged.append(line[2])
            line[3][:] = b"x" * len(line[3])

    monkeypatch.setattr(Recovery, "piece", piece)
    with Repository.open(root) as repo:
        repo.checkout("HEAD", to=tmp_path / "a.safetensors")
    assert damaged
    written, expected = tmp_path / "a.safetensors", root / "model.safetensors"
    assert written.read_bytes() == expected.read_bytes()
    assert os.stat(written).st_blocks * 512 < os.stat(expected).st_size - 2 * MIB
