"""What a param hash tells apart (traps of seeds.md 4f)."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import DamagedData
from mvc.model.hashing import BlobHasher, blob_id, digest, raw_blob_id
from mvc.model.tensor import DTYPES, TensorSpec


def of(array: np.ndarray, dtype: str | None = None) -> bytes:
    return blob_id(TensorSpec(dtype or str(array.dtype), array.shape), array.tobytes())


def test_dtype_and_shape_are_inside() -> None:
    zeros = [
        of(np.zeros((2, 3), np.float32)),
        of(np.zeros((3, 2), np.float32)),
        of(np.zeros(6, np.float32)),
        of(np.zeros((6, 1), np.float32)),
        of(np.zeros(6, np.int32)),
        of(np.zeros(12, np.float16)),
        of(np.zeros(12, np.uint16), "bfloat16"),
        raw_blob_id(bytes(24)),
    ]
    assert len(set(zeros)) == len(zeros)


def test_empty_ones_differ_too() -> None:
    shapes = [(), (0,), (0, 3), (3, 0), (1,), (1, 1)]
    assert len({of(np.zeros(shape)) for shape in shapes}) == len(shapes)
    assert len({of(np.zeros((0,), np.uint8), name) for name in DTYPES}) == len(DTYPES)


def test_bits_count_not_values() -> None:
    assert of(np.array([0.0])) != of(np.array([-0.0]))
    bits = np.array([0x7FC00000, 0x7FC00001, 0xFFC00000], np.uint32)
    assert len({of(bits[i : i + 1].view(np.float32)) for i in range(3)}) == 3
    nan = bits[:1].view(np.float32)
    assert of(nan) == of(nan.copy())


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_pieces_make_the_whole(parts: list[bytes]) -> None:
    data = b"".join(parts)
    hasher = BlobHasher(TensorSpec("raw", (len(data),)))
    for part in parts:
        hasher.update(part)
    assert hasher.done() == raw_blob_id(data)


def test_many_threads_give_the_same_hash() -> None:
    data = np.random.default_rng(0).bytes(3 << 20)
    spec = TensorSpec("raw", (len(data),))
    assert blob_id(spec, data, parallel=True) == blob_id(spec, data)


def test_parts_and_tags_are_kept_apart() -> None:
    made = [digest(b"t", b"ab", b"c"), digest(b"t", b"a", b"bc"), digest(b"t", b"abc"),
            digest(b"ta", b"b", b"c"), digest(b"t", b"", b"abc"), digest(b"t")]  # fmt: skip
    assert all(a != b for a, b in itertools.combinations(made, 2))


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("float33", (1,)), ("raw", (-1,)), ("raw", (1 << 63,)), ("raw", (1,) * 65),
     ("float64", (1 << 31, 1 << 31))],
)  # fmt: skip
def test_specs_that_cannot_be(dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(DamagedData):
        TensorSpec(dtype, shape)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_hashes_without_the_threads_of_its_parent() -> None:
    source = """
import os, signal
from mvc.model.hashing import raw_blob_id
data = bytes(4 << 20)
id_ = raw_blob_id(data)
if (child := os.fork()) == 0:
    signal.alarm(20)
    os._exit(raw_blob_id(data) != id_)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)
