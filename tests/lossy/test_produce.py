import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mvc.errors import WrongUsage
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.table import PRESETS
from tests.lossy.produced import produce

FAST = Pipeline.parse("vsol-1-fast")


def state(seed, scale=0.01):
    rng = np.random.default_rng(seed)
    return {
        "conv": rng.normal(size=(8, 4, 3, 3)).astype("f4") * np.float32(scale),
        "half": rng.normal(size=100).astype("f2"),
        "scalar": np.array(rng.normal(), "f8"),
        "steps": np.array([seed, 2**40]),
        "mean": rng.normal(size=10).astype("f4"),
        "empty": np.zeros((0, 3), "f4"),
    }


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def test_the_first_version_is_taken_over():
    training = state(1)
    out = produce(FAST, None, training)
    assert list(out) == list(training)
    assert all(same(out[n], training[n]) for n in training)
    assert not any(np.shares_memory(out[n], training[n]) for n in training)


def test_what_is_never_changed():
    previous, training = state(1), state(2)
    out = produce(FAST, previous, training, loss=0.3, exact={"mean"})
    assert list(out) == list(training)
    assert all(same(out[n], training[n]) for n in ("steps", "mean", "empty"))
    assert not any(same(out[n], training[n]) for n in ("conv", "half"))
    assert all(out[n].dtype == training[n].dtype for n in training)
    assert all(out[n].shape == training[n].shape for n in training)


def test_inputs_stay_as_they_are():
    previous, training = state(1), state(2)
    for given_ in (previous, training):
        for array in given_.values():
            array.flags.writeable = False
    produce(FAST, previous, training, loss=0.3)
    assert all(same(training[n], state(2)[n]) for n in training)


def test_tensors_without_a_predecessor_of_their_kind():
    training = {"new": np.ones(3, "f4"), "shape": np.ones((2, 2), "f4"), "dtype": np.ones(4, "f4")}
    previous = {"shape": np.zeros(4, "f4"), "dtype": np.zeros(4, "f8"), "old": np.zeros(3, "f4")}
    out = produce(Pipeline.parse("topk:0 | xor | raw"), previous, training)
    assert list(out) == list(training)
    assert all(same(out[n], training[n]) for n in training)


def test_arrays_that_do_not_lie_in_order():
    after = np.arange(24, dtype="f4").reshape(4, 6)[:3, ::2][:, :3]
    before = np.zeros((3, 3), "f4", order="F")
    out = produce(Pipeline.parse("topk:0.2 | xor | raw"), {"w": before}, {"w": after})["w"]
    assert out.flags.c_contiguous
    assert out.tolist() == [[0, 0, 0], [0, 0, 0], [0, 14, 16]]


def test_a_lossless_pipeline_changes_nothing():
    for text in ("lossless", "every:1/2 | sub | planes", "xor | dsed:0 | raw"):
        out = produce(Pipeline.parse(text), state(1), state(2))
        assert all(same(out[n], a) for n, a in state(2).items())


def test_misuse():
    with pytest.raises(WrongUsage, match="needs the loss"):
        produce(FAST, state(1), state(2))
    words = {"w": np.zeros(3, "u4")}
    with pytest.raises(WrongUsage, match="uint32 cannot be words of bfloat16"):
        produce(FAST, words, words, dtypes={"w": "bfloat16"}, loss=1)


def test_top_k_picks_what_bit_reset_undoes():
    """The low bits never become those of the training, so fewer than k entries change."""
    rng = np.random.default_rng(0)
    production = training = rng.normal(size=4000).astype("f4")
    pipeline = Pipeline.parse("topk:0.1 | xor | lsb:20 | raw")
    for _ in range(3):
        training = training + np.float32(1e-4) * rng.normal(size=4000).astype("f4")
        out = produce(pipeline, {"w": production}, {"w": training})["w"]
        changed = int(np.count_nonzero(out.view("u4") ^ production.view("u4")))
        assert changed < 400
        production = out


@settings(max_examples=40)
@given(
    st.sampled_from([name for name in PRESETS if name.startswith("vsol-")]),
    st.floats(0, 2),
    st.integers(0, 10),
)
def test_what_is_made_is_made_again(preset, loss, seed):
    """From the same input, the same bits: a run can be repeated."""
    pipeline = Pipeline.parse(preset)
    runs = [produce(pipeline, state(seed), state(seed + 1), loss=loss) for _ in range(2)]
    assert all(same(runs[0][n], runs[1][n]) for n in runs[0])


def test_stages_act_in_order():
    before = np.array([1.0, 1.0], "f4")
    after = np.array([1.3, 1.01], "f4")
    out = produce(Pipeline.parse("topk:0.5 | xor | lsb:20 | raw"), {"w": before}, {"w": after})
    assert out["w"].tolist() == [1.25, 1.0]
