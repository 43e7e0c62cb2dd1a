"""Tensors without elements: as cheap as nothing, and never in anybody's way."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import mvc
from mvc.adapters.python.arrays import has_torch
from mvc.api.repository import Repository
from mvc.errors import UnsupportedTensor
from mvc.repo.commit.request import FileOptions

PIPELINES = ("vsol", "planes:all", "sub | zigzag | sparse | zstd:1", "lossless")
# What the empty tensor is in one version after the other; the last version holds nothing else.
EMPTY = [
    np.zeros((0,), np.float32),
    np.zeros((0, 3), np.float32),
    np.zeros((3, 0), np.float64),
    np.zeros((3, 0), np.uint8),
]


def state(i: int) -> dict[str, np.ndarray]:
    weights = {f"w{n}": np.arange(5 + n, dtype=np.float32) + i for n in range(3)}
    return {"e": EMPTY[i]} | (weights if i + 1 < len(EMPTY) else {})


@pytest.fixture(params=PIPELINES)
def repo(tmp_path: Path, request: pytest.FixtureRequest) -> Repository:
    repo = Repository.init(tmp_path / "models")
    for i in range(len(EMPTY)):
        repo.commit(state(i), pipeline=request.param)
    return repo


def check(repo: Repository) -> None:
    """Every version comes back by each way there is, and nothing is wrong with it."""
    assert not repo.storage.fsck(full=True).problems
    for i, (_, found) in enumerate(repo.iter_versions()):
        by_id = repo.checkout(f"HEAD~{len(EMPTY) - 1 - i}")
        for back in (found, by_id):
            assert back.keys() == state(i).keys()
            for key, wanted in state(i).items():
                assert back[key].dtype == wanted.dtype and np.array_equal(back[key], wanted)


def test_every_version_is_checked_and_comes_back(repo: Repository) -> None:
    check(repo)


@pytest.mark.parametrize(
    "act",
    [
        lambda repo: repo.storage.repair(full=True),
        lambda repo: repo.storage.repack(interval=1),
        lambda repo: repo.storage.repack(interval=9),
        lambda repo: (repo.commit({"e": EMPTY[0]}), repo.undo(), repo.storage.gc(grace="0s")),
    ],
    ids=["repair", "repack-full", "repack-deltas", "gc"],
)
def test_maintenance_keeps_them(repo: Repository, act: Callable[[Repository], object]) -> None:
    act(repo)
    check(repo)


def test_they_differ_by_type_and_shape(repo: Repository) -> None:
    for old, new in ((3, 2), (2, 1), (1, 0)):
        (file,) = repo.diff(f"HEAD~{old}", f"HEAD~{new}").files
        (row,) = [t for t in file.tensors if t.key == "e"]
        assert row.kind == "resized" or row.old_spec != row.new_spec
    (file,) = repo.diff("HEAD", "HEAD").files
    assert file.kind == "unchanged"


def test_files_with_them_are_written_and_found_again(repo: Repository, tmp_path: Path) -> None:
    for i in range(len(EMPTY)):
        place = tmp_path / f"{i}.safetensors"
        repo.checkout(f"HEAD~{i}", to=place)
        assert repo.identify(place)[0].commit == repo.find(f"HEAD~{i}")


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_they_are_healed_from_another_repository(
    repo: Repository, tmp_path: Path, share: float
) -> None:
    repo.close()
    shutil.copytree(repo.root, tmp_path / "other")
    (pack,) = (repo.root / ".mvc/packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[int(share * len(data))] ^= 0xFF
    pack.write_bytes(data)
    with Repository.open(repo.root) as damaged:
        damaged.storage.repair(full=True, other=tmp_path / "other")
        check(damaged)


# -- shapes whose strides no library can compute -------------------------------------------

HUGE = (0, 1 << 62, 1 << 62)
BEYOND = (1 << 62, 1 << 62, 0)  # torch has no such tensor either


def safetensors_file(shape: Sequence[int]) -> bytes:
    tensors = {
        "w": {"dtype": "F32", "shape": list(shape), "data_offsets": [0, 0]},
        "v": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    }
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + np.arange(2, dtype="<f4").tobytes()


def npy_file(shape: Sequence[int]) -> bytes:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {tuple(shape)}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


@pytest.mark.parametrize("pipeline", ["lossless", "lc:x=2", "topk:0.5 | xor | raw", "vsol"])
def test_a_huge_shape_in_a_state(tmp_path: Path, pipeline: str) -> None:
    state = {"w": torch.empty(0).view(HUGE), "v": torch.ones(9)}
    with Repository.init(tmp_path) as repo:
        for _ in range(3):
            done = repo.commit(state, pipeline=pipeline)
            state["v"] = state["v"] + 1
        for found in (repo.checkout(done.id), done.state or repo.checkout("HEAD")):
            assert found["w"].shape == HUGE and found["w"].dtype == torch.float32
        assert not repo.storage.fsck(full=True).problems
        assert repo.diff("HEAD~1", "HEAD").files


@pytest.mark.parametrize("shape", [HUGE, BEYOND])
@pytest.mark.parametrize("name", ["m.safetensors", "m.npy"])
def test_a_huge_shape_in_a_file(tmp_path: Path, name: str, shape: Sequence[int]) -> None:
    """The file comes back byte for byte; the tensor where a library can hold it."""
    data = (safetensors_file if name == "m.safetensors" else npy_file)(shape)
    (tmp_path / name).write_bytes(data)
    with Repository.init(tmp_path) as repo:
        done = repo.commit([tmp_path / name])
        repo.checkout(done.id, to=tmp_path / "out.bin")
        assert (tmp_path / "out.bin").read_bytes() == data
        if name == "m.safetensors" and shape == HUGE and has_torch():
            assert repo.checkout(done.id)["w"].shape == HUGE
        else:
            with pytest.raises(UnsupportedTensor, match=r"shape \[.*4611686018427387904") as error:
                repo.checkout(done.id)
            assert "mvc checkout" in (error.value.hint or "")
        if name == "m.safetensors":
            (tmp_path / name).write_bytes(data[:-4] + b"\0\0\0\0")
            files = FileOptions(in_place=True)
            made = repo.commit([tmp_path / name], pipeline="topk:0.5 | xor | raw", files=files)
            repo.checkout(made.id, to=tmp_path / "out.bin", force=True)
            assert (tmp_path / "out.bin").read_bytes() == (tmp_path / name).read_bytes()


@pytest.mark.parametrize("pipeline", ["lossless", "lc:x=2", "topk:0.5 | xor | raw"])
@pytest.mark.parametrize("shape", [(0, 3), HUGE])
def test_recorded(tmp_path: Path, pipeline: str, shape: Sequence[int]) -> None:
    model = torch.nn.Linear(9, 9)
    model.register_buffer("empty", torch.empty(0).view(shape))
    with Repository.init(tmp_path) as repo:
        with mvc.Recorder(repo, model, pipeline=pipeline, when_full="block") as recorder:
            for _ in range(3):
                recorder.step()
                with torch.no_grad():
                    model.weight.add_(1)
        assert recorder.report.durable == 3
        for version in repo.log():
            assert repo.checkout(version.id)["empty"].shape == shape
