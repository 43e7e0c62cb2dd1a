"""A training set back to a state takes the same batches and gets to the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mvc.errors import WrongUsage
from reproduce.experiment import known
from reproduce.rework.ratings import load_ratings
from reproduce.rework.training import Experiment, Training
from reproduce.rework.workloads import OPTIMIZERS, WORKLOADS, Scores
from tests.reproduce.rework.small import experiment


@pytest.fixture(autouse=True)
def _needs(one_thread):
    pytest.importorskip("sklearn")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_restored_training_gets_to_the_same_bits(optimizer):
    training = Training(experiment(optimizer), 3)
    for _ in range(4):
        training.step()
    kept, iteration = training.state, training.iteration
    for _ in range(20):  # into the next epoch
        training.step()
    later, loss = training.state, training.loss()
    for _ in range(2):
        training.restore(iteration, kept)
        for _ in range(20):
            training.step()
        again = training.state
        assert again.keys() == later.keys()
        for name, values in later.items():
            assert values.tobytes() == again[name].tobytes()
        assert training.loss() == loss
    assert len(kept) == {"sgd": 1, "momentum": 2, "adam": 3}[optimizer]


def test_the_seed_determines_the_training():
    states = []
    for seed in (1, 1, 2):
        training = Training(experiment(), seed)
        for _ in range(3):
            training.step()
        states.append(training.state["weights"].tobytes())
    assert states[0] == states[1] != states[2]


def test_a_state_is_a_copy():
    training = Training(experiment("adam"), 0)
    training.step()
    state = training.state
    kept = {name: values.copy() for name, values in state.items()}
    training.restore(1, state)
    training.step()
    for name, values in kept.items():
        assert np.array_equal(values, state[name])


def test_matrix_factorisation_learns():
    workload = replace(WORKLOADS["mf"], batch_size=200)
    training = Training(Experiment(workload, Scores(load_ratings()), "sgd"), 0)
    first = training.loss()
    for _ in range(30):
        training.step()
    assert training.loss() < 0.95 * first


@pytest.mark.parametrize(
    ("name", "count"), [("mlr", 7_850), ("lenet", 61_706), ("alexnet", 775_818)]
)
def test_parameters(name, count):
    network = WORKLOADS[name].build(10)
    assert sum(each.numel() for each in network.parameters()) == count


def test_errors():
    with pytest.raises(WrongUsage, match="there is no optimizer lion: it must be one of sgd"):
        experiment("lion")
    with pytest.raises(WrongUsage, match="there is no model vgg: it must be one of mlr"):
        known("model", WORKLOADS, "vgg")
    small = experiment()
    with pytest.raises(WrongUsage, match="has 1797 samples, but a batch of mlr is 2000"):
        Experiment(replace(small.workload, batch_size=2000), small.source, "sgd")
