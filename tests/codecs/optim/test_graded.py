"""Chunks of signed steps: they come back whatever the bits are, and grades make them smaller."""

from __future__ import annotations

import numpy as np
import pytest

from mvc.codecs.optim import Prediction
from mvc.codecs.optim.rules import RULES
from mvc.errors import DamagedData, EncodingFailed
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.predicted import apply_predicted, encode_predicted
from mvc.store.writing.proof import Sampling
from tests.codecs.optim.test_prediction import bits, prediction

LOSSLESS = Pipeline.parse("lossless")
SIGNED = [name for name, rule in RULES.items() if rule.signed]
COUNT = 40_000


def views(arrays: list[np.ndarray]) -> list[memoryview]:
    return [memoryview(array.tobytes()) for array in arrays]


def encoded(made: Prediction, new: memoryview, sources: list[memoryview]) -> bytes:
    """The chunk, which leads back to ``new``, also where its base is overwritten."""
    parts, known = encode_predicted(LOSSLESS, made, new, sources=sources, width=made.width)
    chunk = b"".join(parts)
    apply_predicted(
        LOSSLESS, made, memoryview(chunk), sources, out=known.state, width=made.width, known=known
    )
    assert known.state == new
    base = memoryview(bytearray(sources[0]))
    sources = [base, *sources[1:]]
    apply_predicted(LOSSLESS, made, memoryview(chunk), sources, out=base, width=made.width)
    assert base == new
    return chunk


def rmsprop(rng: np.random.Generator, dtype: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """Weights after a step in which most gradients are zero, and what leads to them."""
    w, v = rng.normal(0, 0.05, COUNT).astype(dtype), rng.exponential(1e-4, COUNT).astype(dtype)
    g = np.exp(rng.normal(-6, 3, COUNT)) * rng.choice([-1, 1], COUNT) * (rng.random(COUNT) < 0.3)
    number, g = np.dtype(dtype).type, g.astype(dtype)
    after = number(0.9) * v + (number(0.1) * g) * g
    new = w - (number(1e-3) * g) / (np.sqrt(after) + number(1e-8))
    return new, [w, after, v]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", SIGNED)
def test_any_bits_come_back(rule: str, dtype: str) -> None:
    made = prediction(rule, dtype)
    for count in (0, 1, 7, 3_001):
        new, *sources = views([bits(i, count, made.width) for i in range(2 + made.inputs)])
        encoded(made, new, sources)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_grades_and_no_signs_of_zeros_take_less(dtype: str) -> None:
    new, sources = rmsprop(np.random.default_rng(4), dtype)
    plain = Prediction("root.1", dtype, (1e-3, 1e-8, 0.9, 0.1))
    sizes = [len(encoded(m, views([new])[0], views(sources))) for m in (plain, plain.finer)]
    assert plain.finer.rule == "root.1g" and sizes[1] < 0.85 * sizes[0]


def test_rules_without_signs_have_no_grades() -> None:
    made = prediction("adam.1")
    assert made.finer == made


def test_a_chunk_that_is_cut_is_damage() -> None:
    new, sources = rmsprop(np.random.default_rng(4), "float32")
    made = Prediction("root.1g", "float32", (1e-3, 1e-8, 0.9, 0.1))
    chunk, out = encoded(made, views([new])[0], views(sources)), memoryview(bytearray(4 * COUNT))
    for size in range(0, len(chunk), len(chunk) // 40):
        with pytest.raises(DamagedData):
            part = memoryview(chunk)[:size]
            apply_predicted(LOSSLESS, made, part, views(sources), out=out, width=4)


@pytest.mark.parametrize("rule", ["root.1", "root.1g", "momentum.1"])
def test_a_chunk_that_does_not_lead_back_is_refused(rule: str) -> None:
    """Whether the prediction is reused, or, as one in 32, computed again."""
    made = prediction(rule)
    new, *sources = views([a[:9_000] for a in rmsprop(np.random.default_rng(4), "float32")[1]])
    sources = (sources * 2)[: 1 + made.inputs]

    def prove(turn: int, share: float | None = None, *, wrong: int = 0) -> None:
        parts, known = encode_predicted(LOSSLESS, made, new, sources=sources, width=4)
        chunk = bytearray(b"".join(parts))
        if share is not None:
            chunk[int(share * len(chunk))] ^= 1
        known.state[-1] ^= wrong
        sampling = Sampling(turn)
        sampling.predicted(LOSSLESS, made, chunk, new, sources=sources, width=4, known=known)

    for turn in (31, 32):
        prove(turn)
        for share in np.linspace(0, 0.999, 20):
            with pytest.raises(EncodingFailed):
                prove(turn, share)
    prove(32, wrong=1)  # what encoding has computed is not used
    with pytest.raises(EncodingFailed):
        prove(31, wrong=1)


def test_a_prediction_that_no_reader_makes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in 32 is predicted again."""
    new, sources = rmsprop(np.random.default_rng(4), "float32")
    made, sampling, fill, calls = prediction("root.1g"), Sampling(0), Prediction.fill, []

    def once(self: Prediction, base: memoryview, inputs: list[memoryview], out: memoryview,
             *signs: np.ndarray, **named: object) -> object:  # fmt: skip
        found = fill(self, base, inputs, out, *signs, **named)
        out[4] ^= not signs  # while it is encoded
        calls.append(signs)
        return found

    monkeypatch.setattr(Prediction, "fill", once)
    refused = 0
    for _ in range(65):
        chunk, known = encode_predicted(
            LOSSLESS, made, views([new])[0], sources=views(sources), width=4
        )
        try:
            sampling.predicted(
                LOSSLESS, made, b"".join(chunk), views([new])[0], sources=views(sources), width=4,
                known=known,
            )  # fmt: skip
        except EncodingFailed:
            refused += 1
    assert refused == 3
