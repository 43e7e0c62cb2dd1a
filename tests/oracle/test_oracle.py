"""What mvc writes, read by somebody who has only docs/format.md: the same bytes everywhere."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import mvc.store.writing.full_or_delta
from mvc.api.repository import Repository
from mvc.maintenance.repack.super_steps import join
from mvc.pipelines.pipeline import Pipeline
from tests.adapters.gguf_files import gguf
from tests.adapters.onnx_files import model, outside, tensor
from tests.oracle import reader, steps
from tests.oracle.holding import (
    Files,
    codings_of,
    commit_files,
    commit_states,
    held_against,
    into,
    rng,
    series,
)
from tests.store.sizes import shrink

# -- series --------------------------------------------------------------------------------


@pytest.mark.parametrize("pipeline", ["lossless", "vsol", "none"])
def test_long_series_has_reset_points_reached_from_both_sides(tmp_path: Path, pipeline: str):
    oracle = commit_states(tmp_path, *series(66), pipeline=pipeline)
    if pipeline != "none":
        both = [found for found in into(oracle).values() if len({m.base for _, m in found}) > 1]
        assert both, "a reset point keeps its delta"


@pytest.mark.parametrize(
    "pipeline",
    [
        "xor | elide | planes | zstd:3",
        "sub | planes",
        "sub | zigzag | zstd:1",
        "xor | raw",
        "sub | elide",
        "sub | zigzag | planes:all | zstd:1",
        "sub | planes:all",
        "sub | zigzag | planes:concat | lzma",
        "xor | elide | planes | bz2:1",
        "xor | planes:all | brotli:3",
        "sub | zlib:9",
        "xor | sparse | zstd:1",
        "xor | sparse:none",
        "sub | zigzag | sparse:values,diff | zstd:huff",
        "sub | sparse:layers,indices | lzma:1",
        "xor | sparse:values,indices",
        "sub | zigzag | blocks:18 | zstd:huff",
        "xor | blocks:1000 | bz2:1",
        "sub | blocks:7",
        "steps | gaps",
        "steps | gaps | lzma:1",
    ],
)
def test_every_shape_of_pipeline(tmp_path: Path, pipeline: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        mvc.store.writing.full_or_delta, "WORTH", 2.0
    )  # a delta even where it saves nothing
    oracle = commit_states(tmp_path, *series(3), pipeline=pipeline)
    assert Pipeline.parse(pipeline).text in codings_of(oracle)


@pytest.mark.parametrize(
    "pipeline", ["x=2,huffman", "x=3,tensor", "budget=0.2", "uniform,budget=0.4"]
)
def test_approximate_steps_alone_and_joined(tmp_path: Path, pipeline: str):
    states = series(5)
    for state in states:
        w = np.asarray(state["w"])
        state |= {"half": w.astype(np.float16), "wide": w.astype(np.float64)}
        state |= {"brain": torch.from_numpy(w).bfloat16()}
        state |= {"optimizer": {"state": {0: {"exp_avg_sq": torch.from_numpy(w * w)}}}}
    with Repository.init(tmp_path) as repo:
        for state in states:
            repo.commit(state, pipeline=f"lc:{pipeline}")
    oracle = held_against(tmp_path)
    kinds = {
        member[0]
        for found in into(oracle).values()
        for record, m in found
        if steps.adds(m.coding)
        for member in record.decoded
    }
    assert kinds == {0, 1, 2, 3, 4}
    with Repository.open(tmp_path) as repo:
        joined = join(repo.handle.store, repo.handle.config, 4)
    (tmp_path / "out").rename(tmp_path / "before")
    oracle = held_against(tmp_path)
    assert joined or pipeline != "x=2,huffman"
    assert any(c.startswith("joint:4 | ") for c in codings_of(oracle)) == joined


def test_idle_rows_make_sparse_streams(tmp_path: Path):
    states = series(2, (600, 700))
    changed = np.array(states[0]["w"])
    changed[rng(3).random(changed.shape) < 0.003] += np.float32(0.5)
    commit_states(tmp_path, states[0], states[0] | {"w": changed})


@pytest.mark.parametrize("compressor", ["zstd:huff", "lzma:2"])
def test_few_changes_in_many_words(tmp_path: Path, compressor: str):
    states = series(3, (600, 700))
    for step, state in enumerate(states[1:]):
        w = np.array(states[step]["w"])
        w[rng(step).random(w.shape) < 0.02] += np.float32(0.5)
        state["w"] = w
    for coding in ("sub | zigzag | sparse", "sub | sparse:diff", "xor | planes:concat"):
        folder = tmp_path / coding.partition("| ")[2].replace(":", " ")
        oracle = commit_states(folder, *states, pipeline=f"{coding} | {compressor}")
        assert f"{coding} | {compressor}" in codings_of(oracle)


def test_constant_words_odd_lengths_and_every_dtype(tmp_path: Path):
    import torch

    names = [n for n in reader.SIZES if hasattr(torch, n) and not n.startswith(("q", "float4"))]
    first, second = {}, {}
    for name in names:
        size = reader.SIZES[name]
        bits = rng(len(name)).integers(0, 2, 300 * size, dtype=np.uint8)
        first[name] = torch.from_numpy(bits.copy()).view(getattr(torch, name))
        bits[:: 7 * size] ^= 1
        second[name] = torch.from_numpy(bits).view(getattr(torch, name))
    first["same"], second["same"] = torch.zeros(5000), torch.ones(5000)
    oracle = commit_states(tmp_path, first, second)
    (tensors,) = oracle.tensors(list(oracle.commits)[1]).values()
    assert {t[0] for t in tensors.values()} == {*names}
    assert all(
        tensors[n][2] == second[n].view(torch.uint8).numpy().tobytes() for n in [*names, "same"]
    )


# -- sizes and bridges ---------------------------------------------------------------------


@pytest.mark.parametrize("pipeline", ["lossless", "vsol"])
def test_resized_embedding(tmp_path: Path, pipeline: str):
    table = rng().standard_normal((300, 64)).astype(np.float32)
    sizes = (table, np.concatenate([table, table[:30] * 2]), table[:200], table[:0], table)
    oracle = commit_states(
        tmp_path, *({"e": np.ascontiguousarray(t)} for t in sizes), pipeline=pipeline
    )
    assert any(c.startswith("resize | ") for c in codings_of(oracle))


def test_copy_in_bfloat16_beside_its_master(tmp_path: Path):
    import torch

    master = torch.from_numpy(rng().standard_normal((200, 64)).astype(np.float32))
    master[0, :4] = torch.tensor([float("nan"), float("inf"), 1e-40, -0.0])
    half = {"w": master.to(torch.bfloat16)}
    oracle = commit_states(tmp_path, {"w": master}, half, {"w": master + 1}, half)
    assert any(c.startswith("cast:float32>bfloat16") for c in codings_of(oracle))
    (tensors,) = oracle.tensors(list(oracle.commits)[1]).values()
    assert tensors["w"][2] == half["w"].view(torch.uint8).numpy().tobytes()


def test_empty_and_scalar_tensors_and_nested_state(tmp_path: Path):
    state: dict[str, object] = {
        "scalar": np.float64(2.5),
        "zero": np.zeros((), np.int64),
        "empty": np.zeros((0, 3), np.float32),
        "optimizer": {"state": {0: {"step": np.array(1.0)}}, "groups": [{"lr": 1e-3}]},
    }
    oracle = commit_states(tmp_path, state, {"empty": np.zeros((0, 3), np.float32)}, {})
    first = next(iter(oracle.commits))
    (tensors,) = oracle.tensors(first).values()
    assert tensors["optimizer.state.0.step"] == ("float64", (), np.array(1.0).tobytes())
    assert tensors["empty"] == ("float32", (0, 3), b"")


def test_blobs_of_several_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    piece = 1 << 17
    shrink(monkeypatch, PIECE=piece, CHUNK=1 << 15)
    states = series(4, (300, 321))
    sparse = np.zeros((500, 321), np.float32)
    sparse[:300] = np.asarray(states[-1]["w"])
    sparse[300::3] = 1.5
    short = np.asarray(states[0]["w"])[:150].copy()
    oracle = commit_states(tmp_path / "states", *states, {"w": sparse}, {"w": short})
    assert max(start for _, start in into(oracle)) >= 2 * piece
    data = rng().bytes(5 * piece // 2)
    commit_files(tmp_path / "files", *({"f": d} for d in (data, data[:piece], data + data[:99])))


@pytest.mark.parametrize("pipeline", ["lossless", "vsol"])
def test_a_blob_beyond_the_true_piece(tmp_path: Path, pipeline: str):
    weight = np.zeros((9 << 20,), np.float32)
    weight[:: 1 << 10] = 1
    changed = weight.copy()
    changed[-1] = 2
    oracle = commit_states(tmp_path, {"w": weight}, {"w": changed}, pipeline=pipeline)
    assert max(start for _, start in into(oracle)) == 32 << 20


# -- files ---------------------------------------------------------------------------------


def test_opaque_files_of_changing_length(tmp_path: Path):
    base = rng().bytes(300_000)
    texts = [b"%d: a line of a log\n" % i for i in range(4000)]
    versions = [
        {"f.dat": base, "log": b"".join(texts[:3000])},
        {"f.dat": base[:1000] + b"inserted" + base[1000:], "log": b"".join(texts)},
        {"f.dat": base[100:150_000] + b"x" * 777, "log": b"".join(texts[1000:2000])},
        {"f.dat": b"", "log": b"x"},
        {"f.dat": b"abc", "log": b""},
    ]
    commit_files(tmp_path, *versions)


def test_renames_and_deletions(tmp_path: Path):
    a, b = rng(1).bytes(5000), rng(2).bytes(7000)
    ids = commit_files(
        tmp_path,
        {"a.bin": a, "d/b.bin": b},
        {"renamed.bin": a, "d/b.bin": b + b"more"},
        {"renamed.bin": a},
        {"d/é ü.bin": b},
    )
    oracle = reader.Repository(tmp_path / ".mvc")
    assert list(oracle.checkout(ids[2])) == ["renamed.bin"]


def _torch_files(folder: Path) -> list[Files]:
    import torch

    versions = []
    storage = torch.from_numpy(rng().standard_normal(4000).astype(np.float32))
    for step in range(3):
        storage = storage * 1.0001
        state = {
            "model": {"w": storage[:3000].reshape(50, 60).clone(), "half": storage[:9].half()},
            "view": storage[100:1100].reshape(20, 50).t(),
            "other": storage[50:60],
            "tied": (tied := storage[:32].clone()),
            "tied too": tied,
            "step": step,
            "empty": torch.zeros(0, 5),
            "scalar": torch.tensor(step),
        }
        torch.save(state, folder / "made.pt")
        versions.append({"ckpt.pt": (folder / "made.pt").read_bytes()})
    return versions


def _safetensors_files(folder: Path) -> list[Files]:
    from safetensors.numpy import save

    random_ = rng()
    weight = random_.standard_normal((50, 30)).astype(np.float32)
    made = [
        {"w": weight, "e": np.zeros((0,), np.float32), "s": np.array(3)},
        {"w": weight + np.float32(1e-5), "extra": np.arange(9), "s": np.array(4)},
        {"module.w": weight + np.float32(2e-5), "s": np.array(4)},
    ]
    return [{"a/model.safetensors": save(m, {"format": "np"})} for m in made]


def _npz_files(folder: Path) -> list[Files]:
    random_ = rng()
    weight = random_.standard_normal((50, 30)).astype(np.float32)
    versions = []
    for step in range(3):
        np.savez(folder / "made.npz", w=weight + np.float32(step * 1e-5), b=np.arange(step + 1))
        np.save(folder / "made.npy", weight * np.float32(1 + step * 1e-6))
        versions.append(
            {n: (folder / n.replace("m", "made")).read_bytes() for n in ("m.npz", "m.npy")}
        )
    with zipfile.ZipFile(folder / "z.npz", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.write(folder / "made.npy", "w.npy")
    return [*versions, {"m.npz": (folder / "z.npz").read_bytes()}]


def _gguf_files(folder: Path) -> list[Files]:
    del folder
    rows = rng().standard_normal((50, 64)).astype(np.float32)
    versions = []
    for step in range(3):
        rows = rows + np.float32(1e-5)
        blocks = rng(step // 2).bytes(50 * 36)
        tensors = [("w", "F32", rows.shape, rows.tobytes()), ("q", "Q4_0", rows.shape, blocks)]
        versions.append({"m.gguf": gguf(tensors)})
    return versions


def _onnx_files(folder: Path) -> list[Files]:
    del folder
    rows = rng().standard_normal((50, 64)).astype(np.float32)
    far = outside("far", rows, location="w.data", offset=64, length=rows.nbytes)
    return [
        {
            "m.onnx": model(
                tensor("w", rows * np.float32(1 + step * 1e-6)), tensor("e", rows), far
            ),
            "w.data": bytes(64) + (rows + np.float32(step)).tobytes(),
        }
        for step in range(3)
    ]


def _hdf5_files(folder: Path) -> list[Files]:
    h5py = pytest.importorskip("h5py")
    weight = rng().standard_normal((50, 30)).astype(np.float32)
    versions = []
    for step in range(3):
        with h5py.File(folder / "made.h5", "w") as file:
            file["layers/0"], file["layers/1"] = weight + np.float32(step * 1e-5), np.arange(step)
            file.create_dataset("chunks", data=weight, chunks=(20, 30))
        with zipfile.ZipFile(folder / "made.keras", "w") as packed:
            packed.writestr("config.json", "{}")
            packed.write(folder / "made.h5", "model.weights.h5")
        versions.append(
            {f"m.{end}": (folder / f"made.{end}").read_bytes() for end in ("h5", "keras")}
        )
    return versions


_MAKERS = [
    _torch_files, _safetensors_files, _npz_files, _gguf_files, _onnx_files, _hdf5_files
]  # fmt: skip


@pytest.mark.parametrize("make", _MAKERS)
def test_model_files(tmp_path: Path, make: Callable[[Path], list[Files]]):
    versions = make(tmp_path)
    root = tmp_path / "repo"
    ids = commit_files(root, *versions)
    oracle = reader.Repository(root / ".mvc")
    assert any(e.tensors for e in oracle.manifest(ids[0]))
    if make is _torch_files:
        tensors = oracle.tensors(ids[0])["ckpt.pt"]
        assert tensors["view"][1] == (50, 20)
        assert tensors["tied"] == tensors["tied too"]
