"""Protocols: traces made by hand, safety, and what is refused."""

import math
from collections import deque

import numpy as np
import pytest

from mvc.distributed import messages as m
from mvc.distributed.codecs import VectorLayout
from mvc.distributed.protocols.named import PROTOCOLS, protocol_named
from mvc.distributed.safe import SAFE_FUNCTIONS, Cap, Norm, Variance
from mvc.distributed.simulator import Simulation
from mvc.errors import BadMessage, CannotDistribute, WrongUsage

E = np.array([3.0, 4.0])


class Net:
    """A coordinator and workers, and every message that went by."""

    def __init__(self, protocol, model, count, hub=None):
        self.models = np.tile(np.asarray(model, np.float64), (count, 1))
        self.hub = hub or protocol.coordinator(np.asarray(model, np.float64), range(count))
        self.workers = [protocol.worker(i, row) for i, row in enumerate(self.models)]
        self.seen = []
        self.pass_on([each for worker in self.workers for each in worker.join()])
        self.begun = [each for each in self.seen if isinstance(each, m.Begin)]
        self.seen.clear()

    def pass_on(self, sent):
        while sent:
            answers = self.hub.on_messages(sent)
            self.seen += sent + answers
            sent = [said for each in answers for said in self.workers[each.worker].on_message(each)]

    def update(self, worker, model):
        """The messages that follow; the model is given from the start of the trace, as a drift."""
        self.seen.clear()
        self.models[worker] = model
        self.pass_on(self.workers[worker].on_update())
        return list(self.seen)


def kinds(seen):
    return [type(each).__name__ for each in seen]


def amounts(seen):
    return [each.amount for each in seen if isinstance(each, m.Increment)]


@pytest.mark.parametrize(
    ("drift", "value"),
    [
        ((0, 0), -2.5),
        ((0.6, 0.8), -1.5),
        ((1.2, 1.6), -0.5),
        ((1.5, 2), 0),
        ((3, 4), 2.5),
        ((-1.5, -2), 0),
        ((-1.8, -2.4), 0.5),
        ((-4, 3), math.sqrt(50) - 7.5),
    ],
)
def test_the_spherical_cap_has_the_values_worked_out_by_hand(drift, value):
    assert Cap(E, 2.5).of(np.array(drift, np.float64)) == pytest.approx(value, abs=1e-12)


def test_fgm_follows_the_trace_made_by_hand():
    net = Net(protocol_named("fgm", relative=0.5, safe="cap"), E, 2)
    assert [each.quantum for each in net.begun] == [1.25, 1.25]
    assert net.update(0, E + np.array([0.6, 0.8])) == []
    assert amounts(net.update(0, E + np.array([1.2, 1.6]))) == [1]
    assert kinds(net.update(1, E + np.array([1.2, 1.6]))) == [
        "Increment"
    ]  # c = 2 is not above k = 2
    third = net.update(0, E + np.array([1.5, 2]))
    assert amounts(third) == [1]
    assert [each.quantum for each in third if isinstance(each, m.Quantum)] == [0.125, 0.125]
    assert net.hub.counts.rounds == 0
    last = net.update(1, E + np.array([1.5, 2]))
    assert amounts(last) == [4]  # in float32 the quotient would be 3.9999985, and this 3
    assert net.hub.counts.rounds == 1
    assert net.hub.reference.tolist() == [4.5, 6.0]
    assert (net.models == [4.5, 6.0]).all()


def test_a_single_jump_ends_the_round():
    net = Net(protocol_named("fgm", relative=0.5, safe="cap"), E, 2)
    assert amounts(net.update(0, E * 2)) == [4]
    assert net.hub.reference.tolist() == [4.5, 6.0]


def test_gm_balances_two_of_three_and_keeps_the_sum_and_the_reference():
    protocol = protocol_named("gm", radius=1, seed=0)
    for seed in range(20):  # the partner is drawn: take the seed that draws worker 1
        protocol = protocol_named("gm", radius=1, seed=seed)
        net = Net(protocol, [0, 0], 3)
        net.update(1, (0, 0.3))
        net.update(2, (-0.1, 0))
        seen = net.update(0, (1.2, 0))
        if [each.worker for each in seen if isinstance(each, m.Fetch)] == [1]:
            break
    assert kinds(seen) == ["Drift", "Fetch", "Drift", "Balance", "Balance"]
    np.testing.assert_allclose(net.models, [[0.6, 0.15], [0.6, 0.15], [-0.1, 0]], atol=1e-15)
    np.testing.assert_allclose(net.models.sum(axis=0), [1.1, 0.3], atol=1e-15)
    assert net.hub.reference.tolist() == [0, 0]
    assert (net.hub.counts.rounds, net.hub.counts.balances) == (0, 1)


def test_gm_grows_to_all_and_only_then_moves_the_reference():
    net = Net(protocol_named("gm", radius=1), [0, 0], 3)
    for each in net.workers[1:]:  # their models count, though they have not spoken yet
        each.model[:] = (3 - each.number, 0)
    net.update(0, (3, 0))
    assert net.hub.reference.tolist() == [2, 0]
    assert net.hub.counts.rounds == 1


def test_gm_with_full_synchronisation_asks_all_at_the_first_violation():
    net = Net(protocol_named("gm-full", radius=1), [0, 0], 4)
    seen = net.update(2, (1.2, 0))
    assert kinds(seen) == ["Drift", *["Fetch"] * 3, *["Drift"] * 3, *["Begin"] * 4]
    assert net.hub.reference.tolist() == [0.3, 0]


def test_the_hedge_asks_for_twice_as_many_and_for_all_at_half():
    def asked(workers, drift):
        net = Net(protocol_named("gm-hedge", radius=1), [0, 0], workers)
        return [type(each).__name__ for each in net.update(0, drift)].count("Fetch")

    assert asked(8, (1.2, 0)) == 2  # three of eight are less than half
    assert asked(6, (1.2, 0)) == 5  # three of six are half: all


def test_k_violations_synchronise_all():
    net = Net(protocol_named("gm", radius=1), [0, 0], 3)
    sent = []
    for number, worker in enumerate(net.workers):
        worker.model[:] = np.array([(1.2, 0), (-1.2, 0), (0, 1.2)])[number]
        sent += worker.on_update()
    net.pass_on(sent)
    assert net.hub.counts.rounds == 1
    np.testing.assert_allclose(net.hub.reference, [0, 0.4], atol=1e-15)


@pytest.mark.parametrize("rebalance", [None, 0.1, 0.5, 0.9])
def test_while_the_counters_are_at_most_k_the_mean_is_safe(rebalance):
    """10,000 trials in all, each a random network, safe function and walk."""
    for trial in range(2500):
        random = np.random.default_rng([trial, 0 if rebalance is None else int(100 * rebalance)])
        count, length = int(random.integers(2, 6)), int(random.integers(1, 4))
        safe = ("norm", "variance", "cap")[trial % 3]
        model = random.normal(size=length) + 2
        options = {"relative": 0.4, "safe": safe, "rebalance": rebalance}
        name = "fgm" if rebalance is None else "fgm-rebalancing"
        simulation = Simulation(protocol_named(name, **options), model, count)
        hub, common = simulation.coordinator, random.normal(size=length)
        scale = 0.4 * np.linalg.norm(model) / 10 ** random.uniform(0, 1.5)
        for _ in range(10):

            def walk(models, active, random=random, common=common, scale=scale):
                steps = random.normal(size=models.shape) * 0.5 + common
                models[:] += scale * steps * (random.random(len(models)) < 0.7)[:, None]
                return ()

            simulation.tick(walk)
            mean = simulation.models.mean(axis=0) - hub.reference
            assert hub.safe.of(mean) < 1e-9, (trial, rebalance)


@pytest.mark.parametrize("codec", ["int8", "exponent", "topk:0.3", "lc:x=3"])
def test_with_a_codec_the_mean_of_what_will_be_decoded_is_safe(codec):
    for trial in range(30):
        random = np.random.default_rng(trial)
        protocol = protocol_named("fgm", radius=1.0, up=codec, down=codec)
        simulation = Simulation(protocol, np.ones(40), 4)
        common = random.normal(size=40) * 0.02

        def walk(models, active, random=random, common=common):
            models += common + random.normal(size=models.shape) * 0.03
            return ()

        for _ in range(20):
            simulation.tick(walk)
            wire = protocol.wires(simulation.layout)[0]
            sent = [wire.rounded(worker.drift()) for worker in simulation.workers]
            hub = simulation.coordinator
            assert hub.safe.of(np.mean(sent, axis=0)) < 1e-9
        assert hub.counts.rounds > 0


@pytest.mark.parametrize("codec", ["none", "int8", "exponent", "topk:0.5"])
def test_a_model_that_would_not_be_finite_is_not_made(codec):
    net = Net(protocol_named("sync"), np.zeros(2), 2)
    hub = protocol_named("diloco", every=1, outer_rate=9.0, down=codec).coordinator(
        np.zeros(2, np.float32), range(2)
    )
    rows = np.zeros((2, 2), np.float32)
    net.hub = hub
    net.workers = [hub.protocol.worker(each, rows[each]) for each in range(2)]
    net.pass_on([each for worker in net.workers for each in worker.join()])
    rows[:] = 3e38
    sent = [each for worker in net.workers for each in worker.on_update()]
    with (
        np.errstate(over="ignore"),
        pytest.raises(CannotDistribute, match="next global model would"),
    ):
        net.pass_on(sent)
    assert hub.reference.tolist() == [0, 0]  # not the one that could not be made


@pytest.mark.parametrize("codec", ["none", "int8", "exponent", "topk:0.3", "lc:x=3"])
@pytest.mark.parametrize("balancing", ["gm", "gm-hedge"])
def test_balancing_preserves_the_sum_of_models(codec, balancing):
    protocol = protocol_named(balancing, radius=1.0, up=codec, down=codec)
    random = np.random.default_rng(0)
    simulation = Simulation(protocol, np.zeros(300), 12)
    hub, sums, balanced = simulation.coordinator, [], 0

    def walk(models, active):
        models[:] += random.normal(size=models.shape) * 0.02
        sums.append(models.sum(axis=0))
        return ()

    def held():
        """All that workers have and have not sent yet, and the coordinator has kept back."""
        unsent = sum(each.reference + each.drift() for each in simulation.workers)
        return unsent + 12 * hub.memory()["residual"]

    before = np.zeros(300)
    for _ in range(30):
        rounds, balances = hub.counts.rounds, hub.counts.balances
        kept = held() - simulation.models.sum(axis=0)
        simulation.tick(walk)
        if hub.counts.balances > balances and hub.counts.rounds == rounds:
            balanced += 1
            np.testing.assert_allclose(held(), sums[-1] + kept, atol=1e-9)
        before = held()
    assert balanced > 3
    assert np.isfinite(before).all()


def test_the_mean_is_that_of_the_drifts_and_outer_momentum_is_nesterovs():
    options = {"every": 1, "outer_rate": 0.5, "outer_momentum": 0.5}
    net = Net(protocol_named("diloco", **options), [0.0, 0.0], 2)
    net.models[1] = (2, 0)
    net.pass_on(net.workers[1].on_update())
    net.update(0, (0, 4))
    assert net.hub.reference.tolist() == [0.5 * (1 + 0.5 * 1), 0.5 * (2 + 0.5 * 2)]
    first = net.hub.reference.copy()
    net.pass_on([each for worker in net.workers for each in worker.on_update()])
    assert (net.hub.reference - first).tolist() == [0.5 * 0.5 * 0.5, 0.5 * 0.5 * 1]


def test_fda_synchronises_when_the_variance_is_above_the_square_of_the_radius():
    protocol = protocol_named("fda", radius=1)
    simulation = Simulation(protocol, np.zeros(40), 4)
    ticks = 0
    while simulation.coordinator.counts.rounds == 0:

        def apart(models, active):
            models[:] += np.eye(4, 40) * 0.1
            return ()

        simulation.tick(apart)
        ticks += 1
    # |X|^2 = (t/10)^2, and the mean's squared norm is a fourth of it. Nothing is known of the
    # first mean, so the estimate of its variance is too high, never too low.
    assert ticks == 11


def test_statistics_are_averaged_but_not_measured():
    layout = VectorLayout.of(np.zeros(4), measured=2)
    protocol = protocol_named("fgm", radius=1.0)
    simulation = Simulation(protocol, np.zeros(4), 2, layout=layout)

    def statistics(models, active):
        models[0, 2:] = 100
        return ()

    simulation.tick(statistics)
    assert simulation.coordinator.counts.rounds == 0

    def parameters(models, active):
        models[:, :2] = 3
        return ()

    simulation.tick(parameters)
    assert simulation.coordinator.reference.tolist() == [3, 3, 50, 50]


# ---- what is refused


def test_late_and_repeated_messages_change_nothing():
    net = Net(protocol_named("fgm", relative=0.5, safe="cap"), E, 2)
    net.update(0, E * 1.5)
    first = net.update(1, E * 1.4)
    up = m.Increment | m.Value | m.Drift
    old = [each for each in first if isinstance(each, up)]
    assert net.hub.counts.rounds == 0
    assert net.hub.counts.subrounds == 1
    assert net.hub.on_messages(old) == []
    assert net.hub.counts.subrounds == 1
    seen = net.update(0, E * 2)
    assert net.hub.counts.rounds == 1
    reference = net.hub.reference.tolist()
    assert net.hub.on_messages([each for each in seen if isinstance(each, up)]) == []
    assert net.hub.reference.tolist() == reference
    for each in seen:
        if not isinstance(each, up):  # a worker does not take them twice either
            assert net.workers[each.worker].on_message(each) == []
    assert (net.models == net.hub.reference).all()


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_model_with_nan_is_not_averaged(name):
    options = {"radius": 0.1} if name[:3] in {"fgm", "gm", "gm-", "fda"} else {}
    if name in {"local-sgd", "diloco"}:
        options["every"] = 2
    simulation = Simulation(protocol_named(name, **options), np.ones(50), 3)

    def train(models, active):
        models[active] += 0.01
        models[1] = np.nan
        return ()

    line = "worker 1: its model has numbers that are not finite after update"
    with pytest.raises(BadMessage, match=line):
        simulation.run(train, 4)
    assert np.isfinite(simulation.coordinator.reference).all()


def test_a_drift_that_is_not_finite_or_of_another_length_is_refused_by_the_coordinator():
    for data, said in (
        (np.array([np.nan, 0]).tobytes(), "the drift of worker 1: the vector has numbers that"),
        (bytes(8), "the drift of worker 1: not a vector of 2 numbers: 8 bytes are not 2 numbers"),
    ):
        net = Net(protocol_named("local-sgd", every=1), [0.0, 0.0], 3)
        with pytest.raises(BadMessage, match=said):
            net.hub.on_messages([m.Drift(1, 1, 0, 1, data)])
        assert net.hub.reference.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("length", "digest", "said"),
    [
        (3, bytes(16), "worker 1 has a model with other names, shapes or types"),
        (2, b"x" * 16, "worker 1 has a model with other names, shapes or types"),
    ],
)
def test_a_worker_with_another_model_does_not_join(length, digest, said):
    protocol = protocol_named("sync")
    hub = protocol.coordinator(np.zeros(2), range(2))
    worker = protocol.worker(1, np.zeros(length), VectorLayout.of(np.zeros(length), digest=digest))
    with pytest.raises(BadMessage, match=said):
        hub.on_messages(worker.join())


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("fmg", {}, "there is no protocol fmg: use one of gm, gm-hedge"),
        ("sync", {"every": 3}, "the protocol sync has no option every"),
        ("local-sgd", {"every": 0}, "every cannot be 0: it must be int >= 1"),
        (
            "gm",
            {"relative": 0.5, "safe": "cup"},
            "safe cannot be cup: it must be one of norm, var",
        ),
        ("sync", {"up": "int9"}, "there is no codec int9: it must be one of none, int8"),
        ("sync", {"up": "topk:2"}, "the share of topk is"),
        ("sync", {"up": "lc:y=2"}, "lc has no option 'y=2'"),
        ("sync", {"up": "lc:x=2,budget=0.1"}, "must have exactly one bound"),
        ("sync", {"down": "int8:2"}, "the codec int8 has no parameter"),
        ("sync", {"whatever": 1}, "the protocol sync has no option whatever"),
        ("diloco", {"outer_momentum": 1.0}, "outer_momentum cannot be 1.0: it must be float < 1"),
        ("fgm-rebalancing", {"relative": 0.5, "rebalance": 1.5}, "rebalance cannot be 1.5"),
    ],
)
def test_options_that_make_no_protocol(name, options, said):
    with pytest.raises(WrongUsage, match=said):
        protocol_named(name, **options)


def test_a_training_needs_a_worker():
    with pytest.raises(WrongUsage, match="averaging needs at least one worker"):
        protocol_named("sync").coordinator(np.zeros(3), [])


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (np.zeros((2, 2)), "a model is float64 2x2: it must be a flat vector"),
        (np.zeros(2, np.int64), "a model is int64 2"),
        (np.array([np.nan]), "the model has numbers that are not finite"),
    ],
)
def test_models_that_cannot_be_trained(model, said):
    with pytest.raises(WrongUsage, match=said):
        protocol_named("sync").coordinator(model, range(2))


def test_the_cap_is_refused_where_the_reference_is_zero():
    with pytest.raises(WrongUsage, match="not defined around a model that is zero"):
        protocol_named("fgm", radius=1, safe="cap").coordinator(np.zeros(3), range(2))


def test_thresholds_name_all_three_units():
    reference = np.full(100, 0.5)  # of norm 5
    for given in (
        {"radius": 1.5},
        {"relative": 0.3},
        {"rho": 15.0},
    ):
        protocol = protocol_named("fgm", rate=0.01, **given)
        assert protocol.radius_at(reference) == pytest.approx(1.5)
        assert protocol.describe(reference) == "r = 1.5, T = 0.3, rho = 15"
    said = protocol_named("fgm", radius=1.0).describe(np.zeros(4))
    assert said == "r = 1, T = not defined (the model is zero), rho = unknown (no learning rate)"
    twice = ({"radius": 1, "rho": 1, "rate": 1}, {"radius": 1, "period": 4})
    for wrong in (*twice, {"rho": 1}, {"radius": -1}, {"period": 0}):
        with pytest.raises(WrongUsage):
            protocol_named("fgm", **wrong)


def test_a_threshold_that_nobody_gives_is_described_once_it_is_found():
    assert protocol_named("fgm").describe(E) == "r is measured in the first 40 updates"
    found = protocol_named("fgm", period=8, rate=0.5)
    assert found.describe(E) == "r is measured in the first 8 updates"
    assert found.describe(E, 1.0).startswith("r = 1, T = 0.2, rho = 1.4")


@pytest.mark.parametrize(
    ("name", "options", "radius"),
    [
        *((name, {}, 3.5) for name in ("gm", "gm-full", "fgm", "fgm-rebalancing")),
        ("fgm-nesterov", {"safe": "variance"}, math.sqrt(12.5)),
        ("fda", {}, 2.5),
    ],
)
def test_a_threshold_is_found_in_the_first_updates(name, options, radius):
    protocol = protocol_named(name, period=3, **options)
    net = Net(protocol, [0.0, 0.0], 2)
    for step in (1, 2):
        assert net.update(0, (0, step)) == net.update(1, (step, 0)) == []
    assert kinds(net.update(0, (0, 3))) == ["Drift"]
    seen = kinds(net.update(1, (4, 0)))
    assert seen == ["Drift", "Radius", "Radius", "Begin", "Begin"]
    assert net.hub.radius == pytest.approx(radius)
    assert {worker.radius for worker in net.workers} == {net.hub.radius}
    reference = net.hub.reference
    if not name.startswith("fda"):  # which says something after every update
        assert net.update(0, reference + np.array([0, 0.4]) * radius) == []
        assert "Drift" in kinds(net.update(1, reference + np.array([0, 3]) * radius))


def test_another_coordinator_gets_the_radius_that_was_found():
    protocol = protocol_named("fgm", period=1)
    net = Net(protocol, [0.0, 0.0], 2)
    net.update(0, (0, 3))
    net.update(1, (4, 0))
    memory = net.hub.memory()
    again = Net(protocol, net.hub.reference, 2, protocol.coordinator(E, range(2), memory=memory))
    assert [worker.radius for worker in again.workers] == [3.5, 3.5]
    given = protocol_named("fgm", radius=1.0)
    assert given.coordinator(E, range(2), memory=memory).radius is None


def test_a_radius_is_that_of_those_who_have_trained_the_whole_period():
    protocol = protocol_named("fgm", period=2)
    net = Net(protocol, [0.0, 0.0], 3)
    for worker in range(3):  # nobody moves: nothing is found
        net.update(worker, (0, 0))
        net.update(worker, (0, 0))
    assert (net.hub.radius, net.hub.counts.rounds) == (None, 1)
    net.update(0, (100, 0))
    net.pass_on(net.workers[0].end())
    for worker in (1, 2):
        net.update(worker, (0, 1))
        net.update(worker, (0, 2))
    assert (net.hub.radius, net.hub.counts.rounds) == (2.0, 2)


def test_every_safe_function_is_negative_at_zero_and_convex():
    random = np.random.default_rng(0)
    assert list(SAFE_FUNCTIONS.values()) == [Norm, Variance, Cap]
    for kind in SAFE_FUNCTIONS.values():
        safe = kind(E, 1.5)
        assert safe.at_zero < 0
        a, b = random.normal(size=(2, 500, 2)) * 3
        found = kind(E, safe.radius_of(a))
        assert sum(map(found.of, a)) == pytest.approx(0, abs=1e-9)
        for x, y in zip(a, b, strict=True):
            assert safe.of((x + y) / 2) <= (safe.of(x) + safe.of(y)) / 2 + 1e-9


# ---- any order of events


class Crowd:
    """Workers that train at random moments, over channels that take time."""

    def __init__(self, protocol, count, seed):
        self.random = np.random.default_rng(seed)
        self.protocol, self.count = protocol, count
        self.hub = protocol.coordinator(np.ones(4), range(count))
        self.velocity = np.zeros(4)
        self.sent, self.means = {}, 0  # of this round: what is to be averaged, by worker
        self.workers, self.left = {}, {}
        self.up = {each: deque() for each in range(count)}
        self.down = {each: deque() for each in range(count)}
        for each in range(count):
            self.workers[each] = protocol.worker(each, np.zeros(4))
            self.left[each] = int(self.random.integers(1, 20))
            self.up[each].extend(self.workers[each].join())

    def ask(self, batch):
        """The coordinator's answers are sent, and a new global model is what it must be."""
        before, rounds, number = self.hub.reference, self.hub.counts.rounds, self.hub.round
        for message in self.hub.on_messages(batch):
            self.down[message.worker].append(message)
        if self.hub.counts.rounds > rounds:
            mean = sum(self.sent.values()) / len(self.sent)
            momentum = self.protocol.outer_momentum
            self.velocity = momentum * self.velocity + mean
            moved = before + self.protocol.outer_rate * (mean + momentum * self.velocity)
            np.testing.assert_allclose(self.hub.reference, moved, atol=1e-9)
            self.means += 1
        if self.hub.round > number:
            self.sent.clear()

    def receive(self, number):
        message = self.up[number].popleft()
        if isinstance(message, m.Drift) and message.round == self.hub.round:
            drift = np.frombuffer(message.data)
            flushes = self.protocol.rebalance is not None
            self.sent[number] = drift + (self.sent.get(number, 0) if flushes else 0)
        self.ask([message])

    def listen(self, number):
        self.up[number].extend(self.workers[number].on_message(self.down[number].popleft()))

    def train(self, number):
        worker = self.workers[number]
        self.left[number] -= 1
        if self.left[number] < 0:
            self.up[number].extend(worker.end())
            return
        worker.model += self.random.normal(size=4) * 0.1 + 0.01
        self.up[number].extend(worker.on_update())

    def acts(self):
        """What may happen next."""
        for each in range(self.count):
            if self.up[each]:
                yield self.receive, each
        for each, worker in self.workers.items():
            if self.down[each]:
                yield self.listen, each
            if not worker.waiting and not worker.finished and self.left[each] >= 0:
                yield self.train, each

    def run(self):
        """Until nothing can happen any more."""
        for _ in range(5000):
            acts = list(self.acts())
            if not acts:
                return
            act, number = acts[self.random.integers(len(acts))]
            act(number)
        raise AssertionError("the training goes on for ever")


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_training_ends_for_all_in_any_order_of_events(name):
    monitors = name.startswith(("gm", "fgm", "fda"))
    options = {"radius": 0.3} if monitors else {}
    if name in {"local-sgd", "diloco"}:
        options["every"] = 4
    if name == "fgm-rebalancing":
        options["rebalance"] = 0.1
    means = balances = 0
    for seed in range(30):
        crowd = Crowd(protocol_named(name, **options), 2 + seed % 7, seed)
        crowd.run()
        assert crowd.hub.finished, seed
        assert all(each.finished for each in crowd.workers.values()), seed
        means += crowd.means
        balances += crowd.hub.counts.balances
    assert means > 30
    assert (balances > 10) == (name in {"gm", "gm-hedge", "fgm-rebalancing"})


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if name.startswith(("gm", "f"))])
def test_a_training_that_finds_its_threshold_ends_for_all(name):
    protocol, found = protocol_named(name, period=4), 0
    for seed in range(15):
        crowd = Crowd(protocol, 2 + seed % 7, seed)
        crowd.run()
        assert crowd.hub.finished, seed
        assert all(each.finished for each in crowd.workers.values()), seed
        found += crowd.hub.radius is not None
    assert found > 10


def test_a_coordinator_goes_on_from_the_memory_of_another():
    options = {"radius": 1.0, "up": "none", "down": "int8"}
    protocol = protocol_named("fgm-nesterov", **options)
    random = np.random.default_rng(3)
    straight = Simulation(protocol, np.zeros(20), 3)

    def train(models, active):
        models[:] += random.normal(size=models.shape) * 0.1 + 0.03
        moved.append(models.copy())
        return ()

    moved, hub = [], straight.coordinator
    while hub.counts.rounds < 2:
        straight.tick(train)
    again = protocol.coordinator(hub.reference, range(3), memory=hub.memory())
    assert again.round == hub.round
    net = Net(protocol, hub.reference, 3, again)
    assert [each.full for each in net.begun] == [1, 1, 1]
    while hub.counts.rounds < 4:
        straight.tick(train)
        net.models[:] = moved[-1]
        net.pass_on([each for worker in net.workers for each in worker.on_update()])
        assert again.reference.tobytes() == hub.reference.tobytes()
