"""A training is recorded once, and goes on after a kill as if nothing had been."""

from __future__ import annotations

import signal
from dataclasses import replace

import numpy as np
import pytest

from mvc.errors import MvcError, WrongUsage
from mvc.training.resume import resume
from reproduce.drift.split import Experiment, experiments
from reproduce.drift.stream import Stream, learn, record
from tests.reproduce import child
from tests.reproduce.drift.small import BATCHES, SETTINGS, experiment, recorded


def bits(stream):
    return [
        (version.number, version.loss, {name: a.tobytes() for name, a in state.items()})
        for version, state in stream.states()
    ]


def test_versions(stream):
    assert [version.number for version in stream.versions] == list(range(BATCHES))
    assert all(version.seconds > 0 for version in stream.versions[1:])
    assert np.isnan(stream.versions[0].seconds)
    state = stream.state(stream.versions[3])
    assert {name: array.shape for name, array in state.items()} == {
        "fc1.weight": (32, 64),
        "fc1.bias": (32,),
        "fc2.weight": (10, 32),
        "fc2.bias": (10,),
    }
    for (version, one), number in zip(stream.states(), range(BATCHES), strict=True):
        assert version.number == number
        other = stream.state(version)
        assert all(np.array_equal(one[name], other[name]) for name in other)


def test_version_n_is_version_before_it_and_one_step(stream):
    """From the recorded optimizer: 'n' was trained on batch n - 1, and on nothing else."""
    made = experiment()
    model = made.recipe.build(made.data)
    optimizer = made.recipe.optimizer(model)
    resumed = resume(stream.repo, model, optimizer, rev=stream.versions[20].commit)
    assert resumed.batch == {"epoch": 2, "batch": 20}
    assert learn(model, optimizer, stream.batch(20)) == stream.versions[21].loss
    after = stream.state(stream.versions[21])
    for name, tensor in model.state_dict().items():
        assert np.array_equal(tensor.numpy(), after[name])


@pytest.mark.parametrize(
    ("what", "done"),
    [("epoch 2", 5), ("online", 13)],
    ids=["offline", "online"],
)
def test_a_killed_training_goes_on_with_the_same_bits(tmp_path, stream, what, done):
    killed = child.run("-m", "tests.reproduce.drift.small", tmp_path, what, done)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with pytest.raises(MvcError, match="is not complete"):
        Stream(experiment(), tmp_path)
    with recorded(tmp_path) as resumed:
        assert bits(resumed) == bits(stream)


def test_recording_again_trains_nothing(stream):
    trained = []
    with record(experiment(), stream.folder, lambda *said: trained.append(said)) as again:
        assert again.versions == stream.versions
    assert trained == []


def test_a_folder_of_another_experiment_is_refused(stream):
    other = Experiment.of(stream.experiment.data, replace(SETTINGS, seed=3), 0)
    with pytest.raises(WrongUsage, match="holds another experiment"):
        record(other, stream.folder)


def test_names_tell_experiments_apart():
    made = experiment()
    assert made.name == experiment().name
    assert made.name.startswith("small-digits-0-")
    others = {
        Experiment.of(made.data, replace(SETTINGS, **change), 0).name
        for change in ({"seed": 3}, {"epochs": 3}, {"peak": "0.4"}, {"batch_size": 7})
    }
    assert len(others | {made.name}) == 5
    brighter = replace(made.data, inputs=made.data.inputs + np.uint8(1))
    assert Experiment.of(brighter, SETTINGS, 0).name != made.name


def test_labels_have_seeds_of_their_own():
    zero, one = experiments(experiment().data, SETTINGS, [0, 1])
    assert zero.plan == one.plan
    assert not np.array_equal(zero.drift.offline, one.drift.offline)


@pytest.mark.parametrize(
    ("change", "label", "said"),
    [
        ({}, 10, "label is 10: it must be from 0 to 9"),
        ({"epochs": 0}, 0, "epochs is 0: it must be at least 1"),
        ({"batches": 1}, 0, "batches is 1: the last is not trained, so at least 2"),
        ({"batch_size": 99}, 0, "batches is 24: it must be from 1 to 7"),
    ],
    ids=["label", "epochs", "batches", "batch_size"],
)
def test_out_of_range(change, label, said):
    with pytest.raises(WrongUsage) as raised:
        Experiment.of(experiment().data, replace(SETTINGS, **change), label)
    assert raised.value.message.startswith(said)


def test_no_labels():
    with pytest.raises(WrongUsage, match="each once"):
        experiments(experiment().data, SETTINGS, [])
    with pytest.raises(WrongUsage, match="each once"):
        experiments(experiment().data, SETTINGS, [1, 1])
