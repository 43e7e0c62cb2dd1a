import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mvc.limits import PIECE
from mvc.model.tensor import DTYPES
from mvc.repo.diff.distance import Distance, distance_of, to_float64


def of(old: np.ndarray, new: np.ndarray, dtype: str, other: str | None = None) -> Distance:
    a, b = (memoryview(x.tobytes()) for x in (old, new))
    return distance_of(dtype, [a], other or dtype, [b])


@pytest.mark.parametrize(
    "dtype",
    [d for d in DTYPES if d.startswith("float8") or d == "bfloat16"],
)
def test_small_floats_are_torchs(dtype: str) -> None:
    width = DTYPES[dtype].itemsize
    bits = np.arange(1 << (8 * width), dtype=f"<u{width}")
    expected = torch.frombuffer(bytearray(bits.tobytes()), dtype=getattr(torch, dtype))
    given_ = to_float64(memoryview(bits.tobytes()), dtype)
    np.testing.assert_array_equal(given_, expected.to(torch.float32).double().numpy())


def test_packed_fours() -> None:
    got = to_float64(memoryview(bytes([0x10, 0xF7])), "float4_e2m1fn_x2")
    assert got.tolist() == [0.0, 0.5, 6.0, -6.0]


def test_every_dtype_is_measured() -> None:
    for name, row in DTYPES.items():
        zeros = bytes(row.itemsize * 5)
        found = distance_of(name, [memoryview(zeros)], name, [memoryview(zeros)])
        assert found.changed_share == 0.0, name


def test_known_answer() -> None:
    old = np.array([3.0, 4.0, 0.0, 1.0], np.float32)
    new = np.array([3.0, 4.0, 2.0, -1.0], np.float32)
    found = of(old, new, "float32")
    assert found.changed_share == 0.5
    assert found.l2 == pytest.approx(math.sqrt(8))
    assert found.max_abs == 2.0
    assert found.cosine == pytest.approx(24 / math.sqrt(26 * 30))
    assert found.nonfinite == 0


def test_bits_decide_what_changed() -> None:
    old = np.array([0.0, np.nan, np.inf, 1.0, 5.0], np.float32)
    new = np.array([-0.0, np.nan, np.inf, np.nan, 7.0], np.float32)
    found = of(old, new, "float32")
    assert found.changed_share == pytest.approx(3 / 5)  # -0.0, the new NaN, and 5 -> 7
    assert (found.l2, found.max_abs, found.nonfinite) == (2.0, 2.0, 3)
    assert found.cosine == pytest.approx(1.0)
    payload = np.array([0x7FC00000, 0x7FC00001], "<u4")
    assert of(payload[:1], payload[1:], "float32").changed_share == 1.0


def test_large_integers_differ_by_one() -> None:
    old = np.array([2**62, -(2**63)], np.int64)
    new = np.array([2**62 + 1, 2**63 - 1], np.int64)
    found = of(old, new, "int64")
    assert found.changed_share == 1.0
    assert found.max_abs == float(2**64 - 1)
    assert of(old[:1], new[:1], "int64").max_abs == 1.0
    assert of(np.array([2**64 - 1], "u8"), np.array([2**64 - 2], "u8"), "uint64").l2 == 1.0


def test_complex_numbers_are_pairs() -> None:
    old = np.array([1 + 1j, 2 - 1j], np.complex128)
    new = np.array([1 + 4j, 2 - 1j], np.complex128)
    found = of(old, new, "complex128")
    assert (found.changed_share, found.l2, found.max_abs) == (0.5, 3.0, 3.0)
    poisoned = of(old, np.array([np.nan + 1j, 3 - 1j]), "complex128")
    assert (poisoned.nonfinite, poisoned.max_abs) == (1, 1.0)


def test_extreme_values_neither_overflow_nor_vanish() -> None:
    zero = np.zeros(4)
    assert of(zero, np.full(4, 1e300), "float64").l2 == pytest.approx(2e300)
    assert of(zero, np.full(4, 1e-300), "float64").l2 == pytest.approx(2e-300)
    assert of(zero, zero, "float64").cosine is None
    assert of(zero, np.ones(4), "float64").cosine is None


def test_another_dtype_changes_every_element() -> None:
    old = np.array([1.0, 2.5], np.float32)
    found = of(old, old.astype(np.float16), "float32", "float16")
    assert (found.changed_share, found.l2) == (1.0, 0.0)


def test_no_elements() -> None:
    assert distance_of("float32", [], "float32", [memoryview(b"")]) == Distance(
        0.0, 0.0, 0.0, None, 0
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300_000), st.integers(0, 2**32), st.sampled_from(["float32", "float64"]))
def test_pieces_and_blocks_do_not_matter(size: int, seed: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    old = rng.standard_normal(size).astype(dtype)
    new = np.where(rng.random(size) < 0.3, old, old + rng.standard_normal(size)).astype(dtype)
    step = (1 << 16) * old.itemsize
    assert PIECE % step == 0
    cut = [memoryview(old.tobytes())[i : i + step] for i in range(0, old.nbytes, step)]
    found = distance_of(dtype, cut, dtype, [memoryview(new.tobytes())])
    a, b = old.astype(np.float64), new.astype(np.float64)
    assert found.changed_share == pytest.approx(float((old != new).mean()))
    assert found.l2 == pytest.approx(float(np.linalg.norm(b - a)))
    assert found.max_abs == float(np.abs(b - a).max())
    if (norms := float(np.linalg.norm(a) * np.linalg.norm(b))) > 0:
        assert found.cosine == pytest.approx(float(a @ b) / norms, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(np.uint8, 64), hnp.arrays(np.uint8, 64), st.sampled_from(sorted(DTYPES)))
def test_any_bits_give_an_answer(old: np.ndarray, new: np.ndarray, dtype: str) -> None:
    found = of(old, new, dtype)
    width = DTYPES[dtype].itemsize
    share = (old != new).reshape(-1, width).any(axis=1).mean()
    assert found.changed_share == pytest.approx(float(share))
    assert not math.isnan(found.l2) and not math.isnan(found.max_abs)
