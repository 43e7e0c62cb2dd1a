"""Pipelines over one recorded training: what is deployed is stored, and counted honestly."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from mvc.evaluation.common.results import bytes_in
from mvc.evaluation.drift.measure import Results, Scorer, curve_difference, normalised, replay
from mvc.evaluation.drift.thesis import Configuration

from mvc.codecs.pipeline import PRESETS
from mvc.errors import BadModelFile, DamagedData
from mvc.evaluation.drift import measure
from mvc.io.files import FileSystem
from tests.evaluation.small import BATCHES

FS = FileSystem()
PIPELINES = sorted(name for name in PRESETS if name.startswith(("vsol", "frontier", "lossless")))


@pytest.mark.parametrize("preset", PIPELINES)
def test_every_version_comes_back_as_it_was_deployed(tmp_path, stream, preset):
    """``replay`` compares every version; here: what is counted fits what was done."""
    said = []
    made = replay(stream, Configuration(preset, 5), tmp_path, FS, lambda *words: said.append(words))
    assert len(made.save) == len(made.load) == BATCHES - 1
    assert 1 <= made.saved <= BATCHES
    asked = 48 * made.saved  # bytes: that each version was asked for is recorded
    assert made.folder + asked == bytes_in(tmp_path / ".mvc")
    assert sum(made.bytes.values()) <= made.folder
    lossless = preset in {"lossless", "vsol"}
    assert (made.accuracies is None) == lossless
    if lossless:  # else a tensor may be as it was, and a reset point need not be a whole one
        assert made.reset_points == 1 + (BATCHES - 1) // 5
    if "slow" not in preset and not preset.startswith("frontier"):
        assert made.saved == BATCHES
    assert {what for what, _, _ in said} == {"saving", "reading"}


def test_a_wrong_bit_is_found(tmp_path, stream, monkeypatch):
    honest = measure._digest
    seen = []

    def digest(state):
        seen.append(state)
        if len(seen) == BATCHES + 7:  # the seventh version that is read back
            state = {**state, "fc2.bias": -state["fc2.bias"]}
        return honest(state)

    monkeypatch.setattr(measure, "_digest", digest)
    with pytest.raises(DamagedData, match=r"version 6 \(.*\) is not what was deployed"):
        replay(stream, Configuration("vsol", 5), tmp_path, FS)


def test_digests_see_names_shapes_signs_and_types():
    one = {"a": np.zeros(4, np.float32)}
    others = [
        {"b": np.zeros(4, np.float32)},
        {"a": np.zeros((2, 2), np.float32)},
        {"a": -np.zeros(4, np.float32)},
        {"a": np.zeros(2, np.float64)},
    ]
    digests = {measure._digest(state) for state in [one, *others]}
    assert len(digests) == 5


def test_measured_once(tmp_path, stream, monkeypatch):
    results = Results(stream, tmp_path, FS)
    first = results.measured(Configuration("vsol-0-slow", 148))
    assert first.pipeline == PRESETS["vsol-0-slow"]
    assert (first.versions, first.reset_points) == (BATCHES, 1)
    assert first.saved < BATCHES
    assert first.folder == sum(first.bytes[kind] for kind in ("delta", "full")) + first.other_bytes
    assert first.save <= first.save_max
    assert first.load <= first.load_max
    assert first.difference == pytest.approx(100 * (first.accuracy - first.lossless))
    assert not [name for name in FS.list(tmp_path / stream.experiment.name) if "." not in name]

    def never(*_):
        raise AssertionError("it was measured again")

    monkeypatch.setattr("mvc.evaluation.drift.measure.replay", never)
    assert Results(stream, tmp_path, FS).measured(Configuration("vsol-0-slow", 148)) == first


def test_what_an_interruption_left_is_removed(tmp_path, stream, monkeypatch):
    results = Results(stream, tmp_path, FS)

    def interrupted(stream, configuration, folder, *rest):
        replay(stream, configuration, folder, *rest)
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr("mvc.evaluation.drift.measure.replay", interrupted)
        with pytest.raises(KeyboardInterrupt):
            results.measured(Configuration("vsol", 10))
    assert results.measured(Configuration("vsol", 10)).saved == BATCHES
    left = {name.partition(".")[2] for name in FS.list(tmp_path / stream.experiment.name)}
    assert left == {"json", "lock"}


def test_two_at_once_measure_once(tmp_path, stream, monkeypatch):
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return replay(*arguments)

    monkeypatch.setattr("mvc.evaluation.drift.measure.replay", counted)
    both = [Results(stream, tmp_path, FS) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda each: each.measured(Configuration("vsol", 9)), both)
    assert one == other
    assert len(calls) == 1


def test_a_result_that_is_none_is_named(tmp_path, stream):
    results = Results(stream, tmp_path, FS)
    results.measured(Configuration("zstd:1", 1))
    folder = tmp_path / stream.experiment.name
    (file,) = (f for f in folder.glob("*.json") if f.name != "lossless.json")
    file.write_text("{")
    with pytest.raises(BadModelFile, match=file.name):
        results.measured(Configuration("zstd:1", 1))


def test_prequential_accuracy_by_hand(tmp_path, stream):
    """Version n, trained on batch n - 1, is asked for batch n; and for the last one."""
    made = Results(stream, tmp_path, FS).lossless()
    model = stream.experiment.recipe.build(stream.experiment.data).eval()
    following, last = [], []
    for version in stream.versions[1:]:
        state = stream.state(version)
        model.load_state_dict({name: torch.from_numpy(a) for name, a in state.items()})
        for number, into in ((version.number, following), (BATCHES - 1, last)):
            inputs, labels = stream.batch(number)
            with torch.no_grad():
                into.append((model(inputs).argmax(1) == labels).double().mean().item())
    assert made.next == tuple(following)
    assert made.last == tuple(last)
    assert made.prequential == pytest.approx(np.mean(following))
    again = json.loads((tmp_path / stream.experiment.name / "lossless.json").read_text())
    assert again == {"next": following, "last": last}


def test_scoring_does_not_change_weights(stream):
    state = stream.state(stream.versions[1])
    before = {name: array.copy() for name, array in state.items()}
    scorer = Scorer(stream)
    scorer.add(state)
    scorer.add(stream.state(stream.versions[2]))
    assert all(np.array_equal(state[name], before[name]) for name in before)


def test_normalised_curves():
    assert normalised([0.25, 0.5, 0.75]).tolist() == [0, 0.5, 1]
    assert normalised([0.5, 0.5]).tolist() == [0, 0]


def test_curve_difference_is_the_mean_over_all_pairs():
    assert curve_difference([[0, 1]], [[0, 5]]) == 0
    assert curve_difference([[0, 1]], [[1, 0]]) == 1
    # normalised: (0, 1, 1) and (0, 0, 1) against (0, 1, 0): 1/3 and 2/3
    assert curve_difference([[1, 3, 3], [2, 2, 9]], [[0, 1, 0]]) == pytest.approx(0.5)


def test_plain_chain(stream, tmp_path, monkeypatch):
    coded, newest = measure.encode_chain(state for _, state in stream.states())
    assert len(coded) == BATCHES
    assert np.array_equal(measure.decode_chain(coded, len(newest)), newest)
    results = Results(stream, tmp_path, FS)
    assert 0 < results.plain_seconds(3) == results.plain_seconds(3)
    monkeypatch.setattr(measure, "decode_chain", lambda coded, count: np.zeros(count, np.uint32))
    with pytest.raises(DamagedData):
        results.plain_seconds(4)


def test_size_of_a_folder(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_bytes(bytes(10))
    (tmp_path / "a" / "d").write_bytes(bytes(5))
    assert bytes_in(tmp_path / "a") == 15
