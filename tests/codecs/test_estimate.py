import numpy as np
import pytest

from mvc.pipelines.pipeline import Pipeline
from tests.codecs.samples import pair


def estimate(pipeline, new, base, width):
    return pipeline.estimate(new, base, width)[0]


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("nbytes", [128, 100_000, 3_000_001])
def test_close_to_what_is_stored(share, nbytes):
    new, base = map(memoryview, pair(nbytes, 4, share, 3))
    for text in ("lossless", "xor | planes | zstd:1"):
        pipeline = Pipeline.parse(text)
        stored = len(pipeline.encode_chunk(new, base, 4)) / nbytes
        assert estimate(pipeline, new, base, 4) == pytest.approx(stored, rel=0.15, abs=0.01)
        kept = len(pipeline.full().encode_chunk(new, None, 4)) / nbytes
        assert estimate(pipeline, new, None, 4) == pytest.approx(kept, rel=0.05, abs=0.01)


def test_tells_a_delta_from_a_new_tensor():
    rng = np.random.default_rng(0)
    a, b = (memoryview(rng.normal(size=10_000).astype(np.float32)).cast("B") for _ in "ab")
    near = memoryview(np.frombuffer(a, np.float32) * np.float32(1.0001)).cast("B")
    pipeline = Pipeline.parse("lossless")
    assert estimate(pipeline, near, a, 4) < 0.7 * estimate(pipeline, near, None, 4)
    assert estimate(pipeline, b, a, 4) > 0.95 * estimate(pipeline, b, None, 4)


def test_group_pipelines_and_empty_tensors():
    assert estimate(Pipeline.parse("vsol"), memoryview(b""), None, 4) == 0.0
    new, base = map(memoryview, pair(50_000, 4, 0.3, 3))
    assert 0 < estimate(Pipeline.parse("vsol"), new, base, 4) < 1
