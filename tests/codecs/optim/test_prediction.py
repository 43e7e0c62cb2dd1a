"""Predictions: their texts, their arithmetic on any bits, and signs."""

from __future__ import annotations

import numpy as np
import pytest

from mvc.codecs.optim import Prediction
from mvc.codecs.optim.rules import RULES
from mvc.errors import InvalidPipeline, WrongUsage

NUMBERS = (0.9, 0.1, 0.25, 1e-08, 0.5, 0.75, 0.001, 0.125, 2.0, 0.3, 0.7, 1.5)


def prediction(rule: str, dtype: str = "float32") -> Prediction:
    return Prediction(rule, dtype, NUMBERS[: RULES[rule].count])


def bits(seed: int, count: int, width: int) -> np.ndarray:
    """Numbers of all sizes, zeros, infinities, NaNs and subnormals."""
    rng = np.random.default_rng(seed)
    kind = f"<f{width}"
    values = np.ldexp(rng.normal(size=count), rng.integers(-30, 10, count)).astype(kind)
    wild = np.frombuffer(rng.bytes(count * width), kind)
    return np.where(rng.random(count) < 0.7, values, wild).astype(kind)


def filled(made: Prediction, count: int, *, chunk: int | None = None, seed: int = 0) -> bytes:
    arrays = [bits(seed + i, count, made.width).view(np.uint8) for i in range(1 + made.inputs)]
    drawn = np.frombuffer(np.random.default_rng(9).bytes(-(-count // 8)), np.uint8)
    signs = np.unpackbits(drawn, count=count) if made.signed else None
    out = bytearray(count * made.width)
    step = chunk or len(out) or 1
    for at in range(0, len(out), step):
        base, *inputs = (memoryview(a)[at : at + step] for a in arrays)
        mine = None
        if signs is not None:
            mine = signs[at // made.width : (at + len(base)) // made.width]
        made.fill(base, inputs, memoryview(out)[at : at + step], mine)
    return bytes(out)


@pytest.mark.parametrize("rule", RULES)
def test_a_text_says_all(rule: str) -> None:
    for dtype in ("float32", "float64"):
        made = prediction(rule, dtype)
        assert Prediction.parse(made.text) == made


@pytest.mark.parametrize(
    "text",
    [
        "optim", "optim:", "optim::", "optim:greater", "optim:greater:float32:", "sub",
        "optim:greater:float16", "optim:greater:float32:1.0", "optim:none.1:float32:1.0",
        "optim:decay.1:float32", "optim:decay.1:float32:", "optim:decay.1:float32:0.90",
        "optim:decay.1:float32:1", "optim:decay.1:float32:nan", "optim:decay.1:float32:inf",
        "optim:decay.1:float32: 0.9", "optim:decay.1:float32:0.9:", "optim:decay.1:float32:1_0.0",
        "optim:decay.1:float32:0.9,0.9", "optim:decay.1:float32:,", "optim:decay.1:float32:٠.٩",
        "optim:decay.1:float32:1e-8", "optim:decay.1:float32:0x1p-3", "other:decay.1:float32:0.9",
        "optim:decay.1:float32:" + "9" * 5000, "optim:decay.1:float32:" + ",".join(["0.9"] * 5000),
    ],
)  # fmt: skip
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidPipeline):
        Prediction.parse(text)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", RULES)
def test_chunks_are_predicted_as_the_whole(rule: str, dtype: str) -> None:
    made = prediction(rule, dtype)
    assert filled(made, 70_001) == filled(made, 70_001, chunk=1 << 15)
    assert filled(made, 0) == b""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", RULES)
def test_every_nan_is_the_same(rule: str, dtype: str) -> None:
    made = prediction(rule, dtype)
    out = np.frombuffer(filled(made, 5_000), f"<f{made.width}")
    nans = out[np.isnan(out)].view(f"<u{made.width}")
    assert set(nans.tolist()) == {0x7FC00000 if dtype == "float32" else 0x7FF8000000000000}


def test_the_base_may_be_overwritten_and_odd_bytes_stay() -> None:
    made = prediction("momentum.1")
    base, other = bytearray(bits(1, 300, 4).tobytes() + b"abc"), bits(2, 301, 4).tobytes()[:1203]
    out = bytearray(1203)
    made.fill(memoryview(base), [memoryview(other)], memoryview(out))
    made.fill(memoryview(base), [memoryview(other)], memoryview(base))
    assert base == out and out.endswith(b"abc")


def test_lengths_and_signs_must_fit() -> None:
    made = prediction("momentum.1")
    eight, four = memoryview(bytearray(8)), memoryview(bytearray(4))
    for inputs in ([], [four], [eight, eight]):
        with pytest.raises(WrongUsage):
            made.fill(eight, inputs, eight)
    with pytest.raises(WrongUsage):
        made.fill(eight, [eight], eight, np.zeros(1, np.uint8))
