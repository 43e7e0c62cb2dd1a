"""Coding that knows the optimizer: speeds a core, and bits a parameter and step beside deltas.

    python -m tests.benchmarks.bench_optim [--only speed|table|online|recorder|recovery|wild]
        [--way recorder|files|state]
        [--models conv,lstm] [--optimizers adam,adamw,...] [--steps 1,2,20,200,2000]

``speed``: what a step of each optimizer's tensors takes to predict, encode and decode, one thread,
the best of several passes. ``table``: networks with dropout learn sklearn's digits; at each of the
steps three versions in a row (one at the first step) are kept in a repository of their own, with
the rules and without any, in the same run. Bits are all that the folder ``.mvc`` grew by.
``weights alone``: the same steps of the model without its optimizer, as deltas. ``s``: seconds of
processors for a version, with the rules and without any. ``online``: all that ``.mvc`` takes for
the 31 versions of ``examples/online_digits.py``, weights alone and with the optimizer's state.
``recorder``: that training, recorded with its whole state; how long ``Recorder.step`` holds it up
and what a version takes, with the rules and without any, in turn. ``recovery``: the longest of all
its versions to check out, each by a repository that was just opened, by ``store.max_recovery``.
``wild``: what ``.mvc`` takes for short trainings of random optimizers and numbers, of which some
have gradients that are no numbers and weights that something moves between steps, and for many
tensors of a few numbers, beside the same as deltas.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

import mvc
from mvc.codecs.optim import Prediction, choose_predictions, kinds, kinds_of
from mvc.limits import CHUNK
from mvc.pipelines.pipeline import Pipeline
from mvc.pipelines.predicted import apply_predicted, encode_predicted
from tests.benchmarks.measuring import bytes_below, head, row, seconds
from tests.benchmarks.measuring import folder as work_folder
from tests.maintenance.test_recovery_bound import configure
from tests.repo.test_predicted_trainings import OPTIMIZERS as STRANGE
from tests.repo.test_predicted_trainings import WILD as STRANGE_NUMBERS
from tests.repo.test_predicted_trainings import Net, arguments

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from digits import drift_stream
from models import conv_net
from training import rmsprop, train_batch, train_epoch

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": lambda p: torch.optim.Adam(p),
    "adam-fused": lambda p: torch.optim.Adam(p, fused=True),
    "adam-coupled": lambda p: torch.optim.Adam(p, weight_decay=1e-4),
    "adam-amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p),
    "adamw-fused": lambda p: torch.optim.AdamW(p, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "sgd-nesterov": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
    "rmsprop-momentum": lambda p: torch.optim.RMSprop(p, lr=1e-4, momentum=0.9),
}
IN_A_ROW = 3
SECONDS = 0.3
BATCHES = 30
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=["speed", "table", *PARTS])
    parser.add_argument("--way", choices=list(WAYS), default="recorder")
    parser.add_argument("--models", default="conv,lstm")
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS))
    parser.add_argument("--steps", default="1,2,20,200,2000")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.optimizers.split(",")
    if options.only in (None, "speed"):
        speed(names)
    if options.only in (None, "table"):
        at = sorted(int(step) for step in options.steps.split(","))
        for model in options.models.split(","):
            table(model, names, at, options.way)
    for name, part in PARTS.items():
        if options.only in (None, name):
            part()


# -- networks --------------------------------------------------------------------------------


class Rows(nn.Module):
    """An LSTM that reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 96, num_layers=2, dropout=0.2, batch_first=True)
        self.out = nn.Linear(96, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(images[:, 0])[0][:, -1])


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding="same"), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding="same"), nn.ReLU(), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(2048, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10),
    )  # fmt: skip


MODELS: dict[str, Callable[[], nn.Module]] = {"conv": conv, "lstm": Rows}


class Training:
    """A network, its optimizer and the digits, the same for the same names."""

    def __init__(self, model: str, optimizer: str) -> None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        self.images = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
        self.labels = torch.tensor(digits.target)
        torch.manual_seed(0)
        self.model = MODELS[model]()
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.parameters = sum(p.numel() for p in self.model.parameters())

    def step(self) -> None:
        rows = torch.randint(0, len(self.images), (64,))
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(self.images[rows]), self.labels[rows])
        loss.backward()
        self.optimizer.step()

    def state(self) -> dict[str, object]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


# -- bits ------------------------------------------------------------------------------------


def without_rules() -> AbstractContextManager[object]:
    """As if no optimizer was known."""
    return mock.patch.dict(kinds.KINDS, clear=True)


class Kept:
    """A repository that keeps versions of a training, one way."""

    def __init__(self, place: Path, training: Training) -> None:
        self.repo = mvc.Repository.init(place)
        self.training, self.place = training, place

    def keep(self) -> int:
        """Keeps the version of now; how much the folder grew."""
        before = bytes_below(self.place)
        self.add()
        return bytes_below(self.place) - before

    def add(self) -> None:
        self.repo.commit(self.training.state(), message="step")

    def close(self) -> None:
        self.repo.close()


class Recorded(Kept):
    def __init__(self, place: Path, training: Training) -> None:
        super().__init__(place, training)
        self.recorder = mvc.Recorder(self.repo, training.model, training.optimizer)

    def add(self) -> None:
        self.recorder.step()
        self.recorder.flush()

    def close(self) -> None:
        self.recorder.close()
        super().close()


class Filed(Kept):
    def add(self) -> None:
        file = self.place / "training.pt"
        torch.save(self.training.state(), file)
        self.repo.commit(file, message="step")


class WeightsAlone(Kept):
    def add(self) -> None:
        self.repo.commit({"model": self.training.model.state_dict()}, message="step")


WAYS: dict[str, type[Kept]] = {"recorder": Recorded, "files": Filed, "state": Kept}


def table(model: str, names: list[str], at: list[int], way: str) -> None:
    head(f"{model}, {way}: bits", "step", "deltas", "with rules", "factor", "weights alone", "s")
    for name in names:
        for step, grown, used in measured(Training(model, name), at, WAYS[way]):
            deltas, rules, alone = grown
            row(
                name, f"{step:,}", f"{deltas:.1f}", f"{rules:.1f}", f"{deltas / rules:.2f}",
                f"{alone:.1f}", f"{used[1]:.2f} / {used[0]:.2f}",
            )  # fmt: skip


def measured(
    training: Training, at: list[int], way: type[Kept]
) -> Iterator[tuple[int, list[float], list[float]]]:
    """Bits a parameter and step, and processor seconds: as deltas, with rules, weights alone."""
    ways: list[tuple[type[Kept], Callable[[], AbstractContextManager[object]]]] = [
        (way, without_rules), (way, nullcontext), (WeightsAlone, without_rules),
    ]  # fmt: skip
    done = 0
    for step in at:
        for _ in range(step - 1 - done):
            training.step()
        done = max(done, step - 1)
        count = 1 if step == 1 else IN_A_ROW
        grown, took = [0] * len(ways), [0.0] * len(ways)
        with ExitStack() as stack:
            kept = []
            for each, known in ways:
                with known():
                    kept.append(each(stack.enter_context(work_folder()), training))
                    kept[-1].add()
            for _ in range(count):
                training.step()
                for i, (_, known) in enumerate(ways):
                    begun = time.process_time()
                    with known():
                        grown[i] += kept[i].keep()
                    took[i] += time.process_time() - begun
            for each in kept:
                each.close()
        done += count
        bits = [8 * g / count / training.parameters for g in grown]
        yield step, bits, [t / count for t in took]


# -- the example of the README ------------------------------------------------------------------


Version = dict[str, object]


def trained(keep: Callable[[nn.Module, torch.optim.Optimizer], object]) -> None:
    """The training of ``examples/online_digits.py``; ``keep`` is called with every version."""
    torch.manual_seed(8)
    stream = drift_stream(6, batches=BATCHES, seed=8)
    model = conv_net()
    optimizer = rmsprop(model)
    for _ in range(2):
        train_epoch(model, optimizer, stream.offline)
    keep(model, optimizer)
    for batch in stream.online:
        train_batch(model, optimizer, batch)
        keep(model, optimizer)


def versions() -> list[Version]:
    found: list[Version] = []

    def keep(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        found.append(copy.deepcopy(state))

    trained(keep)
    return found


def online() -> None:
    states = versions()
    weights = [{"model": state["model"]} for state in states]
    head(f"{len(states)} versions", "MB on disk", "of the weights alone")
    alone = 0
    for title, kept, known in (
        ("weights alone", weights, nullcontext()),
        ("with the optimizer's state, as deltas", states, without_rules()),
        ("with the optimizer's state", states, nullcontext()),
    ):
        with work_folder() as place, known:
            committed(place, kept)
            size = bytes_below(place)
        alone = alone or size
        row(title, f"{size / 1e6:.1f}", f"{size / alone:.3f}")


def committed(place: Path, states: list[Version], bound: float | None = None) -> list[mvc.CommitId]:
    mvc.Repository.init(place).close()
    if bound is not None:
        configure(place, max_recovery=bound)
    with mvc.Repository.open(place) as repo:
        return [repo.commit(state, message="batch", deploy="prod").id for state in states]


def recorder() -> None:
    took: dict[str, list[tuple[float, float]]] = {"as deltas": [], "with the rules": []}
    for _ in range(ROUNDS):
        with without_rules():
            took["as deltas"] += recorded()
        took["with the rules"] += recorded()
    head(f"median of {ROUNDS} trainings", "ms of a step", "ms of a version", "ratio")
    first = 0.0
    for title, pairs in took.items():
        stall, whole = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
        first = first or whole
        row(title, f"{stall:.1f}", f"{whole:.0f}", f"{whole / first:.2f}")


def recorded() -> list[tuple[float, float]]:
    """Of every version the seconds that its step takes, and until it is committed."""
    found: list[tuple[float, float]] = []
    with work_folder() as place, mvc.Repository.init(place) as repo, ExitStack() as stack:
        recorders: list[mvc.Recorder] = []

        def keep(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
            if not recorders:
                made = mvc.Recorder(repo, model, optimizer, deploy="prod")
                recorders.append(stack.enter_context(made))
            stall = seconds(recorders[0].step)
            found.append((stall, stall + seconds(recorders[0].flush)))

        trained(keep)
    return found


def recovery() -> None:
    states = versions()
    head("store.max_recovery", "MB on disk", "longest checkout, s")
    for bound in (None, 1.0, 0.5, 0.25):
        with work_folder() as place:
            ids = committed(place, states, bound)
            row(str(bound), f"{bytes_below(place) / 1e6:.1f}", f"{longest(place, ids):.2f}")


def longest(place: Path, ids: list[mvc.CommitId]) -> float:
    """Seconds until the last of all versions to come back is there."""

    def back(id_: mvc.CommitId) -> None:
        with mvc.Repository.open(place) as repo:
            repo.checkout(id_)

    return max(seconds(back, id_) for id_ in ids)


# -- trainings as they should not be -----------------------------------------------------------

WILD_TRAININGS = 60


def wild() -> None:
    names = [name for name in STRANGE if name not in ("sparse adam", "adadelta")]
    more: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(WILD_TRAININGS):
        random = Random(seed)
        name = random.choice(names)
        more[name].append(compared(list(wild_states(name, random))))
    for count in (4, 8, 10, 16):
        more[f"adam, 300 tensors of {count}"] = [compared(list(short_states(count)))]
    head("optimizer", "trainings", "bytes at least", "bytes at most, of those of deltas")
    for name, found in more.items():
        if found:
            row(name, str(len(found)), f"{min(found):.4f}", f"{max(found):.4f}")


def compared(states: list[Version]) -> float:
    """The bytes of a repository beside one that knows no optimizer."""
    sizes = []
    for known in (nullcontext(), without_rules()):
        with work_folder() as place, known:
            committed(place, states)
            files = (place / ".mvc" / "packs").iterdir()
            sizes.append(sum(f.stat().st_size for f in files))
    return sizes[0] / sizes[1]


def wild_states(name: str, random: Random) -> Iterator[Version]:
    make, kinds_ = STRANGE[name]
    torch.manual_seed(random.getrandbits(30))
    dtype = torch.float64 if random.random() < 0.3 else torch.float32
    net = Net(dtype, sparse=False)
    layers = (net.rows, net.layer, net.resting)
    moved = [*(p for layer in layers for p in layer.parameters()), net.nothing]
    optimizer = make(moved, **arguments(kinds_, random))
    broken, pushed = random.random() < 0.4, random.random() < 0.4
    for _ in range(random.choice((6, 20, 36))):
        optimizer.zero_grad()
        net(torch.randint(0, 50, (20,))).backward()
        gradients = [p.grad for p in net.parameters() if p.grad is not None and p.grad.numel()]
        if broken and random.random() < 0.2:
            for gradient in gradients:
                gradient.view(-1)[random.randrange(gradient.numel())] = random.choice(
                    STRANGE_NUMBERS
                )
        optimizer.step()
        if pushed and random.random() < 0.5:
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.mul_(0.999)
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
        yield copy.deepcopy(state)


def short_states(count: int) -> Iterator[Version]:
    torch.manual_seed(0)
    net = nn.ParameterList([nn.Parameter(torch.randn(count) * 0.05) for _ in range(300)])
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(36):
        for parameter in net.parameters():
            parameter.grad = torch.randn(count) * 1e-2
        optimizer.step()
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
        yield copy.deepcopy(state)


PARTS: dict[str, Callable[[], None]] = {
    part.__name__: part for part in (online, recorder, recovery, wild)
}


# -- speeds ----------------------------------------------------------------------------------


def arrays_of(training: Training) -> dict[str, np.ndarray]:
    """The weights and states of the largest tensor."""
    parameter = max(training.model.parameters(), key=torch.Tensor.numel)
    whole = {"param": parameter, **training.optimizer.state[parameter]}
    return {
        name: value.detach().clone().numpy().reshape(-1)
        for name, value in whole.items()
        if torch.is_tensor(value) and value.dim()
    }


def speed(names: list[str]) -> None:
    head("MB/s of all tensors", "predict", "encode", "decode", "encode as deltas", "decode")
    for name in names:
        training = Training("conv", name)
        for _ in range(60):
            training.step()
        old = arrays_of(training)
        training.step()
        new = arrays_of(training)
        values = dict(training.optimizer.param_groups[0])
        state = next(iter(training.optimizer.state.values()))
        scalars = {k: float(v) for k, v in state.items() if torch.is_tensor(v) and not v.dim()}
        known = kinds_of(set(new) - {"param"}, values)
        found = choose_predictions(known, [{**values, **scalars}], old, new)
        jobs = []
        for member, array in new.items():
            chosen = found.get(member)
            places = [(True, member), *(chosen.inputs if chosen else ())]
            sources = [repeated((old if older else new)[n]) for older, n in places]
            prediction = None if chosen is None else chosen.prediction.finer
            jobs.append(Job(prediction, sources, repeated(array)))
        plain = [Job(None, [repeated(old[m])], repeated(a)) for m, a in new.items()]
        rates = [rate(jobs, Job.predict), rate(jobs, Job.encode), rate(jobs, Job.decode)]
        rates += [rate(plain, Job.encode), rate(plain, Job.decode)]
        row(name, *(f"{r:,.0f}" for r in rates))


def repeated(array: np.ndarray) -> memoryview:
    """A chunk of its bytes, over and over."""
    return memoryview((array.tobytes() * (CHUNK // array.nbytes + 1))[:CHUNK])


class Job:
    """A chunk of one tensor: what is predicted, encoded and decoded."""

    pipeline = Pipeline.parse("lossless")

    def __init__(
        self, prediction: Prediction | None, sources: list[memoryview], new: memoryview
    ) -> None:
        self.prediction, self.sources, self.new = prediction, sources, new
        self.state = memoryview(bytearray(len(new)))
        self.encode()
        self.decode()
        assert self.state == new

    def predict(self) -> None:
        base, *inputs = self.sources
        if self.prediction is None:
            self.state[:] = base
        else:
            self.prediction.fill(base, inputs, self.state, new=self.new)

    def encode(self) -> None:
        if self.prediction is None:
            self.encoded = self.pipeline.encode_chunk(self.new, self.sources[0], 4)
            return
        parts, _ = encode_predicted(
            self.pipeline, self.prediction, self.new, sources=self.sources, width=4
        )
        self.encoded = b"".join(parts)

    def decode(self) -> None:
        chunk = memoryview(self.encoded)
        if self.prediction is None:
            self.predict()
            self.pipeline.apply_chunk(chunk, self.state, 4, reverse=False)
            return
        apply_predicted(
            self.pipeline, self.prediction, chunk, self.sources, out=self.state, width=4
        )


def rate(jobs: list[Job], work: Callable[[Job], None]) -> float:
    """MB/s over the chunks of all tensors together."""
    best, until = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        begun = time.perf_counter()
        for job in jobs:
            work(job)
        best = min(best, time.perf_counter() - begun)
    return sum(len(job.new) for job in jobs) / best / 1e6


if __name__ == "__main__":
    main()
