"""The engine of lossy training: decisions by hand-made numbers, rolling back, what is exact."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import InvalidPipeline, WrongUsage
from mvc.lossy.production import Production
from mvc.pipelines.pipeline import Pipeline

LSB = "xor | lsb:20 | planes | zstd:1"


def production(text: str, **options: Any) -> Production:
    return Production(Pipeline.parse(text), **options)


def weights(value: float, count: int = 4) -> dict[str, Any]:
    return {"w": np.full(count, value, np.float32)}


class Judge:
    """Accuracies by (weights' first value, batch); remembers what it was asked."""

    def __init__(self, table: dict[tuple[float, str], float], samples: int = 100) -> None:
        self.table = table
        self.samples = samples
        self.asked: list[tuple[float, str]] = []

    def __call__(self, state: Any, data: str) -> tuple[float, int]:
        key = (float(state["w"][0]), data)
        self.asked.append(key)
        return self.table[key], self.samples


def test_the_hand_test_of_the_bit_reset() -> None:
    engine = production(LSB)
    assert engine.offer(weights(1.0)).saved
    made = engine.offer(weights(1.3))
    assert made.saved
    assert made.production["w"].tolist() == [1.25] * 4  # 0x3FA00000
    assert engine.live is made.production


def test_training_weights_are_read_only_to_the_engine() -> None:
    engine = production("topk:0.5 | xor | lsb:20 | sparse | zstd:1")
    training = {"w": np.linspace(0, 1, 9, dtype=np.float32), "n": np.arange(3)}
    for _ in range(3):
        training["w"] += 0.01
        before = {name: array.tobytes() for name, array in training.items()}
        decision = engine.offer(training)
        assert {name: array.tobytes() for name, array in training.items()} == before
        kept = decision.production["w"].tobytes()
        training["w"] += 1  # goes on
        assert decision.production["w"].tobytes() == kept
        training["w"] -= 1
        assert not np.shares_memory(decision.production["n"], training["n"])


def test_the_first_version_is_saved_exactly_whatever_is_decided() -> None:
    judge = Judge({})
    engine = production(f"every:1/2 | {LSB[:12]} | dsed:0 | planes | zstd:1", evaluate=judge)
    first = engine.offer(weights(1.2345678))
    assert first.saved and first.production["w"][0] == np.float32(1.2345678)
    assert judge.asked == []


def test_every_saves_and_skips() -> None:
    engine = production(f"every:2/3 | {LSB}")
    saved = [engine.offer(weights(i)).saved for i in range(1, 12)]
    assert saved == [True, True, False, False, False] * 2 + [True]


def test_a_skipped_version_is_rolled_back() -> None:
    """k entries are spent against what is deployed, not against what was skipped."""
    engine = production("every:1/1 | topk:0.25 | xor | sparse | zstd:1")
    engine.offer({"w": np.zeros(4, np.float32)})
    skipped = engine.offer({"w": np.array([9, 0, 0, 0], np.float32)})
    assert not skipped.saved and skipped.production["w"].tolist() == [0, 0, 0, 0]
    assert "every:1/1" in skipped.reason
    made = engine.offer({"w": np.array([9, 8, 0, 0], np.float32)})
    assert made.production["w"].tolist() == [9, 0, 0, 0]


DSED = "xor | lsb:1 | dsed:{} | planes | zstd:1"


def test_dsed_sums_over_batches_and_a_tie_skips() -> None:
    table = {
        (1, "a"): 0.90, (2, "a"): 0.90,  # a tie: skipped
        (1, "b"): 0.80, (3, "a"): 0.90, (3, "b"): 0.80,  # still a tie, over both
        (1, "c"): 0.70, (4, "a"): 0.90, (4, "b"): 0.80, (4, "c"): 0.71,  # better
        (4, "d"): 0.50, (5, "d"): 0.49,  # counts from the save on
    }  # fmt: skip
    judge = Judge(table)
    engine = production(DSED.format("0"), evaluate=judge)
    engine.offer(weights(1), data="first")
    saved = [
        engine.offer(weights(value), data=data).saved
        for value, data in [(2, "a"), (3, "b"), (4, "c"), (5, "d")]
    ]
    assert saved == [False, False, True, False]
    assert [key for key in judge.asked if key[0] == 1] == [(1, "a"), (1, "b"), (1, "c")]
    assert len(judge.asked) == len(set(judge.asked)) == len(table)
    assert engine.live is not None and engine.live["w"][0] == 4


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=8),
    st.sampled_from([0, 0.01, 0.1, 0.3]),
)
def test_dsed_decides_as_if_it_had_asked_about_everything(
    rights: list[tuple[int, int]], bound: float
) -> None:
    """Six samples a batch; the engine may stop asking, but not decide otherwise."""
    table = {}
    for n, (old, _) in enumerate(rights):
        table[1, str(n)] = old / 6
        for later in range(n, len(rights)):
            table[2 + later, str(n)] = (rights[n][1] + later) % 7 / 6
    engine = production(DSED.format(str(bound)), evaluate=Judge(table, samples=6))
    engine.offer(weights(1))
    for newest in range(len(rights)):
        asked = range(newest + 1)
        old = sum(Fraction(rights[n][0], 6) for n in asked) / len(asked)
        new = Fraction(sum((rights[n][1] + newest) % 7 for n in asked), 6 * len(asked))
        samples = 6 * len(asked)
        skips = old + Fraction(round(Fraction(str(bound)) * samples), samples) >= new
        assert engine.offer(weights(2 + newest), data=str(newest)).saved is not skips
        if not skips:
            return


def test_dsed_asks_newest_first_and_stops_when_it_knows() -> None:
    table = {(1, "a"): 1.0, (2, "a"): 1.0, (1, "b"): 0.9, (3, "b"): 0.0, (3, "a"): 1.0}
    judge = Judge(table)
    engine = production(DSED.format("0"), evaluate=judge)
    engine.offer(weights(1))
    assert not engine.offer(weights(2), data="a").saved
    assert judge.asked == [(1, "a")]  # nothing is better than always right
    decision = engine.offer(weights(3), data="b")
    assert judge.asked[1:] == [(1, "b"), (3, "b")]
    assert not decision.saved
    assert "the new one in at most 0.5" in decision.reason


def test_dsed_with_a_bound_counts_whole_samples() -> None:
    """skip iff old + round(E n) / n >= new: with n = 86, E = .01 one sample is allowed."""
    for right, saved in [(81, False), (82, True)]:
        judge = Judge({(1, "a"): 80 / 86, (2, "a"): right / 86}, samples=86)
        engine = production(DSED.format("0.01"), evaluate=judge)
        engine.offer(weights(1), data=None)
        assert engine.offer(weights(2), data="a").saved is saved
    judge = Judge({(1, "a"): 0.5, (2, "a"): 0.52}, samples=50)  # round(.5) = 0: none is
    engine = production(DSED.format("0.01"), evaluate=judge)
    engine.offer(weights(1))
    assert engine.offer(weights(2), data="a").saved


def test_dsed_by_the_last_batch_alone() -> None:
    """The deployed weights count with all batches, the new ones with the newest."""
    table = {(1, "a"): 0.5, (2, "a"): 0.5, (1, "b"): 0.9, (3, "b"): 0.71}
    judge = Judge(table)
    engine = production(DSED.format("0,last"), evaluate=judge)
    engine.offer(weights(1))
    assert not engine.offer(weights(2), data="a").saved
    assert engine.offer(weights(3), data="b").saved  # .71 > (.5 + .9) / 2
    assert len(judge.asked) == len(table)


def test_dsed_weighs_batches_by_their_samples() -> None:
    sizes = {"a": 10, "b": 90}
    table = {(1, "a"): 0.5, (1, "b"): 0.5, (2, "a"): 0.5, (3, "a"): 1.0, (3, "b"): 0.5}

    def judge(state: Any, data: str) -> tuple[float, int]:
        return table[float(state["w"][0]), data], sizes[data]

    engine = production(DSED.format("0.05"), evaluate=judge)
    engine.offer(weights(1))
    assert not engine.offer(weights(2), data="a").saved
    # new: (10 + 45) / 100 = .55, old: .5, allowed: round(5) / 100. A tie.
    assert not engine.offer(weights(3), data="b").saved


def test_ties_of_float32_accuracies_are_ties() -> None:
    def judge(state: Any, data: Any) -> Any:
        return np.float32(79 / 86)

    engine = production(DSED.format("0"), evaluate=judge)
    pair = (np.zeros((86, 2)), np.zeros(86))
    engine.offer(weights(1))
    for value in range(2, 9):
        assert not engine.offer(weights(value), data=pair).saved


@pytest.mark.parametrize(("bound", "kept"), [("", 4), (",loub=1", 2), (",loub=2", 1)])
def test_the_loss_counts_up_to_its_bound(bound: str, kept: int) -> None:
    """p = loss / loub, .5 if it is not named; the losses of versions that are skipped count not."""
    engine = production(f"every:1/1 | topk:1,loss=linear{bound} | xor | sparse | zstd:1")
    engine.offer({"w": np.zeros(4, np.float32)}, loss=0.0)
    assert not engine.offer({"w": np.array([1, 2, 3, 4], np.float32)}, loss=9.0).saved
    made = engine.offer({"w": np.array([1, 2, 3, 4], np.float32)}, loss=0.5)
    assert np.count_nonzero(made.production["w"]) == kept


def test_what_is_never_changed() -> None:
    engine = production("topk:0 | xor | lsb:23 | sparse | zstd:1", exact=["buffer"])
    state = {
        "w": np.arange(4, dtype=np.float32),
        "buffer": np.arange(4, dtype=np.float32),
        "count": np.arange(4),
    }
    engine.offer(state)
    moved = {name: array + 1 for name, array in state.items()}
    moved["w"][2] = np.nan
    made = engine.offer(moved).production
    assert made["w"].tobytes() == np.array([0, 1, np.nan, 3], np.float32).tobytes()
    assert made["buffer"].tobytes() == moved["buffer"].tobytes()
    assert made["count"].tobytes() == moved["count"].tobytes()
    assert list(made) == list(state)


def test_tied_weights_stay_equal() -> None:
    """Of all layers together, a tie at the threshold must not choose one name of a pair."""
    table = np.zeros(3, np.float32)
    engine = production("topk-all:0.5 | xor | sparse | zstd:1")
    engine.offer({"in": table, "out": table, "b": np.zeros(2, np.float32)})
    table[:] = 1
    made = engine.offer({"in": table, "out": table, "b": np.zeros(2, np.float32)}).production
    assert made["in"].tobytes() == made["out"].tobytes()
    assert list(made) == ["in", "out", "b"]
    assert np.count_nonzero(made["in"]) == 3  # half of 5 different entries


def test_going_on_from_what_is_live() -> None:
    live = weights(1.0)
    engine = production(LSB, previous=live)
    assert engine.offer(weights(1.3)).production["w"][0] == 1.25


def test_bfloat16_as_words() -> None:
    words = np.array([0x3F80] * 3, np.uint16)
    engine = production(LSB, dtypes={"w": "bfloat16"})
    engine.offer({"w": words})
    assert engine.offer({"w": words ^ 0x003F}).production["w"].tolist() == [0x3FB0] * 3


def test_wrong_usage_is_named() -> None:
    with pytest.raises(WrongUsage, match=r"dsed:0\.01 compares accuracies"):
        production(DSED.format("0.01"))
    engine = production(DSED.format("0"), evaluate=lambda state, data: 0.5)
    engine.offer(weights(1))
    with pytest.raises(WrongUsage, match=r"dsed:0 needs the data"):
        engine.offer(weights(2))
    with pytest.raises(WrongUsage, match="number of samples"):
        engine.offer(weights(2), data=np.zeros((3, 2)))
    for accuracy in (1.2, -0.1, float("nan")):
        engine = production(DSED.format("0"), evaluate=lambda state, data, a=accuracy: (a, 3))
        engine.offer(weights(1))
        with pytest.raises(WrongUsage, match="evaluate returned an accuracy of"):
            engine.offer(weights(2), data="a")
    adaptive = production("topk:0.1,loss=-0.5 | xor | sparse | zstd:1")
    with pytest.raises(WrongUsage, match="loss of the batch"):
        adaptive.offer(weights(1))
    with pytest.raises(InvalidPipeline):
        production("lsb:20 | xor | planes | zstd:1")


@pytest.mark.parametrize(
    "answer",
    [None, "x", "0.5", [0.5, 3], (0.5,), (0.5, 3, 1), (0.5, "a"), (0.5, 3.0), ("a", 3), (None, 3)],
    ids=repr,
)
def test_what_evaluate_returns_is_checked(answer: Any) -> None:
    engine = production(DSED.format("0"), evaluate=lambda state, data: answer)
    engine.offer(weights(1))
    with pytest.raises(WrongUsage, match=r"evaluate returned .* must return an accuracy") as raised:
        engine.offer(weights(2), data=(np.zeros((3, 2)), np.zeros(3)))
    assert ("return statement" in (raised.value.hint or "")) == (answer is None)


def test_what_evaluate_may_return() -> None:
    data = (np.zeros((4, 2)), np.zeros(4))
    for answer in (1, 0.5, np.float32(0.5), np.ones(()), torch.tensor(0.5), (True, np.int64(4))):
        engine = production(DSED.format("0"), evaluate=lambda state, data, a=answer: a)
        engine.offer(weights(1))
        assert not engine.offer(weights(2), data=data).saved


@pytest.mark.parametrize(
    "answer", [None, "x", b"1", ["x"], [None], [[1.0, 2.0]], [torch.ones(2)]], ids=repr
)
def test_what_monitor_returns_is_checked(answer: Any) -> None:
    pytest.importorskip("river")
    engine = production(f"drift:adwin | {LSB}", monitor=lambda data: answer)
    with pytest.raises(WrongUsage, match=r"monitor returned an object of type \w+: it must"):
        engine.offer(weights(1), data=1)


def test_what_monitor_may_return() -> None:
    pytest.importorskip("river")
    for answer in (1, 0.5, np.ones(()), torch.tensor(0.5), np.ones(3), (x for x in (1, 2.5)), []):
        engine = production(f"drift:adwin | {LSB}", monitor=lambda data, a=answer: a)
        assert engine.offer(weights(1), data=1).saved


@pytest.mark.parametrize(
    "data", ["abc", ["abc"], object(), [[[1], [1, 2]], [0]]], ids=lambda data: type(data).__name__
)
def test_data_without_inputs_to_watch(data: Any) -> None:
    pytest.importorskip("river")
    engine = production(f"drift:adwin | {LSB}")
    with pytest.raises(WrongUsage, match="the inputs in data, of type"):
        engine.offer(weights(1), data=data)


def test_a_lossless_pipeline_takes_everything_over() -> None:
    engine = production("lossless")
    for value in (1.0, 1.3, float("inf")):
        made = engine.offer(weights(value))
        assert made.saved and made.production["w"][0] == np.float32(value)


@pytest.mark.parametrize("detector", ["adwin", "page-hinkley"])
def test_drift_of_the_incoming_data_alone(detector: str) -> None:
    """Stationary data makes no version; a jump of the mean makes one soon after."""
    pytest.importorskip("river")
    random = np.random.default_rng(3)
    engine = production(f"drift:{detector} | {LSB}")
    jump, saved = 30, []
    for i in range(45):
        mean = 0.2 if i < jump else 4.0
        inputs = random.normal(mean, 0.1, (64, 7))
        if engine.offer(weights(i), data=(inputs, np.zeros(64))).saved:
            saved.append(i)
    assert saved[0] == 0
    assert all(i >= jump for i in saved[1:])
    assert saved[1] <= jump + 3


def test_a_monitor_of_ones_own_and_a_drift_that_has_to_wait() -> None:
    """every skips what the drift asked for; the next version that may be saved is."""
    pytest.importorskip("river")
    engine = production(f"every:1/3 | drift:adwin | {LSB}", monitor=lambda data: data)
    values = [0.0] * 600 + [9.0] * 600
    batches = [values[i : i + 200] for i in range(0, 1200, 200)]
    saved = [engine.offer(weights(i), data=batch).saved for i, batch in enumerate(batches)]
    # The drift comes with batch 3, which is every's third to skip; batch 4 may be saved.
    assert saved == [True, False, False, False, True, False]
    with pytest.raises(WrongUsage, match="data of the batch"):
        engine.offer(weights(1))
    with pytest.raises(WrongUsage, match="not a number"):
        engine.offer(weights(1), data=[float("nan")])


@pytest.mark.parametrize(
    "wrong",
    [
        {"offers": "1"}, {"offers": -1}, {"drifted": None}, {"seen": "x"},
        {"accuracy": "1/0"}, {"accuracy": "abc"}, {"accuracy": "1e999999999"}, {"batches": [3]},
        {"batches": [[1, 0]]},
    ],
    ids=str,
)  # fmt: skip
def test_decisions_that_no_recorder_wrote_are_ignored(wrong: dict[str, object]) -> None:
    """They may come out of somebody else's repository."""
    pipeline = "every:2/3 | xor | dsed:0 | sparse | zstd:1"
    sound = {"pipeline": pipeline, "offers": 4, "carried": 0.0, "drifted": False,
             "batches": [], "seen": 0, "accuracy": "0"}  # fmt: skip
    engine = production(pipeline, evaluate=Judge({}))
    before = engine.memory()
    engine.restore({**sound, **wrong})
    after = engine.memory()
    assert after == before or after == {**before, "offers": 4}
