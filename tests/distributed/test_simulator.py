"""The simulator: exact bytes, and figures at any number of workers."""

import subprocess
import sys

import numpy as np
import pytest

from mvc.distributed import messages as m
from mvc.distributed.codecs import codec_named
from mvc.distributed.protocols.named import protocol_named
from mvc.distributed.simulator import Simulation
from mvc.errors import BadMessage

F4 = np.dtype(np.float32)
CODECS = ("none", "int8", "exponent", "topk", "topk:0.5")


def made(name, **more):
    options = {"radius": 0.5} if name.startswith(("gm", "fgm", "fda")) else {}
    if name in {"local-sgd", "diloco"}:
        options["every"] = 8
    return protocol_named(name, **{**options, **more})


class Walks:
    """Training that depends on the model and on how often a worker has been trained."""

    def __init__(self, workers, length=60):
        self.randoms = [np.random.default_rng([7, each]) for each in range(workers)]
        self.length = length

    def one(self, row, worker):
        step = self.randoms[worker].normal(size=self.length) * 0.02 + 0.005
        row += (step - 0.01 * row).astype(row.dtype)

    def all(self, models, active):
        for each in active:
            self.one(models[each], each)
        return ()


def test_bytes_are_those_of_the_messages():
    protocol = made("fgm", up="int8")
    simulation = Simulation(protocol, np.ones(60, np.float32), 4)
    hub, up, down = simulation.coordinator, 0, 0
    take = hub.on_messages

    def counted(batch):
        nonlocal up, down
        answers = take([m.from_bytes(each.to_bytes()) for each in batch])
        up += sum(len(each.to_bytes()) for each in batch)
        down += sum(len(each.to_bytes()) for each in answers)
        assert all(m.from_bytes(each.to_bytes()) == each for each in answers)
        return answers

    before = hub.counts.up, hub.counts.down
    hub.on_messages = counted
    simulation.run(Walks(4).all, 60)
    assert hub.counts.rounds > 2
    assert (up, down) == (hub.counts.up - before[0], hub.counts.down - before[1])


def test_sizes_of_messages_are_part_of_the_contract():
    sizes = {type(each).__name__: each.size for each in (
        m.Increment(0, 1, 2, 3), m.Value(0, 1, 2, 0.5), m.Quantum(0, 1, 2, 0.5),
        m.Collect(0, 1, 2), m.Fetch(0, 1, 2), m.Drift(0, 1, 2, 0, bytes(400)),
        m.Begin(0, 1, 2, 1, 0.5, bytes(400)), m.Join(0, 1, 2, 100, bytes(16)),
    )}  # fmt: skip
    assert sizes == {
        "Increment": 15, "Value": 19, "Quantum": 19, "Collect": 11, "Fetch": 11,
        "Drift": 412, "Begin": 420, "Join": 35,
    }  # fmt: skip


@pytest.mark.parametrize("raw", [b"", b"\xff" + bytes(10), bytes([2]) + bytes(12), bytes([5] * 11)])
def test_bytes_that_are_no_message_are_refused(raw):
    with pytest.raises(BadMessage, match="a known message"):
        m.from_bytes(raw)


@pytest.mark.parametrize("codec", [*CODECS, "lc:budget=0.05", "lc:uniform,error=0.1,packed"])
@pytest.mark.parametrize("length", [1, 3, 256, 1000])
def test_codecs_decode_what_they_say_they_will(codec, length):
    random = np.random.default_rng(length)
    for values in (random.normal(size=length) * 1e-3, np.zeros(length)):
        made_codec = codec_named(codec)
        data = made_codec.encode(values, F4)
        decoded = made_codec.decode(data, length, F4)
        assert decoded.tobytes() == made_codec.rounded(values, F4).tobytes() or codec == "none"
        assert np.abs(decoded - values).max() <= np.abs(values).max()
        for wrong in (data[:-1], data + b"\0", b""):
            with pytest.raises(ValueError):
                made_codec.decode(wrong, length, F4)


def test_int8_and_exponent_are_small_tables_counted():
    values = np.random.default_rng(0).normal(size=10_000) * 1e-3
    for codec, factor in (("int8", 3.9), ("exponent", 7.0), ("topk:0.05", 15.0), ("lc:x=3", 11.0)):
        assert 40_000 / len(codec_named(codec).encode(values, F4)) > factor


def test_error_feedback_loses_nothing_in_the_long_run():
    """What a codec leaves out comes later: the mean of the models is that without codec."""
    ends = {}
    for codec in ("none", "int8", "exponent", "topk:0.3", "lc:x=3"):
        protocol = protocol_named("local-sgd", every=4, up=codec, down=codec)
        simulation = Simulation(protocol, np.zeros(500), 4)
        random = np.random.default_rng(1)
        common = random.normal(size=500) * 0.02

        def train(models, active, random=random, common=common):
            models += common + random.normal(size=models.shape) * 0.01
            return ()

        ends[codec] = simulation.run(train, 200).reference
    for codec, most in (("int8", 1e-3), ("exponent", 0.01), ("topk:0.3", 0.1), ("lc:x=3", 0.1)):
        apart = np.linalg.norm(ends[codec] - ends["none"]) / np.linalg.norm(ends["none"])
        assert apart < most, (codec, apart)


def test_lc_refuses_other_deltas_and_numbers_without_an_end():
    codec, values = codec_named("lc:x=2"), np.linspace(-1, 1, 64)
    data = codec.encode(values, np.dtype("<f8"))
    with pytest.raises(ValueError, match="the delta is of float64, not of float32"):
        codec.decode(data, 128, F4)
    for at in range(len(data)):
        for bit in (1, 128):
            damaged = bytearray(data)
            damaged[at] ^= bit
            try:
                found = codec.decode(bytes(damaged), 64, np.dtype("<f8"))
            except ValueError:
                continue
            assert len(found) == 64
            assert np.isfinite(found).all()
    for wrong in (1e39, np.nan, np.inf):
        with pytest.raises(BadMessage, match="not finite"):
            codec.encode(np.array([0.0, wrong]), F4)


def _ticks_and_bytes(workers, rho=20.0, ticks=400, length=200, rate=0.01):
    """Noisy steps down a bowl whose centre moves: about as directed as a training."""
    protocol = protocol_named("fgm", rho=rho, rate=rate)
    simulation = Simulation(protocol, np.ones(length, np.float32), workers)
    random = np.random.default_rng(5)
    centre = random.normal(size=length) * 10

    def train(models, active):
        noise = random.normal(size=models.shape)
        models += (rate * np.sign(centre - models + 5 * noise)).astype(np.float32)
        return ()

    hub = simulation.run(train, ticks)
    return ticks / hub.counts.rounds, hub.counts


@pytest.mark.parametrize("workers", [4, 16, 128])
def test_ticks_a_round_hardly_depend_on_the_number_of_workers_at_equal_rho(workers):
    ticks, counts = _ticks_and_bytes(workers)
    at_eight, _ = _ticks_and_bytes(8)
    assert counts.rounds >= 5
    assert abs(ticks / at_eight - 1) < 0.25
    assert counts.bytes >= 2 * workers * 4 * 200 * counts.rounds


def test_runs_of_equal_seeds_are_equal():
    first, second = (
        Simulation(made("gm", seed=3), np.ones(60, np.float32), 6).run(Walks(6).all, 50)
        for _ in range(2)
    )
    assert first.reference.tobytes() == second.reference.tobytes()
    assert first.counts == second.counts


def test_protocols_and_simulator_import_neither_torch_nor_the_repository():
    code = (
        "import sys, mvc.distributed.simulator;"
        "print([each for each in sys.modules if each.split('.')[0] == 'torch'"
        " or each.startswith(('mvc.repo', 'mvc.store', 'mvc.io', 'mvc.training'))])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(("common", "wins"), [(0.0, True), (0.3, False)])
def test_rebalancing_saves_bytes_only_where_drifts_have_no_common_direction(common, wins):
    def sent(name, **options):
        protocol = protocol_named(name, rho=10, rate=0.01, **options)
        simulation = Simulation(protocol, np.ones(200, np.float32), 32)
        random = np.random.default_rng(0)
        towards = random.choice([-1, 1], 200) * common

        def train(models, active):
            models += (0.01 * (random.normal(size=models.shape) + towards)).astype(np.float32)
            return ()

        return simulation.run(train, 400).counts.bytes

    share = sent("fgm-rebalancing", rebalance=0.7) / sent("fgm")
    assert (share < 0.95) == wins
