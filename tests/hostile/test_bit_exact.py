"""T11: what was put in comes out, byte for byte and under the same id, for every dtype."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from mvc.adapters.files.safetensors import NAMES
from mvc.api.repository import Repository
from mvc.model.hashing import blob_id
from mvc.model.tensor import DTYPES, TensorSpec
from tests.counters import count
from tests.seeds import draw

SPECIAL = {
    1: [0x00, 0x7F, 0x80, 0xFF, 0x7E],
    2: [0x0001, 0x8000, 0x7C00, 0x7C01, 0xFE00, 0x7F80, 0x7F81, 0xFFC1, 0xFFFF],
    4: [1, 0x80000000, 0x7F800000, 0x7F800001, 0xFFC00001, 0x7FFFFFFF, 0x007FFFFF, 0xFFFFFFFF],
    8: [1, 1 << 63, 0x7FF << 52, (0x7FF << 52) | 1, (1 << 64) - 1, (1 << 52) - 1],
}
"""Subnormals, -0.0, infinities, quiet and signalling NaNs with payloads."""

FORMATS = [name for name in NAMES if name not in {"raw"}]
SHAPES: list[tuple[int, ...]] = [
    (),
    (0,),
    (3, 0, 2),
    (1,),
    (7,),
    (3, 5),
    (2, 3, 4),
    (1, 1, 1, 33),
    (257,),
]


def bits(rng: random.Random, dtype: str, elements: int) -> bytes:
    """Any bits at all, a third of them special."""
    kind = DTYPES[dtype]
    if dtype == "bool":
        return bytes(rng.randrange(2) for _ in range(elements))
    if not elements:
        return b""
    data = bytearray(rng.randbytes(elements * kind.itemsize))
    for _ in range(max(1, elements // 3)):
        at = rng.randrange(len(data) // kind.width) * kind.width
        data[at : at + kind.width] = rng.choice(SPECIAL[kind.width]).to_bytes(kind.width, "little")
    return bytes(data)


def moved(rng: random.Random, dtype: str, data: bytes) -> bytes:
    """The next version: some elements changed, some bytes turned over."""
    if dtype == "bool" or not data:
        return data
    out = bytearray(data)
    for _ in range(rng.randrange(1, 1 + max(1, len(out) // 8))):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def tensor(dtype: str, shape: tuple[int, ...], data: bytes) -> torch.Tensor:
    flat = (
        torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if data
        else torch.empty(0, dtype=torch.uint8)
    )
    return flat.view(getattr(torch, dtype)).reshape(shape)


def content(value: torch.Tensor) -> bytes:
    flat = value.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def known(dtype: str) -> bool:
    return hasattr(torch, dtype) and not dtype.startswith("q")


@pytest.mark.parametrize("cases", [1000, pytest.param(20_000, marks=pytest.mark.long)])
def test_many_cases(tmp_path: Path, cases: int) -> None:
    """Two versions of each case, so that full records and deltas are decoded alike."""
    rng = draw("bit exact")
    dtypes = [name for name in DTYPES if known(name)]
    assert len(dtypes) >= 17
    done, batch = 0, 250
    while done < cases:
        plan: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
        for i in range(batch):
            dtype = dtypes[(done + i) % len(dtypes)]
            shape = rng.choice(SHAPES) if i % 3 else (rng.randrange(2000),)
            if dtype == "float4_e2m1fn_x2":
                shape = shape or (1,)  # two elements share a byte: a scalar is refused
            plan[f"t{i}"] = (dtype, shape, bits(rng, dtype, int(np.prod(shape))))
        later = {k: (d, s, moved(rng, d, b)) for k, (d, s, b) in plan.items()}
        pipeline = rng.choice(["lossless", "vsol", "none", "xor | elide | planes | zstd:3"])
        with Repository.init(tmp_path / str(done)) as repo:
            ids = []
            for version in (plan, later):
                state = {k: tensor(*v) for k, v in version.items()}
                ids.append(repo.commit(state, pipeline=pipeline).id)
            for id_, version in zip(ids, (plan, later), strict=True):
                found = repo.checkout(id_)
                tensors = {t.key: t for t in repo.manifest(id_).entries[0].tensors}
                for key, (dtype, shape, data) in version.items():
                    assert content(found[key]) == data, f"{dtype} {shape}"
                    assert tuple(found[key].shape) == shape and found[key].dtype == getattr(
                        torch, dtype
                    )
                    assert tensors[key].id == blob_id(TensorSpec(dtype, shape), memoryview(data))
        done += batch
    count("bit-exact round trips", cases=done, dtypes=len(dtypes), wrong=0)


def test_every_dtype_that_a_file_can_name(repo: Repository) -> None:
    """Also those that this torch has no name for: bytes of a file need none."""
    import json
    import struct

    rng = draw("dtypes")
    for version in range(2):
        header, data = {}, bytearray()
        for dtype, code in NAMES.items():
            part = bits(rng, dtype, 6)
            shape = [12] if dtype == "float4_e2m1fn_x2" else [2, 3]
            header[dtype] = {
                "dtype": code,
                "shape": shape,
                "data_offsets": [len(data), len(data) + len(part)],
            }
            data += part
        text = json.dumps(header).encode()
        file = repo.root / "all.safetensors"
        file.write_bytes(struct.pack("<Q", len(text)) + text + data)
        id_ = repo.commit([file]).id
        assert {t.spec.dtype for t in repo.manifest().entries[0].tensors} == set(NAMES)
        repo.checkout(id_, to=repo.root / f"out{version}.bin")
        assert (repo.root / f"out{version}.bin").read_bytes() == file.read_bytes()


@pytest.mark.long
def test_a_layer_beyond_4_GiB(tmp_path: Path) -> None:
    """A sparse file: zeros but for some words, on both sides of the 32-bit borders."""
    import json
    import struct

    size = (4 << 30) + 4 * 12345
    header = json.dumps(
        {"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}
    ).encode()
    start = 8 + len(header)
    places = [0, (1 << 31) - 4, 1 << 31, (1 << 32) - 4, 1 << 32, size - 4]
    file, out = tmp_path / "large.safetensors", tmp_path / "out.bin"
    with file.open("wb") as made:
        made.write(struct.pack("<Q", len(header)) + header)
        made.truncate(start + size)
    with Repository.init(tmp_path) as repo:
        for version in (1, 2):
            with file.open("r+b") as made:
                for i, place in enumerate(places):
                    made.seek(start + place)
                    made.write(struct.pack("<I", 0x7FC00000 + 16 * version + i))
            id_ = repo.commit([file]).id
            repo.checkout(id_, to=out, force=True)
            assert os.path.getsize(out) == start + size
            with file.open("rb") as a, out.open("rb") as b:
                while block := a.read(16 << 20):
                    assert b.read(16 << 20) == block
        assert repo.storage.fsck().problems == ()
    count("bit-exact round trips", cases=2, wrong=0)
