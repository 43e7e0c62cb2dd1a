"""Pipelines over one recorded training: what is deployed is stored, and counted honestly."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from mvc.errors import BadModelFile, DamagedData
from mvc.pipelines.table import PRESETS
from reproduce.drift import measure
from reproduce.drift.measure import Scorer, curve_difference, digest_of, normalised, replay
from reproduce.drift.thesis import Configuration
from reproduce.workspace import Workspace, bytes_in
from tests.reproduce.drift.small import BATCHES

PIPELINES = sorted(name for name in PRESETS if name.startswith(("vsol", "frontier", "lossless")))


@pytest.mark.parametrize("preset", PIPELINES)
def test_every_version_comes_back_as_it_was_deployed(tmp_path, stream, preset):
    """``replay`` compares every version; here: what is counted fits what was done."""
    said = []
    made = replay(stream, Configuration(preset, 5), tmp_path, lambda *words: said.append(words))
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


def test_a_wrong_bit_is_found(tmp_path, stream):
    seen = []

    def digest(state):
        seen.append(state)
        if len(seen) == BATCHES + 7:  # the seventh version that is read back
            state = {**state, "fc2.bias": -state["fc2.bias"]}
        return digest_of(state)

    with pytest.raises(DamagedData, match=r"version 6 \(.*\) is not what was deployed"):
        replay(stream, Configuration("vsol", 5), tmp_path, digest=digest)


def test_digests_see_names_shapes_signs_and_types():
    one = {"a": np.zeros(4, np.float32)}
    others = [
        {"b": np.zeros(4, np.float32)},
        {"a": np.zeros((2, 2), np.float32)},
        {"a": -np.zeros(4, np.float32)},
        {"a": np.zeros(2, np.float64)},
    ]
    digests = {digest_of(state) for state in [one, *others]}
    assert len(digests) == 5


def left(folder, stream):
    """The kinds of files that there are for a stream."""
    own = folder / "results" / stream.experiment.name
    return {file.name.partition(".")[2] for file in own.iterdir()}


def test_measured_once(tmp_path, stream, monkeypatch):
    place = Workspace(tmp_path)
    first = measure.measured(stream, Configuration("vsol-0-slow", 148), place)
    assert first["pipeline"] == PRESETS["vsol-0-slow"]
    assert (first["versions"], first["reset_points"]) == (BATCHES, 1)
    assert first["saved"] < BATCHES
    assert first["folder"] >= sum(first["bytes"].values()) > 0
    assert first["save"] <= first["save_max"]
    assert first["load"] <= first["load_max"]
    assert first["accuracy"] == pytest.approx(np.mean(first["next"]))
    assert left(tmp_path, stream) == {"json", "lock"}

    def never(*_):
        raise AssertionError("it was measured again")

    monkeypatch.setattr("reproduce.drift.measure.replay", never)
    assert measure.measured(stream, Configuration("vsol-0-slow", 148), Workspace(tmp_path)) == first


def test_what_an_interruption_left_is_removed(tmp_path, stream, monkeypatch):
    place = Workspace(tmp_path)

    def interrupted(stream, configuration, folder, *rest):
        replay(stream, configuration, folder, *rest)
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr("reproduce.drift.measure.replay", interrupted)
        with pytest.raises(KeyboardInterrupt):
            measure.measured(stream, Configuration("vsol", 10), place)
    assert measure.measured(stream, Configuration("vsol", 10), place)["saved"] == BATCHES
    assert left(tmp_path, stream) == {"json", "lock"}


def test_two_at_once_measure_once(tmp_path, stream, monkeypatch):
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return replay(*arguments)

    monkeypatch.setattr("reproduce.drift.measure.replay", counted)
    both = [Workspace(tmp_path) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        vsol = Configuration("vsol", 9)
        one, other = pool.map(lambda place: measure.measured(stream, vsol, place), both)
    assert one == other
    assert len(calls) == 1


def test_a_result_that_is_none_is_named(tmp_path, stream):
    place = Workspace(tmp_path)
    measure.measured(stream, Configuration("zstd:1", 1), place)
    folder = tmp_path / "results" / stream.experiment.name
    (file,) = (f for f in folder.glob("*.json") if f.name != "lossless.json")
    file.write_text("{")
    with pytest.raises(BadModelFile, match=file.name):
        measure.measured(stream, Configuration("zstd:1", 1), place)


def test_prequential_accuracy_by_hand(tmp_path, stream):
    """Version n, trained on batch n - 1, is asked for batch n; and for the last one."""
    made = measure.lossless(stream, Workspace(tmp_path))
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
    again = json.loads(
        (tmp_path / "results" / stream.experiment.name / "lossless.json").read_text()
    )
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
    place = Workspace(tmp_path)
    assert 0 < measure.plain_seconds(stream, 3, place) == measure.plain_seconds(stream, 3, place)
    monkeypatch.setattr(measure, "decode_chain", lambda coded, count: np.zeros(count, np.uint32))
    with pytest.raises(DamagedData):
        measure.plain_seconds(stream, 4, place)


def test_size_of_a_folder(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_bytes(bytes(10))
    (tmp_path / "a" / "d").write_bytes(bytes(5))
    assert bytes_in(tmp_path / "a") == 15
