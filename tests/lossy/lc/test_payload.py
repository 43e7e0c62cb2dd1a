"""Many tensors in one payload, consecutive steps in one, and damage to either."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mvc.errors import DamagedData, WrongUsage
from mvc.lossy.lc.payload import (
    MAX_JOINT,
    decode_joint,
    decode_steps,
    encode_joint,
    encode_steps,
)
from mvc.lossy.lc.quantise import quantise
from mvc.lossy.lc.step import Addition
from mvc.pipelines.pipeline import Pipeline
from tests.lossy.lc.states import DTYPES, random_pair
from tests.oracle.reader import Cursor
from tests.oracle.steps import read

DTYPES_BY_CODE = ("float32", "float64", "float16", "bfloat16")
CODINGS = ("huffman", "packed", "ans")
PIPELINES = [Pipeline.parse(f"expq | {coding}") for coding in CODINGS]


def same(first, second):
    return (
        (first.dtype, first.root) == (second.dtype, second.root)
        and first.table.tobytes() == second.table.tobytes()
        and first.symbols.tolist() == second.symbols.tolist()
    )


def encoded(pipeline, steps):
    return b"".join(encode_steps(pipeline, steps))


@st.composite
def models(draw, members=5):
    """Steps of several tensors, some with a table in common."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    tables = []
    for _ in range(draw(st.integers(1, 3))):
        dtype = draw(st.sampled_from(DTYPES))
        pairs = [random_pair(int(rng.integers(1 << 30)), dtype)]
        pipeline = Pipeline.parse(draw(st.sampled_from(["expq | ans", "lc:x=2", "lc:x=4"])))
        (step,) = quantise(
            pipeline, [(pairs[0][0], dtype)], [(pairs[0][1], dtype)],
        )  # fmt: skip
        assume(step is not None)  # a rare pair differs by more than a step can express
        tables.append((step.table, dtype, draw(st.booleans())))
    steps = []
    for _ in range(draw(st.integers(0, members))):
        table, dtype, root = tables[draw(st.integers(0, len(tables) - 1))]
        row = rng.integers(0, len(table), draw(st.integers(0, 200))).astype(np.uint8)
        steps.append(Addition(row * (rng.random(len(row)) < 0.5), table, dtype, root))
    return steps


@pytest.mark.parametrize("pipeline", PIPELINES)
@settings(max_examples=40)
@given(steps=models())
def test_there_and_back(pipeline, steps):
    data = encoded(pipeline, steps)
    back = decode_steps(pipeline, memoryview(data), [step.nbytes for step in steps])
    assert len(back) == len(steps)
    assert all(map(same, steps, back))


@pytest.mark.parametrize("pipeline", PIPELINES)
@settings(max_examples=40)
@given(steps=models(), times=st.integers(1, 9), seed=st.integers(0, 1 << 32))
def test_consecutive_steps_there_and_back(pipeline, steps, times, seed):
    """Also where the table of a tensor is another one at each time."""
    rng = np.random.default_rng(seed)
    series = []
    for t in range(times):
        at = []
        for step in steps:
            table = step.table[: int(rng.integers(1, len(step.table) + 1))] if t % 2 else step.table
            row = rng.permutation(step.symbols)
            at.append(Addition(np.where(row < len(table), row, 0), table, step.dtype, step.root))
        series.append(at)
    data, sizes = b"".join(encode_joint(pipeline, series)), [step.nbytes for step in steps]
    back = decode_joint(pipeline, memoryview(data), sizes)
    assert len(back) == len(series)
    for ours, theirs in zip(series, back, strict=True):
        assert all(map(same, ours, theirs))
    check_described(
        [step for at in series for step in at], data, f"joint:{times} | {pipeline.text}"
    )


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("joint", [False, True])
@settings(max_examples=60)
@given(steps=models(), at=st.floats(0, 1), bit=st.integers(0, 7), how=st.integers(0, 3))
def test_damage_is_told_or_harmless(pipeline, joint, steps, at, bit, how):
    """A flipped bit, a cut, a byte more, or other members: DamagedData, or steps that fit."""
    sizes = [step.nbytes for step in steps]
    parts = encode_joint(pipeline, [steps] * 3) if joint else encode_steps(pipeline, steps)
    data = bytearray(b"".join(parts))
    place = min(int(at * len(data)), len(data) - 1)
    if how == 0:
        data[place] ^= 1 << bit
    elif how == 1:
        del data[place:]
    elif how == 2:
        data.insert(place, bit)
    else:
        sizes = [size + bit for size in sizes] + [8] * (bit % 2)
    decode = decode_joint if joint else decode_steps
    try:
        found = decode(pipeline, memoryview(bytes(data)), sizes)
    except DamagedData:
        return
    for at_once in found if joint else [found]:
        assert [step.nbytes for step in at_once] == sizes
        for step in at_once:
            step.apply(memoryview(bytearray(step.nbytes)))


def test_members_share_a_table():
    table = np.array([0, 0.5, -0.25], np.float32)
    rows = [np.zeros(64, np.uint8) for _ in range(50)]
    steps = [Addition(row, table, "float32") for row in rows]
    # one class; float32, 2 symbols, 2 bytes of each; 50 members of class 0; constant 0
    assert encoded(PIPELINES[1], steps).hex() == "01" + "000202003f80be" + "3200" + "0000"
    assert encoded(PIPELINES[0], []).hex() == "00"


def test_limits():
    table = np.array([1, 2], np.float32)
    with pytest.raises(WrongUsage, match=r"the first is \+0\.0"):
        encode_steps(PIPELINES[0], [Addition(np.zeros(1, np.uint8), table, "float32")])
    with pytest.raises(WrongUsage, match="has no coder"):
        encode_steps(Pipeline.parse("vsol"), [])
    step = Addition(np.zeros(1, np.uint8), table * 0, "float32")
    with pytest.raises(WrongUsage, match="with the same tensors"):
        encode_joint(PIPELINES[0], [[step], []])
    with pytest.raises(WrongUsage, match="a joint payload has"):
        encode_joint(PIPELINES[0], [[]] * (MAX_JOINT + 1))
    with pytest.raises(WrongUsage, match="a joint payload has"):
        encode_joint(PIPELINES[0], [])
    infinite = "010001" + "04" + "0000807f" + "0100" + "0001"
    with pytest.raises(DamagedData, match="infinite"):
        decode_steps(PIPELINES[0], memoryview(bytes.fromhex(infinite)), [4])


def test_joint_is_smaller_where_changes_repeat():
    """Weights that move far do so again; below a bit an entry also with a code of whole bits."""
    rng = np.random.default_rng(0)
    scale = np.exp(rng.normal(size=100_000) * 2) * 1e-3
    for text, share in (("lc:x=2,huffman", 0.4), ("lc:x=5,ans", 0.99), ("lc:x=3", 1.0)):
        pipeline = Pipeline.parse(text)
        weights = rng.normal(size=100_000).astype(np.float32)
        state, series, single = bytearray(weights.tobytes()), [], 0
        for _ in range(8):
            weights += (rng.normal(size=100_000) * scale).astype(np.float32)
            steps = quantise(pipeline, [(state, "float32")], [(weights.tobytes(), "float32")])
            steps[0].apply(memoryview(state))
            series.append(steps)
            single += len(encoded(pipeline, steps))
        assert sum(map(len, encode_joint(pipeline, series))) <= share * single + 16


@pytest.mark.parametrize("coding", CODINGS)
@settings(max_examples=30)
@given(steps=models())
def test_the_document_describes_the_bytes(coding, steps):
    pipeline = Pipeline.parse(f"expq | {coding}")
    check_described(steps, encoded(pipeline, steps), pipeline.text)


def check_described(steps, data, coding):
    """Docs/format.md, as the second reader reads it, and the package check each other."""
    cursor = Cursor(data)
    found = read(cursor, [step.nbytes for step in steps], coding)
    assert cursor.at == len(data)
    for step, (kind, table, row) in zip(steps, found, strict=True):
        assert kind == DTYPES_BY_CODE.index(step.dtype) | 4 * step.root
        assert row.tolist() == step.symbols.tolist()
        assert table == step.table.tobytes()


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("symbols", [2, 4, 12, 50, 700])
def test_the_document_describes_long_rows(coding, symbols):
    """Long enough for compressed frames, letters of several symbols, and rows of lanes."""
    rng = np.random.default_rng(symbols)
    row = np.minimum(rng.geometric(0.6, 30_000) - 1, symbols - 1)
    row = row.astype(np.uint8 if symbols <= 256 else np.uint16)
    table = np.append(0, rng.normal(size=symbols - 1)).astype(np.float32)
    pipeline = Pipeline.parse(f"expq | {coding}")
    step = Addition(row, table, "float32")
    check_described([step], encoded(pipeline, [step]), pipeline.text)


def test_the_example_of_the_document():
    text = (Path(__file__).parents[3] / "docs" / "format.md").read_text()
    (block,) = re.findall(r"^```hex payload-steps-lc\n(.*?)^```", text, re.S | re.M)
    data = b"".join(bytes.fromhex(line.split("  ")[0]) for line in block.splitlines())
    after = [np.array(x, np.float32).tobytes() for x in ([0.3, 0.4, 0.1, 0], [0.4, 0])]
    pipeline = Pipeline.parse("expq | promote:2 | packed")
    steps = quantise(
        pipeline, [(bytes(len(x)), "float32") for x in after], [(x, "float32") for x in after]
    )
    assert encoded(pipeline, steps) == data
    assert [step.symbols.tolist() for step in steps] == [[1, 1, 2, 0], [1, 0]]
    check_described(steps, data, pipeline.text)


def test_steps_work_on_bytes_without_a_repository():
    pipeline = Pipeline.parse("lc:x=3")
    stored = bytearray(np.zeros(4, np.float32).tobytes())
    trained = np.array([0.3, 0.4, 0.1, 0.0], np.float32).tobytes()
    (step,) = quantise(pipeline, [(stored, "float32")], [(trained, "float32")])
    step.apply(memoryview(stored))
    values = np.frombuffer(stored, np.float32)
    np.testing.assert_array_equal(values, np.float32([0.35000002, 0.35000002, 0.1, 0.0]))

    decoded = bytearray(16)
    payload = memoryview(b"".join(encode_steps(pipeline, [step])))
    decode_steps(pipeline, payload, [16])[0].apply(memoryview(decoded))
    assert decoded == stored
