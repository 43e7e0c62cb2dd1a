"""Arrays of one element or of none whose strides say nothing about where their bytes lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mvc.api.repository import Repository

# Shape and strides in elements. Every view begins at the fourth of twelve elements.
VIEWS = [
    ((1,), (0,)),
    ((1,), (2,)),
    ((1,), (99,)),
    ((1, 1), (2, 0)),
    ((1, 1, 1), (7, 3, 5)),
    ((4, 1), (1, 9)),
    ((1, 4), (9, 1)),
    ((1, 4), (9, 2)),
    ((4, 1), (2, 9)),
    ((0,), (3,)),
    ((0, 3), (7, 3)),
    ((3, 0), (0, 5)),
    ((3,), (0,)),
    ((), ()),
]
TORCH = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
PIPELINES = ("lossless", "vsol")


def views_of_torch(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    numbers = torch.arange(12).to(dtype)
    made = {f"{shape}{by}": numbers.as_strided(shape, by, 3) for shape, by in VIEWS}
    made["step"] = numbers[:2][::2]
    made["column"] = numbers[:2].reshape(1, 2)[:, 0]
    if dtype.is_floating_point:
        made["parameter"] = torch.nn.Parameter(made["step"])
    if dtype.is_complex:
        made["conjugate"] = numbers[1:3][::2].conj()
        made["negative"] = numbers[1:3][::2].conj().imag
    return made


def views_of_numpy(dtype: str) -> dict[str, np.ndarray]:
    numbers = np.arange(12).astype(dtype)
    size = numbers.itemsize
    made = {
        f"{shape}{by}{sign:+}": np.lib.stride_tricks.as_strided(
            numbers[3:], shape, tuple(sign * size * each for each in by)
        )
        for shape, by in VIEWS
        for sign in (1, -1 if max(shape, default=1) <= 1 else 1)
    }
    made["bytes apart"] = np.lib.stride_tricks.as_strided(numbers, (1, 1), (3, 5))
    made["backwards"] = numbers[:2][::-2]
    return made


def plain(tensor: torch.Tensor) -> bytes:
    """The bytes in order, by way of a copy that torch itself makes."""
    out = torch.empty(tensor.shape, dtype=tensor.dtype)
    out.copy_(tensor.detach())
    return bytes(out.untyped_storage().tolist())


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("dtype", TORCH, ids=str)
def test_views_of_torch_come_back(tmp_path: Path, dtype: torch.dtype, pipeline: str) -> None:
    views = views_of_torch(dtype)
    with Repository.init(tmp_path) as repo:
        back = repo.checkout(repo.commit(views, pipeline=pipeline).id)
        assert not repo.storage.fsck(full=True).problems
    for key, view in views.items():
        assert back[key].shape == view.shape and back[key].dtype == view.dtype
        assert plain(back[key]) == plain(view), key


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i8", "u1", "?", "c8"])
def test_views_of_numpy_come_back(tmp_path: Path, dtype: str) -> None:
    views = views_of_numpy(dtype)
    with Repository.init(tmp_path) as repo:
        back = repo.checkout(repo.commit(views).id)
    for key, view in views.items():
        assert back[key].shape == view.shape and back[key].dtype == view.dtype
        assert back[key].tobytes() == view.tobytes(), key


def test_production_weights_are_made_of_them(tmp_path: Path) -> None:
    views = {k: v for k, v in views_of_torch(torch.float32).items() if k != "parameter"}
    with Repository.init(tmp_path) as repo:
        repo.commit({key: view + 1 for key, view in views.items()})
        done = repo.commit(views, pipeline="topk:0.5 | xor | planes | zstd:1")
        back = repo.checkout(done.id)
        assert all(plain(back[key]) == plain(done.state[key]) for key in views)


def test_a_file_of_them_comes_back(tmp_path: Path) -> None:
    views = views_of_torch(torch.float32)
    with Repository.init(tmp_path / "models") as repo:
        place = repo.root / "model.pt"
        torch.save(views, place)
        bytes_before = place.read_bytes()
        done = repo.commit(place)
        repo.checkout(done.id, to=tmp_path / "model.pt")
        assert (tmp_path / "model.pt").read_bytes() == bytes_before
        back = repo.checkout(done.id)
    assert all(plain(back[key]) == plain(view) for key, view in views.items())
