"""Sparse files: a hole is zeros that nobody reads, encodes anew, or writes."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mvc
from mvc.io.handles import ReadFile
from mvc.limits import MIB, PIECE
from mvc.pipelines.pipeline import Pipeline

SIZE = 3 * PIECE + 5 * MIB + 123


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bytes read of any file, and chunks encoded."""
    counts = {"read": 0, "encoded": 0}
    read, encode = os.preadv, Pipeline.encode_parts

    def reading(file: int, views: list[memoryview], offset: int) -> int:
        done = read(file, views, offset)
        counts["read"] += done
        return done

    def encoding(*arguments: Any) -> bytes:
        counts["encoded"] += 1
        return encode(*arguments)

    monkeypatch.setattr(os, "preadv", reading)
    monkeypatch.setattr(Pipeline, "encode_parts", encoding)
    return counts


@pytest.fixture(autouse=True)
def trusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tests may run on a file system whose holes mvc does not believe, or that makes none."""
    monkeypatch.setattr("mvc.io.mounts.type_of", lambda path: "ext4")
    probe = tmp_path / "probe"
    with probe.open("wb") as file:
        file.truncate(4 * MIB)
        sparse = os.fstat(file.fileno()).st_blocks == 0
        if not sparse or not hasattr(os, "SEEK_DATA"):
            pytest.skip("no holes here")
    probe.unlink()


def sparse(path: Path, size: int = SIZE, data: dict[int, bytes] | None = None) -> Path:
    with path.open("wb") as file:
        for offset, part in (data or {}).items():
            file.seek(offset)
            file.write(part)
        file.truncate(size)
    return path


def sparse_safetensors(path: Path, tensors: int, elements: int) -> Path:
    """A model whose tensors are holes."""
    step = 4 * elements
    parts = [
        {"dtype": "F32", "shape": [elements], "data_offsets": [i * step, (i + 1) * step]}
        for i in range(tensors)
    ]
    header = json.dumps({f"t{i}": part for i, part in enumerate(parts)}).encode()
    head = len(header).to_bytes(8, "little") + header
    return sparse(path, len(head) + tensors * step, {0: head})


def same_file(one: Path, other: Path) -> bool:
    with one.open("rb") as a, other.open("rb") as b:
        while part := a.read(MIB):
            if part != b.read(MIB):
                return False
        return not b.read(1)


def allocated(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_a_hole_is_neither_read_nor_encoded_again(tmp_path: Path, counted: dict[str, int]) -> None:
    path = sparse(tmp_path / "m.bin")
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit([path], files=mvc.FileOptions(cwd=tmp_path))
        # A few estimates; each length of a chunk once, not once a chunk.
        assert counted["read"] < MIB and counted["encoded"] < 40
        counted.update(read=0, encoded=0)
        assert [c.kind for c in repo.status().changes] == ["unchanged"]
        assert counted["read"] < MIB
        repo.checkout("HEAD", to=tmp_path / "out.bin")
        assert repo.storage.fsck(full=True).sound
    assert same_file(path, tmp_path / "out.bin")
    assert allocated(tmp_path / "out.bin") < MIB


def test_data_between_holes(repo: mvc.Repository, counted: dict[str, int]) -> None:
    noise = np.random.default_rng(0).bytes(70_000)
    places = {5 * MIB + 17: noise, 2 * PIECE - 1000: noise, SIZE - 100: noise[:100]}
    path = sparse(repo.root / "m.bin", data=places)
    repo.commit([path], files=mvc.FileOptions(cwd=repo.root))
    assert counted["read"] < 4 * MIB  # two readings of what is there
    repo.checkout("HEAD", to=repo.root / "out.bin")
    assert same_file(path, repo.root / "out.bin")
    assert allocated(repo.root / "out.bin") < 8 * MIB
    sparse(path, data={**places, 3 * PIECE: noise})
    repo.commit([path], files=mvc.FileOptions(cwd=repo.root))
    repo.checkout("HEAD", to=repo.root / "out.bin", force=True)
    assert same_file(path, repo.root / "out.bin")
    assert repo.storage.fsck(full=True).sound


def test_tensors_that_are_holes(tmp_path: Path, counted: dict[str, int]) -> None:
    path = sparse_safetensors(tmp_path / "m.safetensors", 12, 2 * MIB)
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit([path], files=mvc.FileOptions(cwd=tmp_path))
        assert counted["read"] < MIB and counted["encoded"] < 40
        repo.checkout("HEAD", to=tmp_path / "out.bin")
        assert len({tensor.id for tensor in repo.manifest().entries[0].tensors}) == 1
    assert same_file(path, tmp_path / "out.bin")


@pytest.mark.parametrize("pipeline", ["lossless", "vsol", "none"])
def test_a_hole_is_the_same_object_as_written_zeros(tmp_path: Path, pipeline: str) -> None:
    (tmp_path / "dense.bin").write_bytes(bytes(PIECE + 2 * MIB))
    sparse(tmp_path / "sparse.bin", PIECE + 2 * MIB)
    stored = []
    for name in ("dense", "sparse"):
        with mvc.Repository.init(tmp_path / name) as repo:
            path = tmp_path / name / "m.bin"
            (tmp_path / f"{name}.bin").replace(path)
            repo.commit([path], pipeline=pipeline, files=mvc.FileOptions(cwd=path.parent))
            stored.append((repo.manifest().id, repo.storage.stats().bytes["full"]))
            assert repo.storage.fsck(full=True).sound
    assert stored[0] == stored[1]


def test_where_nobody_knows_of_holes_all_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = b"\1" * 5000
    path = sparse(tmp_path / "m.bin", 8 * MIB, {3 * MIB: noise})
    wanted = path.read_bytes()

    def refused(descriptor: int, offset: int, whence: int) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def read() -> bytes:
        buffer = bytearray(8 * MIB)
        with ReadFile(path, os.open(path, os.O_RDONLY)) as file:
            assert file.read_into(0, memoryview(buffer)) == len(buffer)
            assert file.is_hole(4 * MIB, 2 * MIB) is believed
        return bytes(buffer)

    believed = True
    assert read() == wanted
    believed = False
    with monkeypatch.context() as patch:
        patch.setattr(os, "lseek", refused)
        assert read() == wanted
    monkeypatch.setattr("mvc.io.mounts.type_of", lambda path: "zfs")
    assert read() == wanted


def test_reading_past_the_end_of_a_sparse_file(tmp_path: Path) -> None:
    path = sparse(tmp_path / "m.bin", 3 * MIB + 5, {MIB: b"x" * MIB})
    buffer = bytearray(b"?" * 4 * MIB)
    with ReadFile(path, os.open(path, os.O_RDONLY)) as file:
        assert file.read_into(0, memoryview(buffer)) == 3 * MIB + 5
        assert buffer[: 3 * MIB + 5] == path.read_bytes()
        assert buffer[3 * MIB + 5 :] == b"?" * (MIB - 5)
        assert file.read_into(4 * MIB, memoryview(buffer)) == 0
        assert not file.is_hole(2 * MIB, 2 * MIB)  # partly behind the end
