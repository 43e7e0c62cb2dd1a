"""What every scheme keeps, and that its bytes are those that it could be read from."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from mvc.errors import InvalidPipeline, WrongUsage
from reproduce.rework.schemes import DEFAULT, checkpoints, packed_gaps

COUNT = 10_000


def states(number, names=("weights",), seed=0):
    random = np.random.default_rng(seed)
    values = {name: random.normal(0, 1, COUNT).astype(np.float32) for name in names}
    for _ in range(number):
        yield {name: each.copy() for name, each in values.items()}
        for each in values.values():
            each += random.normal(0, 0.01, COUNT).astype(np.float32)
        if "second" in values:
            np.abs(values["second"], out=values["second"])


def kept(text, number=4, names=("weights",), block=16):
    start, *later = states(number + 1, names)
    if "second" in start:
        start["second"] = abs(start["second"])
    scheme = checkpoints(text, start, block)
    sizes = [scheme.save(i, {k: v.copy() for k, v in s.items()}) for i, s in enumerate(later, 1)]
    return start, later, sizes, *scheme.restore()


@pytest.mark.parametrize(
    "text",
    [*DEFAULT[:-1], "lc:x=1,huffman", "lc:uniform,budget=0.02", "scar:0.1", "topn-coded:0.2"],
)
def test_within_its_budget(text):
    start, later, sizes, iteration, state = kept(text)
    assert iteration == 4
    before = np.linalg.norm(start["weights"] - later[-1]["weights"])
    assert np.linalg.norm(state["weights"] - later[-1]["weights"]) < before
    share = float(text.rpartition("=" if "budget" in text else ":")[2]) if "x=" not in text else 0.1
    assert 0 < max(sizes) <= share * 4 * COUNT


def test_round_robin_keeps_every_block_in_its_turn():
    _start, later, sizes, _, state = kept("scar-round:0.25", block=100)
    parts = [slice(2500 * i, 2500 * (i + 1)) for i in range(4)]
    for number, part in enumerate(parts):  # a mix of ages
        assert np.array_equal(state["weights"][part], later[number]["weights"][part])
    assert sizes == [2500 * 4 + 1] * 4


def test_priority_takes_the_blocks_that_moved_furthest():
    start = {"weights": np.zeros(1000, np.float32)}
    scheme = checkpoints("scar:0.1", start, 16)
    moved = np.zeros(1000, np.float32)
    moved[32:48] = 0.5
    moved[990] = 9  # in the last block, which is not a whole one
    assert scheme.save(1, {"weights": moved}) <= 400
    assert np.array_equal(scheme.restore()[1]["weights"], moved)


def test_topn_takes_the_largest_differences_from_what_is_saved():
    start, later, sizes, _, state = kept("topn:0.05", number=1)
    count = (int(0.05 * 4 * COUNT) - 8) // 8
    distance = abs(later[0]["weights"] - start["weights"])
    changed = np.flatnonzero(state["weights"] != start["weights"])
    assert set(changed) == set(np.argsort(distance)[-count:])
    assert np.array_equal(state["weights"][changed], later[0]["weights"][changed])
    assert sizes == [8 * count + 8]


def test_coded_places_can_be_read():
    random = np.random.default_rng(0)
    for places in ([0], [5], [254, 255, 256], [1000, 1255, 9999]):
        assert unpacked(packed_gaps(np.array(places))) == places
    places = np.flatnonzero(random.random(100_000) < 0.04)
    coded = packed_gaps(places)
    assert unpacked(coded) == places.tolist()
    entropy = -(0.04 * np.log2(0.04) + 0.96 * np.log2(0.96)) * 100_000 / 8
    assert len(coded) < 1.03 * entropy


def unpacked(data):
    places, gap = [], 0
    for byte in zlib.decompress(data, -15):
        gap += byte
        if byte < 255:
            places.append((places[-1] if places else -1) + 1 + gap)
            gap = 0
    return places


@pytest.mark.parametrize("kind", ["scar", "scar-round", "topn", "topn-coded"])
def test_as_many_bytes_as_a_pipeline_takes(kind):
    pipeline = "lc:x=2,huffman"
    for names in (("weights",), ("weights", "first")):  # a moment has its own budget
        _, _, stated, _, _ = kept(pipeline, names=names)
        _, _, sizes, _, _ = kept(f"{kind}:{pipeline}", names=names)
        assert len(set(stated)) > 1
        assert sizes[0] <= stated[0]  # before the price of a gap is known
        for most, size in zip(stated[1:], sizes[1:], strict=True):
            assert 0.9 * most < size <= most + 2 * (kind == "scar-round") * len(names)


def test_full_checkpoints():
    _, later, sizes, iteration, state = kept("full:3")
    assert iteration == 3
    assert np.array_equal(state["weights"], later[2]["weights"])
    assert sizes == [0, 0, 4 * COUNT, 0]


def test_moments():
    names = ("weights", "first", "second")
    _, later, sizes, _, state = kept("lc:x=3,huffman@exact", names=names)
    for name in names[1:]:
        assert np.array_equal(state[name], later[-1][name])
    assert min(sizes) > 8 * COUNT
    weights = state["weights"]
    _, _, sizes, _, state = kept("lc:x=3,huffman@zeroed", names=names)
    assert not state["first"].any() and not state["second"].any()
    assert max(sizes) < 0.1 * 4 * COUNT
    assert np.array_equal(weights, state["weights"])
    _, _, sizes, _, state = kept("lc:x=3,huffman", names=names)
    assert max(sizes) < 0.1 * 12 * COUNT
    assert (state["second"] >= 0).all() and state["first"].any()


def test_errors():
    for text in ("topn:2", "scar:much", "full:0", "lc:x=2@lost"):
        with pytest.raises(WrongUsage):
            checkpoints(text, {}, 16)
    for text in ("vsol", "lc:x=9", "topn:lc:x=9"):
        with pytest.raises(
            (WrongUsage, InvalidPipeline), match=r"vsol is no pipeline of LC|lc:x=9"
        ):
            checkpoints(text, {}, 16)
    with pytest.raises(InvalidPipeline):
        checkpoints("sacr:0.05", {}, 16)
