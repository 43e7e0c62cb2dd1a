"""What is added to a tensor, bit for bit."""

import numpy as np
import pytest

from mvc.errors import DamagedData, WrongUsage
from mvc.lossy.lc.payload import decode_steps, encode_steps
from mvc.lossy.lc.quantise import quantise
from mvc.lossy.lc.step import Addition
from mvc.pipelines.pipeline import Pipeline
from tests.lossy.lc.states import DTYPES, numbers, random_pair, raw

PIPELINES = (
    "expq | huffman",
    "lc:x=1",
    "lc:x=2",
    "lc:x=3,ans",
    "lc:mean,budget=0.1",
    "lc:uniform,budget=0.1",
    "lc:uniform,error=0.05,packed",
    "lc:mean,error=0.4,tensor,huffman",
)


@pytest.mark.parametrize("dtype", DTYPES)
def test_decoder_and_encoder_have_equal_states(dtype):
    """250 random tensors of each dtype, in all pipelines in turn: 1,000 in all."""
    for seed in range(250):
        pipeline = Pipeline.parse(PIPELINES[seed % len(PIPELINES)])
        before, after = random_pair(seed, dtype)
        (step,) = quantise(pipeline, [(before, dtype)], [(after, dtype)])
        assert step is not None
        data = b"".join(encode_steps(pipeline, [step]))
        (back,) = decode_steps(pipeline, memoryview(data), [len(before)])
        encoder, decoder = bytearray(before), bytearray(before)
        step.apply(memoryview(encoder))
        back.apply(memoryview(decoder))
        assert encoder == decoder
        assert np.isfinite(numbers(encoder, dtype)).all()


def test_a_zero_symbol_is_added_too():
    state = bytearray(np.array([-0.0, 0.0, -0.0], np.float32).tobytes())
    table = np.array([0, 1], np.float32)
    Addition(np.array([0, 0, 1], np.uint8), table, "float32").apply(memoryview(state))
    assert np.frombuffer(state, np.uint32).tolist() == [0, 0, 0x3F800000]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("symbols", [1, 2, 3, 4, 5, 16, 17, 256, 257, 3000])
def test_addition_is_that_of_single_elements(dtype, symbols):
    """However many symbols are looked up at once, whole blocks and rests of them."""
    rng = np.random.default_rng(symbols)
    for count in (0, 1, 3, 4, 5, 70_001):
        row = rng.integers(0, symbols, count).astype(np.uint8 if symbols < 257 else np.uint16)
        numbers_of = np.append(0.0, rng.normal(size=symbols - 1))
        form = "<u2" if dtype == "bfloat16" else np.dtype(dtype)
        table = np.frombuffer(raw(numbers_of, dtype), form)
        before = raw(rng.normal(size=count), dtype)
        state = bytearray(before)
        Addition(row, table, dtype).apply(memoryview(state))
        added = numbers(table.tobytes(), dtype)[row]
        if dtype == "float64":
            want = (numbers(before, dtype) + added).tobytes()
        elif dtype == "bfloat16":
            total = (numbers(before, dtype).astype("<f4") + added.astype("<f4")).view("<u4")
            want = ((total + 0x7FFF + (total >> 16 & 1)) >> 16).astype("<u2").tobytes()
        else:
            own = np.dtype(dtype)
            want = (np.frombuffer(before, own) + added.astype(own)).tobytes()
        assert bytes(state) == want


def test_on_the_scale_of_the_root():
    state = bytearray(np.array([0.25, 0.25, 0.0], np.float32).tobytes())
    table = np.array([0, 0.5, -1], np.float32)
    Addition(np.array([1, 2, 0], np.uint8), table, "float32", root=True).apply(memoryview(state))
    assert np.frombuffer(state, np.float32).tolist() == [1.0, 0.0, 0.0]


def test_refuses_what_does_not_fit():
    table = np.array([0, 1], np.float32)
    step = Addition(np.array([0, 1], np.uint8), table, "float32")
    with pytest.raises(WrongUsage, match="does not fit"):
        step.apply(memoryview(bytearray(4)))
    wrong = Addition(np.array([0, 2], np.uint8), table, "float32")
    state = bytearray(8)
    with pytest.raises(DamagedData, match="not in its alphabet"):
        wrong.apply(memoryview(state))
    assert state == bytes(8)
