"""One run: warm-up at the coordinator, then workers that train and talk, then the figures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from mvc.distributed.protocols.base import Coordinator
from mvc.distributed.protocols.named import NamedProtocol, protocol_named
from mvc.distributed.safe import SAFE_FUNCTIONS
from mvc.distributed.simulator import Simulation
from mvc.errors import BadMessage, CannotDistribute, WrongUsage

from ..experiment import known, option
from .tasks import Network, Task

__all__ = ["CENTRAL", "Drifting", "Setting", "Training", "run"]

CENTRAL = "central"
_VALIDATION = 0.1
_BETAS = (0.9, 0.99)
_EPSILON = 1e-8
_CURVE = 24  # points of a curve
_GRAMMAR = re.compile(
    r"(?P<name>[a-z-]+?)(:(?P<detail>[a-z0-9.]+))?(@(?P<number>[PT]?[0-9.]+))?"
    r"(\+(?P<up>[a-z0-9.:=]+))?"
)


@dataclass(frozen=True)
class Setting:
    """A protocol as text: ``fgm@20``, ``fgm:cap@20+int8``, ``fgm-rebalancing:0.5@20``,
    ``local-sgd@16``, ``sync``, ``central``.

    The number is rho, every, or with a T before it the threshold relative to the model's norm, or
    with a P the updates in which the threshold is found.
    ``:`` names a safe function or c_r, ``+`` a codec for both ways.
    """

    text: str

    def protocol(self, rate: float, seed: int) -> NamedProtocol | None:
        """The protocol at a learning rate; None for central training. Raises WrongUsage."""
        parts = _GRAMMAR.fullmatch(self.text)
        if not parts:
            raise WrongUsage(f"{self.text} is no protocol such as fgm@20 or local-sgd@16+int8")
        name, detail, number, up = (parts[each] for each in ("name", "detail", "number", "up"))
        if name == CENTRAL:
            return None
        options: dict[str, Any] = {"up": up, "down": up, "seed": seed, "rate": rate}
        if detail in SAFE_FUNCTIONS:
            options["safe"] = detail
        elif detail is not None:
            options["rebalance"] = _number(detail)
        if number is not None:
            if name in {"local-sgd", "diloco"}:
                options["every"] = int(_number(number))
            elif number.startswith("T"):
                options["relative"] = _number(number[1:])
            elif number.startswith("P"):
                options["period"] = int(_number(number[1:]))
            else:
                options["rho"] = _number(number)
        return protocol_named(name, **options)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise WrongUsage(f"{text} is no number") from None


@dataclass(frozen=True)
class Drifting:
    """A class that is not there in the first half of the stream; then its share in batches grows
    evenly to ``peak``. ``sites``: how many workers get it.
    """

    label: int
    sites: int
    peak: float = 0.5


@dataclass(frozen=True)
class Training:
    """How a run is trained; the state of Adam stays with each worker and is never reset.

    ``warm_share``: of the training samples; the first model is trained on them with Adam, and the
    workers do not get them. ``optimizer``: of the workers, adam or sgd.
    """

    workers: int = 8
    batch_size: int = option(4, "Samples of an update.", "N")
    epochs: float = option(10.0, "Of the workers' stream.", "N")
    warm_epochs: int = option(5, "Of the first model, before workers begin.", "N")
    warm_rate: float = 0.005
    warm_share: float = option(
        0.05, "Of the samples: those of the first model, which workers do not get.", "SHARE"
    )
    optimizer: str = option("adam", "Of the workers: adam or sgd.", "NAME")
    drifting: Drifting | None = None

    def __post_init__(self) -> None:
        """Raises WrongUsage for values out of range."""
        for name, least in (("workers", 2), ("batch_size", 1), ("warm_epochs", 0)):
            if (value := getattr(self, name)) < least:
                raise WrongUsage(f"{name} is {value}: it must be at least {least}")
        known("optimizer", _OPTIMIZERS, self.optimizer)
        if not 0 < self.warm_share <= 0.8:
            raise WrongUsage(f"warm_share is {self.warm_share:g}: it must be in (0, 0.8]")
        if not 0 <= self.epochs < 10_000:
            raise WrongUsage(f"epochs is {self.epochs:g}: it must be at least 0")


class Sgd:
    """Plain gradient descent over rows; each row is the model of a worker."""

    def __init__(self, network: Network, rows: int, rate: float) -> None:  # noqa: ARG002
        self._network, self._rate = network, rate

    def step(self, models: Tensor, active: list[int], samples: Tensor, labels: Tensor) -> None:
        """Trains these rows in place on ``(rows, batch, ...)``."""
        rows = slice(None) if len(active) == len(models) else active
        flat = models[rows].detach().requires_grad_()
        logits = self._network.logits(flat, samples)
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        (gradient,) = torch.autograd.grad(loss / labels.shape[1], flat)
        with torch.no_grad():
            models[rows] = flat - self._rate * self._direction(gradient, rows)

    def _direction(self, gradient: Tensor, rows: Any) -> Tensor:  # noqa: ARG002
        return gradient


class Adam(Sgd):
    """Adam over rows: each worker has its own moments and its own count of steps."""

    def __init__(self, network: Network, rows: int, rate: float) -> None:
        super().__init__(network, rows, rate)
        self._first, self._second = torch.zeros(2, rows, network.length)
        self._steps = torch.zeros(rows, 1)

    def _direction(self, gradient: Tensor, rows: Any) -> Tensor:
        self._steps[rows] += 1
        steps = self._steps[rows]
        first = self._first[rows] * _BETAS[0] + gradient * (1 - _BETAS[0])
        second = self._second[rows] * _BETAS[1] + gradient.square() * (1 - _BETAS[1])
        self._first[rows], self._second[rows] = first, second
        first = first / (1 - _BETAS[0] ** steps)
        second = second / (1 - _BETAS[1] ** steps)
        direction: Tensor = first / (second.sqrt() + _EPSILON)
        return direction


_OPTIMIZERS: dict[str, type[Sgd]] = {"adam": Adam, "sgd": Sgd}


def run(task: Task, setting: Setting, training: Training, rate: float, seed: int) -> dict[str, Any]:
    """The figures of one run as plain values. Equal arguments, equal figures on one machine.

    If the next global model would not be finite, or a worker's is not, the run has
    diverged: its cross-entropy is not a number.
    """
    protocol = setting.protocol(rate, seed)
    random = np.random.default_rng([seed, 1])
    order = random.permutation(len(task.train[1]))
    shares = training.warm_share, training.warm_share + _VALIDATION
    warm, validation, rest = np.split(order, [round(share * len(order)) for share in shares])
    if training.drifting is not None:  # the first half knows nothing of the class, warm-up neither
        warm = warm[task.train[1][warm].numpy() != training.drifting.label]
    model = task.network.first(seed)
    first = replace(training, optimizer="adam", epochs=training.warm_epochs)
    _central(task, model, warm, first, training.warm_rate, random)
    figures: dict[str, Any] = {
        "setting": setting.text, "seed": seed, "rate": rate, "parameters": task.network.length,
        "workers": training.workers,
    }  # fmt: skip
    if protocol is None:
        # the same number of updates of one model, each on a batch of one worker's size
        _central(task, model, rest, training, rate, random)
        figures |= {"bytes": 0, "ticks": 0}
    else:
        if setting.text.startswith(("gm", "fgm", "fda")):
            figures["threshold"] = protocol.describe(model)
        rounds_at: list[int] = []
        simulation = Simulation(
            protocol, model, training.workers, on_round=lambda _: rounds_at.append(simulation.ticks)
        )
        stream = _batches(task, rest, training, random)
        model, measured = _simulated(task, simulation, training, rate, stream)
        figures |= measured | {"rounds_at": rounds_at}
        if training.drifting is not None:
            figures |= _of_class(task, model, training.drifting.label)
            figures |= _halves(rounds_at, measured["ticks"])
    held = tuple(each[validation] for each in task.train)
    return figures | _figures(task, model, held)


def _simulated(
    task: Task,
    simulation: Simulation,
    training: Training,
    rate: float,
    stream: tuple[int, Iterator[NDArray[np.int64]]],
) -> tuple[NDArray[Any], dict[str, Any]]:
    """The global model after the whole stream, and what was sent."""
    ticks, batches = stream
    models = torch.from_numpy(simulation.models)
    optimizer = _OPTIMIZERS[training.optimizer](task.network, training.workers, rate)
    curve: list[dict[str, Any]] = []

    def train(_: NDArray[Any], active: Any) -> tuple[int, ...]:
        rows = torch.from_numpy(next(batches)[list(active)])
        optimizer.step(models, list(active), task.train[0][rows], task.train[1][rows])
        return ()

    try:
        for tick in range(ticks):
            simulation.tick(train)
            if (tick + 1) % max(1, ticks // _CURVE) == 0:
                curve.append(_point(task, simulation.coordinator, tick + 1, training))
        simulation.finish()
        diverged = False
    except (BadMessage, CannotDistribute):
        diverged = True
    counts, model = simulation.coordinator.counts, simulation.coordinator.reference
    if diverged:
        model = np.full_like(model, math.nan)
    names = ("bytes", "up", "down", "rounds", "subrounds", "balances")
    return model, {name: getattr(counts, name) for name in names} | {
        "ticks": ticks, "curve": curve,
    }  # fmt: skip


def _central(
    task: Task,
    model: NDArray[np.float32],
    rows: NDArray[np.int64],
    training: Training,
    rate: float,
    random: np.random.Generator,
) -> None:
    """Trains one model in place."""
    one = torch.from_numpy(model[None])
    optimizer = _OPTIMIZERS[training.optimizer](task.network, 1, rate)
    size = min(training.batch_size, len(rows))
    steps = round(training.epochs * len(rows) / size)
    left = np.empty(0, np.int64)
    for _ in range(steps):
        if len(left) < size:
            left = np.concatenate((left, random.permutation(rows)))
        part, left = torch.from_numpy(left[:size]), left[size:]
        optimizer.step(one, [0], task.train[0][part][None], task.train[1][part][None])


def _batches(
    task: Task, rows: NDArray[np.int64], training: Training, random: np.random.Generator
) -> tuple[int, Iterator[NDArray[np.int64]]]:
    """How many ticks, and for each the samples ``(workers, batch)``."""
    workers, size = training.workers, training.batch_size
    ticks = round(training.epochs * len(rows) / (workers * size))
    if ticks < 1 or len(rows) < workers * size:
        raise WrongUsage(f"{len(rows)} samples are too few for {workers} workers")
    if training.drifting is None:
        return ticks, _shuffled(rows, workers, size, random)
    return ticks, _ramp(task, rows, training, ticks, random)


def _shuffled(
    rows: NDArray[np.int64], workers: int, size: int, random: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Each worker has its own part, in a new order in each epoch."""
    each = len(rows) // workers
    parts = rows[: each * workers].reshape(workers, each)
    left = np.empty((workers, 0), np.int64)
    while True:
        if left.shape[1] < size:
            left = np.concatenate((left, random.permuted(parts, axis=1)), axis=1)
        yield left[:, :size]
        left = left[:, size:]


def _ramp(
    task: Task,
    rows: NDArray[np.int64],
    training: Training,
    ticks: int,
    random: np.random.Generator,
) -> Iterator[NDArray[np.int64]]:
    drifting = training.drifting
    assert drifting is not None
    new = task.train[1][rows].numpy() == drifting.label
    known = _shuffled(rows[~new], training.workers, training.batch_size, random)
    for tick in range(ticks):
        batch = next(known).copy()
        share = drifting.peak * max(0.0, 2 * (tick + 1) / ticks - 1)
        shape = (drifting.sites, training.batch_size)
        replaced = random.random(shape) < share * training.workers / drifting.sites
        batch[: drifting.sites][replaced] = random.choice(rows[new], int(replaced.sum()))
        yield batch


@torch.no_grad()
def _outputs(task: Task, model: NDArray[Any], samples: Tensor) -> Tensor:
    one, ends = torch.from_numpy(np.ascontiguousarray(model[None])), range(2000, len(samples), 2000)
    parts = [
        task.network.logits(one, part[None])[0] for part in torch.tensor_split(samples, list(ends))
    ]
    return torch.cat(parts)


def _figures(task: Task, model: NDArray[Any], held: tuple[Tensor, ...]) -> dict[str, float]:
    """Of the test part; and of the validation part, by which rates are chosen."""
    logits, labels = _outputs(task, model, task.test[0]), task.test[1]
    scale = torch.arange(logits.shape[1]) / max(1, logits.shape[1] - 1)
    guess = logits.softmax(1) @ scale
    return {
        "accuracy": 100 * float((logits.argmax(1) == labels).float().mean()),
        "cross_entropy": float(functional.cross_entropy(logits, labels)),
        "legacy": 100 - 100 * float((guess - scale[labels]).square().mean()),
        "validation": float(
            functional.cross_entropy(_outputs(task, model, held[0]), held[1]).nan_to_num(math.inf)
        ),
    }


def _point(task: Task, hub: Coordinator, tick: int, training: Training) -> dict[str, Any]:
    samples, labels = task.test[0][:2000], task.test[1][:2000]
    right = _outputs(task, hub.reference, samples).argmax(1) == labels
    point = {
        "tick": tick,
        "bytes": hub.counts.bytes,
        "rounds": hub.counts.rounds,
        "accuracy": 100 * float(right.float().mean()),
    }
    if training.drifting is not None:
        new = labels == training.drifting.label
        point |= {"new": 100 * float(right[new].float().mean())}
    return point


def _halves(rounds_at: list[int], ticks: int) -> dict[str, int]:
    """Rounds and ticks before the class comes and after. The average at the end is none of them:
    it is made because the stream ends.
    """
    quiet = (ticks + 1) // 2
    before = sum(tick < quiet for tick in rounds_at)
    after = sum(quiet <= tick < ticks for tick in rounds_at)
    return {
        "quiet_rounds": before, "quiet_ticks": quiet,
        "ramp_rounds": after, "ramp_ticks": ticks - quiet,
    }  # fmt: skip


def _of_class(task: Task, model: NDArray[Any], label: int) -> dict[str, float]:
    right = _outputs(task, model, task.test[0]).argmax(1) == task.test[1]
    new = task.test[1] == label
    return {
        "accuracy_new": 100 * float(right[new].float().mean()),
        "accuracy_known": 100 * float(right[~new].float().mean()),
    }
