"""When the size of a full record is estimated, and when that of the chain's first one serves."""

from __future__ import annotations

import numpy as np
import pytest

from mvc.model.tensor import TensorSpec
from mvc.pipelines.pipeline import Pipeline
from mvc.store.graph.search import Link
from mvc.store.writing.full_or_delta import BasePiece, Policy, choose
from tests.codecs.samples import quantised

SIZE = 40_000
PLANES = "sub | zigzag | elide | planes | zstd:huff"
OLD = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)
NEW = OLD + np.float32(1e-4)
OTHER = np.random.default_rng(1).standard_normal(SIZE).astype(np.float32)


@pytest.fixture
def estimated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was estimated: ``full`` or ``delta``."""
    found, real = [], Pipeline.estimate

    def estimate(self, new, base, width):
        found.append("full" if base is None else "delta")
        return real(self, new, base, width)

    monkeypatch.setattr(Pipeline, "estimate", estimate)
    return found


def chosen(new, old=OLD, depth=0, first=0.86, **policy):
    data = memoryview(old).cast("B")
    links = [Link(bytes(32), i, i, round(first * len(data)) + i, len(data)) for i in range(depth)]
    last = Link(b"1" * 32, depth, depth, round(first * len(data)) + depth, len(data))
    base = BasePiece(b"1" * 32, data, (*links, last))
    spec = TensorSpec("float32", (len(new),))
    given = Policy(Pipeline.parse("lossless"), **policy)
    return [c.against for c in choose(spec, memoryview(new).cast("B"), spec, base, given)]


@pytest.mark.parametrize("depth", range(8))
def test_the_chains_first_record_serves_three_times_of_four(estimated, depth):
    assert chosen(NEW, depth=depth) == [True]
    assert estimated == (["delta", "full"] if depth % 4 == 3 else ["delta"])


def test_a_delta_that_is_not_clearly_smaller_is_compared_with_an_estimate(estimated):
    assert chosen(OTHER) == [False]
    assert chosen(NEW, first=0.1) == [True]
    assert estimated == ["delta", "full"] * 2


def test_nothing_serves_where_a_full_record_is_stored_anyway_or_its_header_counts(estimated):
    assert chosen(NEW, reset=True) == [True, False]
    assert chosen(NEW, max_chain=0.5) == [True, False]
    chosen(NEW[:1000], OLD[:1000])
    assert estimated == ["delta", "full"] * 3


def test_what_a_delta_must_save_counts_here_too(estimated):
    assert chosen(NEW, saving=0.8) == [False]
    assert estimated == ["delta", "full"]


def texts(new, old, dtype="uint8", pipeline="lossless"):
    """The codings of ``new`` in full, and as a delta to ``old``."""
    spec, data = TensorSpec(dtype, new.shape), [memoryview(each.tobytes()) for each in (new, old)]
    policy, base = Policy(Pipeline.parse(pipeline)), BasePiece(b"1" * 32, data[1])
    choices = [
        choose(spec, data[0], *known, policy=policy) for known in ((None, None), (spec, base))
    ]
    return [choice.text for (choice,) in choices]


@pytest.mark.parametrize("rows", [40, 1500])
def test_rows_of_quantised_blocks_are_coded_by_blocks(rows):
    weights = np.random.default_rng(0).standard_normal((rows, 960)).astype(np.float32)
    old, new = quantised(weights), quantised(weights + NEW[:960] / 1000)
    assert new.shape[1] % 20 == new.shape[1] % 24 == 0
    assert texts(new, old) == ["blocks:20 | zstd:huff", "sub | zigzag | blocks:20 | zstd:huff"]
    for dtype, shape in (("uint8", (-1,)), ("int8", new.shape), ("uint8", (*new.shape, 1))):
        plain = texts(new.reshape(shape), old.reshape(shape), dtype)
        assert plain == ["planes | zstd:huff", PLANES]
    assert texts(new, old, pipeline="none")[0] == "raw"


def test_other_rows_of_bytes_are_not(estimated):
    rng = np.random.default_rng(0)
    noise = rng.binomial(8, 0.5, (500, 720)).astype(np.uint8)
    assert texts(noise, noise ^ (rng.random(noise.shape) < 0.3)) == ["planes | zstd:huff", PLANES]
    for others in (noise[:, :719], noise[:22]):
        estimated.clear()
        texts(others, np.zeros_like(others))
        assert estimated == ["full", "delta", "full"]
