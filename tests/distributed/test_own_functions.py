"""Safe functions of a user's own: they do what the named ones do, and what is none is refused."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from mvc.distributed.protocols.named import protocol_named
from mvc.distributed.safe import Own, norm_of
from mvc.distributed.simulator import Simulation
from mvc.errors import WrongUsage
from tests.distributed.own import Cap, Largest, Length, Squares, Weighted, faulty

MODEL = np.random.default_rng(2).normal(size=60).astype(np.float32)
NORM = Weighted()


def walk(protocol, ticks=60, workers=4):
    """The coordinator after a walk that depends on the models."""
    random = np.random.default_rng(7)
    simulation = Simulation(protocol, MODEL, workers)

    def train(models, active):
        steps = random.normal(size=(workers, models.shape[1])) * 0.02 + 0.005
        models[active] += (steps[active] - 0.01 * models[active]).astype(np.float32)
        return ()

    return simulation.run(train, ticks)


@pytest.mark.parametrize("name", ["fgm", "fgm-rebalancing", "fgm-nesterov", "gm", "gm-full"])
@pytest.mark.parametrize(
    ("own", "options", "named"),
    [
        (Weighted(), {"radius": 0.5}, {"safe": "norm", "radius": 0.5}),
        (Weighted(), {"rho": 5, "rate": 0.01}, {"safe": "norm", "rho": 5, "rate": 0.01}),
        (Weighted(), {"period": 7}, {"safe": "norm", "period": 7}),
        (Weighted(), {"radius": 0.5, "up": "int8"}, {"radius": 0.5, "up": "int8"}),
        (Squares(), {"radius": 0.25}, {"safe": "variance", "radius": 0.5}),
        (Cap(), {"relative": 0.1}, {"safe": "cap", "relative": 0.1}),
    ],
)
def test_an_own_function_that_is_a_named_one_makes_the_same_run(name, own, options, named):
    first = walk(protocol_named(name, safe=own, **options))
    second = walk(protocol_named(name, **named))
    assert first.counts == second.counts
    assert first.counts.rounds > 1
    assert first.reference.tobytes() == second.reference.tobytes()


def test_the_mean_is_safe_by_ones_own_function():
    own = Largest()
    simulation = Simulation(protocol_named("fgm", safe=own, radius=0.2), MODEL.astype(float), 5)
    random, hub = np.random.default_rng(3), simulation.coordinator

    def train(models, active):
        models[active] += random.normal(size=models.shape)[active] * 0.02 + 0.004
        return ()

    for _ in range(200):
        simulation.tick(train)
        drift = simulation.models.mean(axis=0) - hub.reference
        assert np.abs(drift).max() <= 0.2 + 1e-9
    assert hub.counts.rounds > 2


@dataclass(frozen=True)
class Share:
    """The norm of the drift, as a share of the global model's."""

    def value(self, drift, reference):
        return norm_of(drift) / norm_of(reference)

    def gradient(self, drift, reference):
        return drift / norm_of(drift) / norm_of(reference)


def test_the_norm_as_an_own_function_is_the_norm_relative_to_the_model():
    first = walk(protocol_named("fgm", safe=Share(), radius=0.1))
    second = walk(protocol_named("fgm", relative=0.1))
    assert first.counts == second.counts
    np.testing.assert_allclose(first.reference, second.reference, rtol=1e-6)


@pytest.mark.parametrize("own", [Weighted(), Weighted(1e-9), Squares(), Cap(), Length(), Largest()])
@pytest.mark.parametrize("radius", [1e-4, 0.3, 50.0])
@pytest.mark.parametrize("length", [1, 2, 2500])
def test_functions_that_are_convex_pass(own, radius, length):
    reference = np.random.default_rng(length).normal(size=length)
    Own(own, reference, radius).check()


def shorter(drift, reference):
    return NORM.gradient(drift, reference)[:-1]


def turned(drift, reference):
    """Wrong in one of sixty numbers."""
    gradient = NORM.gradient(drift, reference)
    return np.where(np.arange(len(drift)) == 9, -gradient, gradient)


def writing(drift, reference):
    reference[0] = 7
    return 0.0


def root(drift, reference):
    return math.sqrt(norm_of(drift))


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (faulty(lambda drift, _: math.nan), "the value of the safe function is not finite"),
        (faulty(lambda drift, _: math.inf), "the value of the safe function is not finite"),
        (faulty(lambda drift, _: None), r"is object \(\): it must be float64 \(\)"),
        (faulty(lambda drift, _: "1"), r"is <U1 \(\): it must be float64 \(\)"),
        (faulty(lambda drift, _: drift), r"value of the safe function is float64 \(60,\): it must"),
        (
            faulty(gradient=lambda drift, _: drift * math.nan),
            "the gradient of the safe function is not finite",
        ),
        (faulty(gradient=shorter), r"the gradient .* is float64 \(59,\): it must be float64 \(60,"),
        (faulty(gradient=lambda drift, _: drift[:, None]), r"the gradient .* \(60, 1\): it must"),
        (
            faulty(gradient=lambda *at: 1.001 * NORM.gradient(*at)),
            "the safe function has a wrong gradient: it rises at .* where its gradient says",
        ),
        (
            faulty(gradient=lambda *at: -NORM.gradient(*at)),
            "the safe function has a wrong gradient",
        ),
        (faulty(gradient=turned), "the safe function has a wrong gradient"),
        (
            faulty(root, lambda *at: NORM.gradient(*at) / 2 / math.sqrt(norm_of(at[0]))),
            "the safe function is not convex: it rises at",
        ),
        (
            faulty(lambda *at: math.sin(NORM.value(*at)), lambda *at: at[0] * 0),
            "the safe (function|zone) has",
        ),
        (faulty(lambda drift, _: 0.0, lambda drift, _: drift * 0), "has no end: a drift of length"),
        (faulty(lambda drift, _: drift.sum(), lambda d, _: np.ones(60)), "has no end"),
        (faulty(lambda *at: -NORM.value(*at), lambda *at: -NORM.gradient(*at)), "has no end"),
    ],
)
@pytest.mark.parametrize("name", ["fgm", "gm"])
def test_what_is_no_safe_function_is_refused_before_the_first_update(name, own, said):
    protocol = protocol_named(name, safe=own, radius=0.5)
    with pytest.raises(WrongUsage, match=said):
        protocol.coordinator(MODEL, range(2))
    hub = protocol_named(name, radius=0.5).coordinator(MODEL, range(1))
    worker = protocol.worker(0, MODEL.copy())
    (begin,) = hub.on_messages(worker.join())
    with pytest.raises(WrongUsage, match=said):  # each process tries its own
        worker.on_message(begin)


def test_a_function_is_tried_once_its_threshold_is_found():
    double = faulty(gradient=lambda *at: 2 * NORM.gradient(*at))
    with pytest.raises(WrongUsage, match="has a wrong gradient"):
        walk(protocol_named("fgm", safe=double, period=7))


def test_a_value_that_is_not_finite_ends_the_training_where_it_comes_up():
    seen = []

    def value(drift, reference):
        seen.append(drift)
        return NORM.value(drift, reference) if len(seen) < 2500 else math.nan

    with pytest.raises(WrongUsage, match="the value of the safe function is not finite"):
        walk(protocol_named("fgm", safe=faulty(value), radius=0.5), ticks=1000)


def test_a_function_changes_neither_the_drift_nor_the_reference():
    for write in (writing, lambda drift, _: drift.fill(0)):
        with pytest.raises(ValueError, match="read-only"):
            protocol_named("fgm", safe=faulty(write), radius=0.5).coordinator(MODEL, range(2))


@pytest.mark.parametrize("own", [3, object(), math.sqrt, b"norm", {"value": 1, "gradient": 2}])
def test_what_has_no_value_and_gradient_is_no_function(own):
    with pytest.raises(WrongUsage, match=r"safe cannot be .*: it must be one of norm, v") as caught:
        protocol_named("fgm", safe=own, radius=1)
    assert caught.value.hint == "or pass an object with methods value and gradient"
    with pytest.raises(WrongUsage, match="the protocol sync has no option safe"):
        protocol_named("sync", safe=Weighted())
