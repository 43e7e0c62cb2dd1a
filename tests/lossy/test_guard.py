"""The guard: versions are stored finer while production weights lose more than a bound."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import InvalidPipeline, WrongUsage
from mvc.lossy.guard import AccuracyGuard, GuardStage, Paired
from mvc.lossy.production import Production
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.table import PRESETS

GRID = "grid:4 | steps | guard:0.01 | gaps | zstd:huff"
LABELS = np.arange(200) % 4


class Judge:
    """Sample i is right if entry i of the weights is near to what the training has."""

    def __init__(self, tolerance: float, *, by_sample: bool = True) -> None:
        self.tolerance, self.by_sample = tolerance, by_sample
        self.rng = np.random.default_rng(0)
        self.truth = self.rng.normal(size=200).astype(np.float32)

    def __call__(self, state: Any, data: Any) -> Any:
        near = np.abs(state["w"] - self.truth)[np.asarray(data[0], np.int64)] <= self.tolerance
        return near if self.by_sample else float(near.mean())

    def batch(self, count: int = 40) -> tuple[Any, Any]:
        rows = self.rng.integers(0, 200, count)
        return rows, LABELS[rows]


def engine(judge: Judge, text: str = GRID) -> Production:
    return Production(Pipeline.parse(text), evaluate=judge)


def offered(production: Production, judge: Judge, data: Any = None) -> Any:
    return production.offer({"w": judge.truth.copy()}, loss=1.0, data=data or judge.batch())


def furthest(production: Production, judge: Judge) -> float:
    assert production.live is not None
    return float(np.abs(production.live["w"] - judge.truth).max())


@pytest.mark.parametrize("by_sample", [True, False])
def test_a_version_that_loses_too_much_is_made_finer_at_once(by_sample: bool) -> None:
    judge = Judge(0.3, by_sample=by_sample)
    plain, guarded = engine(judge, "grid:4 | steps | gaps"), engine(judge)
    offered(plain, judge)
    offered(guarded, judge)
    assert furthest(plain, judge) > 0.9
    assert furthest(guarded, judge) < 0.6
    for _ in range(20):
        offered(guarded, judge)
    data = np.arange(200), LABELS
    assert np.mean(judge(guarded.live, data)) >= 0.98


@pytest.mark.parametrize("text", [GRID, "topk:0.1 | xor | lsb:20 | guard:0.01 | sparse | zstd:1"])
def test_at_last_it_is_the_exact_training_weights(text: str) -> None:
    judge = Judge(0)
    production = engine(judge, text)
    for _ in range(30):
        judge.truth = judge.truth + np.float32(0.01)
        decision = offered(production, judge)
    assert decision.production["w"].tobytes() == judge.truth.tobytes()


def test_it_goes_back_where_there_is_room() -> None:
    judge = Judge(0)
    production = engine(judge)
    offered(production, judge)
    assert furthest(production, judge) == 0
    judge.tolerance = 9
    for _ in range(400):
        offered(production, judge)
    assert furthest(production, judge) > 0.9


def test_it_goes_back_and_forth_ever_more_rarely() -> None:
    judge = Judge(0.3)
    production = engine(judge)
    levels = []
    for _ in range(400):
        offered(production, judge)
        levels.append(production.memory()["guard.level"][0])
        assert np.mean(judge(production.live, (np.arange(200), LABELS))) >= 0.9
    assert np.count_nonzero(np.diff(levels)) <= 2 * math.log2(400 / 10)


def test_without_a_drop_it_stays_as_coarse_as_it_was_written() -> None:
    judge = Judge(9)
    plain, guarded = engine(judge, "grid:4 | steps | gaps"), engine(judge)
    for _ in range(5):
        data = judge.batch()
        offered(plain, judge, data)
        offered(guarded, judge, data)
        assert plain.live is not None and guarded.live is not None
        assert plain.live["w"].tobytes() == guarded.live["w"].tobytes()


def test_a_single_label_is_enough() -> None:
    class OneLabel(Judge):
        def __call__(self, state: Any, data: Any) -> Any:
            return super().__call__(state, data) | (np.asarray(data[1]) != 3)

    judge = OneLabel(0.05)
    production = engine(judge, "grid:4 | steps | guard:0.2 | gaps")
    for _ in range(20):
        offered(production, judge)
    assert furthest(production, judge) < 0.9


def test_a_skip_needs_live_weights_within_the_bound() -> None:
    judge = Judge(0.05)
    skips = "xor | lsb:2 | {}dsed:1 | planes | zstd:1"
    plain, guarded = engine(judge, skips.format("")), engine(judge, skips.format("guard:0.01 | "))
    for production in (plain, guarded):
        offered(production, judge)
    judge.truth = judge.truth + np.float32(1)
    assert not offered(plain, judge).saved
    assert offered(guarded, judge).saved
    assert not offered(guarded, judge).saved  # the live weights are as good as the new ones


@pytest.mark.parametrize("kind", [torch.tensor, np.asarray, list])
def test_it_goes_on_after_a_restart(kind: Any) -> None:
    judge = Judge(0.05)
    first = engine(judge)
    rows, labels = judge.batch()
    offered(first, judge, (kind(rows.tolist()), kind(labels.tolist())))
    for samples in (True, False):
        memory = first.memory(samples=samples)
        again = Production(first.pipeline, evaluate=judge, previous=first.live)
        again.restore(memory)
        assert again.memory(samples=False).keys() == first.memory().keys()
        assert again.memory()["guard.level"] == first.memory()["guard.level"]
        assert ("guard.samples" in again.memory(samples=True)) == samples
        offered(again, judge, (kind(rows.tolist()), kind(labels.tolist())))
        assert furthest(again, judge) < 0.2


@given(
    st.integers(1, 12), st.floats(0, 0.5), st.floats(0, 1), st.sampled_from([0, 0.001, 0.01, 0.5])
)
def test_evidence_is_fair_where_the_drop_is_the_bound(
    samples: int, more: float, ties: float, bound: float
) -> None:
    """Its expectation is 1 over all that can come of independent samples; if less is lost, less."""
    won = more * (1 - bound) * (1 - ties)
    fair = [bound + won, won, 1 - bound - 2 * won]
    less = [fair[0] / 2, fair[1], fair[2] + fair[0] / 2]
    means = []
    for chances in (fair, less):
        mean = 0.0
        for lost in range(samples + 1):
            for wins in range(samples + 1 - lost):
                counts = lost, wins, samples - lost - wins
                ways = math.factorial(samples) / math.prod(map(math.factorial, counts))
                chance = ways * math.prod(p**n for p, n in zip(chances, counts, strict=True))
                mean += chance * math.exp(Paired(samples, lost, wins).evidence(bound))
        means.append(mean)
    assert means[0] == pytest.approx(1)
    assert means[1] <= means[0] + 1e-9


TRAINING, PRODUCTION = {"wrong": np.array([-1])}, {"wrong": np.array([1])}


def answers(state: Any, data: Any) -> Any:
    """An input says which weights alone have it right: 1 training, -1 production weights."""
    return np.asarray(data[0]) != state["wrong"]


def accuracy(state: Any, data: Any) -> float:
    return float(answers(state, data).mean())


def finer_at(
    seed: int, bound: float, drop: float, differ: float, batches: int, evaluate: Any = answers
) -> float:
    """The batch at which the guard makes versions finer. Labels come one after the other."""
    rng = np.random.default_rng(seed)
    guard = AccuracyGuard(GuardStage.read("guard", str(bound)), 4, evaluate)
    chances = [(differ + drop) / 2, (differ - drop) / 2, 1 - differ]
    for number in range(batches + 1):
        size = rng.integers(50, 101)
        inputs = rng.choice([1, -1, 0], size, p=chances)
        data = inputs, rng.integers(0, min(10, 5 + number), size)
        guard.add_batch(PRODUCTION if number else None, TRAINING, data)
        if guard.level or guard.refuses(PRODUCTION):
            return number
    return math.inf


def noticed(bound: float, differ: float, runs: int) -> float:
    """In how many runs within 30 batches, where the drop is 5 standard errors above the bound."""
    drop = bound + 5 * math.sqrt(differ / (30 * 75))
    return sum(finer_at(seed, bound, drop, differ, 30) <= 30 for seed in range(runs)) / runs


def mistaken(bound: float, differ: float, runs: int) -> float:
    """In how many within 150 batches, where the drop is the bound."""
    return sum(finer_at(seed, bound, bound, differ, 150) <= 150 for seed in range(runs)) / runs


def test_a_drop_is_noticed_and_none_is_not() -> None:
    assert noticed(0.001, 0.1, 8) >= 0.75
    assert mistaken(0.001, 0.1, 4) <= 0.25


@pytest.mark.long
@pytest.mark.parametrize(("bound", "differ"), [(0, 0.3), (0.001, 0.05), (0.01, 0.1)])
def test_it_errs_as_rarely_as_is_said(bound: float, differ: float) -> None:
    assert mistaken(bound, differ, 200) <= 0.05
    assert noticed(bound, differ, 1000) >= 0.95


@pytest.mark.parametrize("seed", range(3))
def test_accuracies_show_no_more_than_answers(seed: int) -> None:
    by_sample = finer_at(seed, 0.01, 0.1, 0.2, 30)
    assert by_sample <= finer_at(seed, 0.01, 0.1, 0.2, 30, accuracy) < math.inf


@pytest.mark.parametrize(
    "wrong",
    [
        {"guard.level": [99, 0, 10, 1, 0]},
        {"guard.level": [1, 0, 10]},
        {"guard.level": "fine"},
        {"guard.labels": [1]},
        {"guard.labels": ["all"] * 300},
        {
            "guard.labels": [f"label {i}" for i in range(257)],
            "guard.accounts": np.zeros((257, 6), np.int64),
        },
        {"guard.accounts": np.zeros((1, 3), np.float32)},
        {"guard.accounts": np.full((5, 3), -1)},
        {"guard.accounts": np.full((5, 6), -1)},
        {"guard.accounts": np.full((5, 6), np.iinfo(np.int64).max)},
        {"guard.accounts": np.tile([0, 0, 1 << 40], (5, 2))},
        {"guard.level": [1, 0, 0, 1, 0]},
        {"guard.level": [1, 0, 10, 0, 0]},
        {"guard.level": [1, 1 << 99, 10, 1, 0]},
        {"guard.samples": [np.zeros(3), np.zeros(2)]},
        {"guard.samples": 5},
    ],
)
def test_memory_that_it_never_made_is_ignored(wrong: dict[str, Any]) -> None:
    judge = Judge(0.05)
    first = engine(judge)
    offered(first, judge)
    again = engine(judge)
    again.restore({**first.memory(samples=True), **wrong})
    offered(again, judge)
    offered(again, judge)
    assert furthest(again, judge) < 0.9


def test_the_reservoir_has_the_newest_samples_of_every_label() -> None:
    judge = Judge(9)
    production = engine(judge, GRID.replace("0.01", "0.01,keep=3"))
    batches = [(np.arange(at, at + 40), LABELS[at : at + 40]) for at in (0, 40, 80)]
    for data in batches:
        offered(production, judge, data)
    inputs, labels = production.memory(samples=True)["guard.samples"]
    assert sorted(inputs.tolist()) == list(range(108, 120))
    assert sorted(labels.tolist()) == sorted([0, 1, 2, 3] * 3)


def test_labels_beyond_the_most_that_are_kept_count_in_the_sum() -> None:
    judge = Judge(9)
    production = engine(judge)
    for at in range(3):
        offered(production, judge, (np.arange(200), np.arange(200) + 200 * at))
    memory = production.memory(samples=True)
    assert len(memory["guard.labels"]) <= 257
    assert len(memory["guard.samples"][1]) <= 256


def test_what_it_cannot_go_by() -> None:
    with pytest.raises(WrongUsage, match=r"stage guard:0.01 compares accuracies"):
        Production(Pipeline.parse(GRID))
    judge = Judge(9)
    production = engine(judge)
    with pytest.raises(WrongUsage, match="number of samples of a batch is unknown"):
        offered(production, judge, "words")
    with pytest.raises(WrongUsage, match="one label for each input"):
        offered(production, judge, (np.zeros(3), np.zeros((3, 2))))
    offered(production, judge)
    with pytest.raises(WrongUsage, match="needs the data of the batch"):
        production.offer({"w": judge.truth})
    with pytest.raises(WrongUsage, match="3 results for 40 samples"):
        Production(
            Pipeline.parse(GRID), evaluate=lambda *_: np.ones(3, np.bool_), previous=production.live
        ).offer({"w": judge.truth}, data=judge.batch())


@pytest.mark.parametrize(
    "text", ["guard:0.1 | planes", "guard:0.1 | xor | planes", "xor | guard:2 | planes"]
)
def test_where_it_may_not_stand(text: str) -> None:
    with pytest.raises(InvalidPipeline, match="guard"):
        Pipeline.parse(text)


@pytest.mark.parametrize(
    "text", ["lsb:20,msb=11 | planes", *(line for line in PRESETS.values() if "lc" not in line)]
)
def test_every_finer_form_is_a_pipeline_of_its_own(text: str) -> None:
    line = f"xor | {text}" if text.startswith("lsb") else text
    levels = Pipeline.parse(line).levels()
    assert not levels[-1].lossy and not any(level.decisions for level in levels)
    assert levels[-1].text == Pipeline.parse(line).coding().text
    for level in levels:
        assert Pipeline.parse(level.text) == level
        assert level.coding().text == levels[-1].text


@pytest.mark.parametrize(
    "answer",
    [
        np.array(["a"] * 40),
        np.ones(40, complex),
        np.array(["2020"] * 40, "M8[D]"),
        torch.ones(40).to_sparse(),
    ],
)
def test_answers_that_are_none(answer: Any) -> None:
    production = Production(Pipeline.parse(GRID), evaluate=lambda *_: answer)
    with pytest.raises(WrongUsage, match="evaluate returned an object of type"):
        production.offer({"w": np.ones(3, np.float32)}, data=(np.arange(40), np.arange(40)))


@pytest.mark.parametrize("inputs", [{"a": 1, "b": 2}, {1, 2}, "ab", b"ab", memoryview(b"ab")])
def test_inputs_that_are_no_rows(inputs: Any) -> None:
    judge = Judge(9)
    production = engine(judge)
    with pytest.raises(WrongUsage, match="one label for each input"):
        offered(production, judge, (inputs, [1, 2]))
    memory = engine(judge).memory() | {"guard.samples": [inputs, [1, 2]]}
    production.restore({**production.memory(), **memory})
    offered(production, judge)
    assert production.memory(samples=True)["guard.samples"][1].tolist()


def test_samples_that_are_kept_keep_nothing_that_they_were_computed_from() -> None:
    production = Production(Pipeline.parse(GRID), evaluate=lambda _, data: np.ones(len(data[1])))
    source = torch.ones(40, 3, requires_grad=True)
    for _ in range(3):
        production.offer({"w": np.ones(3, np.float32)}, data=(source * 2, torch.arange(40) % 4))
    assert not production.memory(samples=True)["guard.samples"][0].requires_grad


def test_samples_of_a_run_before_go_where_the_batches_are() -> None:
    """They come back from a file, so in the processor's memory."""
    judge = Judge(9)
    first = engine(judge)
    labels = torch.arange(40) % 4
    first.offer({"w": judge.truth}, data=(torch.arange(40), labels))
    where: list[Any] = []

    def evaluate(_: Any, data: Any) -> Any:
        where.append((data[0].device.type, data[1].device.type))
        return np.ones(len(data[1]), np.bool_)

    again = Production(first.pipeline, evaluate=evaluate, previous=first.live)
    again.restore(first.memory(samples=True))
    for _ in range(2):
        again.offer({"w": judge.truth}, data=(torch.arange(40).to("meta"), labels))
    assert set(where) == {("meta", "cpu")}


def test_as_many_labels_as_samples() -> None:
    judge = Judge(9, by_sample=False)
    production = engine(judge)
    data = np.zeros(8000, np.int64), np.arange(8000)
    began = time.process_time()
    offered(production, judge, data)
    assert time.process_time() - began < 3
