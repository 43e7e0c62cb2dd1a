"""What every protocol shares: who takes part, rounds, the average, and guards against the unfit.

Both sides are pure state machines: messages in, messages out, no I/O, no clock. A channel from one
to the other keeps the order of its messages and loses none; nothing else is assumed of the network.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mvc.distributed import messages as m
from mvc.distributed.codecs import Wire, codec_named
from mvc.distributed.safe import SAFE_FUNCTIONS, SafeFunction, Threshold, Vector
from mvc.errors import BadMessage, CannotDistribute, WrongUsage

__all__ = ["Coordinator", "Counts", "Protocol", "Vector", "VectorLayout", "Worker"]


class VectorLayout(Struct, frozen=True):
    """What the flat vector of a model holds: parameters first, then statistics of its layers.

    ``measured``: how many numbers are parameters. The statistics (running means and variances of
    BatchNorm) are averaged as they are, without codec and outer step, and safe functions do not see
    them. ``digest``: 16 bytes that tell this network from others. Integer buffers and the state of
    the optimizer are not part of the vector: they stay where they are.
    """

    length: int
    measured: int
    dtype: np.dtype[Any]
    digest: bytes

    @staticmethod
    def of(
        model: NDArray[Any], measured: int | None = None, digest: bytes = bytes(16)
    ) -> VectorLayout:
        """Raises WrongUsage unless the model is a flat vector of finite float32 or float64."""
        if model.ndim != 1 or model.dtype not in (np.float32, np.float64) or not len(model):
            shape = "x".join(map(str, model.shape)) or "()"
            raise WrongUsage(
                f"a model is {model.dtype} {shape}: it must be a flat vector of float32 or float64"
            )
        if not np.isfinite(model).all():
            raise WrongUsage("the model holds numbers that are not finite")
        measured = len(model) if measured is None else measured
        if not 0 < measured <= len(model) or len(digest) != 16:
            raise WrongUsage(f"{measured} of {len(model)} numbers cannot be parameters")
        return VectorLayout(len(model), measured, model.dtype, digest)


class Protocol(Struct, frozen=True):
    """The options of a protocol.

    ``threshold``, ``safe``: of gm, fgm and fda (which takes no safe function). ``every``: updates
    between averages, of the periodic ones. ``balancing``: random, hedge or none (gm). ``barrier``:
    a round ends when psi has come that near to zero, as a share of its first value (fgm).
    ``rebalance``: c_r, or None for no rebalancing (fgm): the round goes on after a flush if psi is
    below that share of its first value. ``outer_rate``, ``outer_momentum``: of the coordinator's
    step; 1 and 0 are plain averaging. ``up``, ``down``: codecs of drifts and of the model's change.
    """

    name: str
    threshold: Threshold | None = None
    safe: str = "norm"
    every: int = 16
    balancing: str = "random"
    barrier: float = 0.01
    rebalance: float | None = None
    outer_rate: float = 1.0
    outer_momentum: float = 0.0
    up: str = "none"
    down: str = "none"
    seed: int = 0

    @property
    def measured_in(self) -> int | None:
        """In how many updates the radius is found; None if there is none, or it is given."""
        return None if self.threshold is None else self.threshold.steps

    @property
    def alarms(self) -> bool:
        """True if a drift that a worker sends by itself is answered before the others send
        theirs.
        """
        return self.name.startswith("gm")

    def describe(self, model: NDArray[Any], found: float | None = None) -> str:
        """The threshold in all units at this model, or the period."""
        if self.threshold is None:
            return f"every {self.every} updates"
        return self.threshold.describe(model.astype(np.float64), found)

    def safe_function(self, reference: Vector, found: float | None = None) -> SafeFunction:
        """The safe function of a round that begins with these parameters.

        ``found``: the radius, if the training finds it.
        """
        assert self.threshold is not None
        radius = self.threshold.radius_at(reference, found)
        assert radius is not None
        return SAFE_FUNCTIONS[self.safe](reference, radius)

    def wires(self, layout: VectorLayout) -> tuple[Wire, Wire]:
        up, down = (
            Wire(codec_named(name), layout.measured, layout.length, layout.dtype)
            for name in (self.up, self.down)
        )
        return up, down


class Counts(Struct):
    """What a run has done so far. Bytes are those of whole messages, late ones included."""

    rounds: int = 0
    subrounds: int = 0
    balances: int = 0
    up: int = 0
    down: int = 0
    messages_up: int = 0
    messages_down: int = 0

    @property
    def bytes(self) -> int:
        return self.up + self.down


class Coordinator(ABC):
    """Holds the global model, ``reference``: a vector in the model's element type.

    Feed it with ``on_messages`` and send what it returns. ``counts.rounds`` grows by one with every
    new global model; more than one new model never comes from one call. ``finished`` is true when
    all workers are done and the last average is made. If the radius of the safe zone is to be
    found, rounds end after a fixed number of updates until ``radius`` is known. Raises BadMessage,
    which names the worker, for a message that does not fit; CannotDistribute if the next model
    would not be finite. ``reference`` then is the last one.
    """

    def __init__(
        self,
        protocol: Protocol,
        model: NDArray[Any],
        workers: Iterable[int],
        layout: VectorLayout | None = None,
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        """``workers``: for whom the first round waits. ``memory``: of a coordinator before this
        one, to go on from its last model. Raises WrongUsage without a worker.
        """
        self.protocol = protocol
        self.layout = layout or VectorLayout.of(model)
        self.reference = model.copy()
        self.counts = Counts()
        self.finished = False
        self.expected = set(workers)
        if not self.expected:
            raise WrongUsage("averaging needs at least one worker")
        self.round = 0
        self.subround = 0
        self.members: set[int] = set()
        self.done: set[int] = set()
        self.drifts: dict[int, Vector] = {}
        self._asked: set[int] = set()
        self._pending: set[int] = set()  # of those done: with a drift that is in no average
        self._ending = False
        self._outbox: list[m.Message] = []
        self._safe: SafeFunction | None = None
        self._up, self._down = protocol.wires(self.layout)
        self._velocity: Any = 0.0
        self._residual = np.zeros(self.layout.length)
        self.radius: float | None = None
        self._told_radius: float | None = None
        if memory is not None:
            if protocol.measured_in is not None and "radius" in memory:
                self.radius = float(memory["radius"])
            self.round = int(memory["round"])
            self._residual[:] = memory["residual"]
            self._velocity = np.asarray(memory["velocity"], np.float64)
        self._new_round()

    # ---- the caller's side

    def on_messages(self, batch: Sequence[m.Message]) -> list[m.Message]:
        """Takes messages that arrived together, in this order; gives the answers."""
        for message in batch:
            self.counts.up += message.size
            self.counts.messages_up += 1
            self._receive(message)
        return self._answers()

    def memory(self) -> dict[str, Any]:
        """What, beside the reference, a coordinator needs to go on from here between rounds."""
        found = {} if self.radius is None else {"radius": np.array(self.radius)}
        return {
            "round": self.round,
            "residual": self._residual.copy(),
            "velocity": np.array(self._velocity),
            **found,
        }

    # ---- what a protocol defines

    @abstractmethod
    def _new_round(self) -> None:
        """A round begins: what was counted is void."""

    @abstractmethod
    def _take(self, message: m.Message) -> None:
        """A message of this sub-round that is no drift. Raises BadMessage if it cannot be one."""

    @abstractmethod
    def _decide(self) -> None:
        """All that has arrived is taken: send what follows from it."""

    def _on_drift(self, message: m.Drift) -> None:  # noqa: B027 - most need nothing
        """A drift has been taken."""

    def _idle(self) -> bool:
        """True if no answer is awaited."""
        return not self.drifts and not self._asked

    def _unaveraged(self) -> bool:
        """True if, all being done, there is something that is in no average."""
        return bool(self._pending)

    def _subround_of(self, worker: int) -> int:  # noqa: ARG002 - geometric monitoring needs it
        """The sub-round in which this worker must be."""
        return self.subround

    def _quantum(self) -> float:
        return 0.0

    # ---- what protocols use

    @property
    def measuring(self) -> bool:
        """True as long as the radius is to be found."""
        return self.protocol.measured_in is not None and self.radius is None

    @property
    def safe(self) -> SafeFunction:
        if self._safe is None:
            reference = self.reference[: self.layout.measured].astype(np.float64)
            self._safe = self.protocol.safe_function(reference, self.radius)
        return self._safe

    def _measure(self, drifts: Sequence[Vector]) -> float:
        """The radius that these drifts of parameters reach."""
        reference = self.reference[: self.layout.measured].astype(np.float64)
        return self.protocol.safe_function(reference, found=1.0).radius_of(drifts)

    def _average_all(self) -> None:
        """Ends the round once all drifts are here; who is done is asked."""
        if self.drifts.keys() >= self.members:
            self._end_round(self._mean(self.drifts))
        elif self.drifts:
            self._fetch(self.done)

    def _find_radius(self) -> None:
        """From the drifts of those that have trained to the end of the measured period."""
        drifts = [self.drifts[each] for each in sorted(self.drifts.keys() - self.done)]
        if drifts and self.drifts.keys() >= self.members:
            radius = self._measure([drift[: self.layout.measured] for drift in drifts])
            if 0 < radius < math.inf:
                self.radius = radius

    def _send(self, message: m.Message) -> None:
        self._outbox.append(message)

    def _fetch(self, workers: Iterable[int]) -> None:
        """Asks for the drifts that are neither here nor asked for."""
        for worker in sorted(set(workers) - set(self.drifts) - self._asked):
            self._asked.add(worker)
            self._send(m.Fetch(worker, self.round, self._subround_of(worker)))

    def _mean(self, drifts: Mapping[int, Vector]) -> Vector:
        """Added in the order of the workers' numbers."""
        total = np.zeros(self.layout.length)
        for worker in sorted(drifts):
            total += drifts[worker]
        return total / len(drifts)

    def _end_round(self, mean: Vector) -> None:
        """The reference moves by the mean drift, or as the outer step says; a round begins."""
        measured = self.layout.measured
        change = mean + self._residual
        change[:measured] = self._step(mean[:measured]) + self._residual[:measured]
        before = self.reference.astype(np.float64)
        data = b""
        reference = self._finite(before + change)
        if not self._down.codec.exact:
            data, decoded = self._down.encode(change)
            reference = self._finite(before + decoded)
        self.reference = reference
        if data:
            self._residual = before + change - self.reference
        self.counts.rounds += 1
        if self._ending:
            self._stop()
            return
        self._begin(data)

    def _step(self, mean: Vector) -> Vector:
        """What is made of the mean drift: Nesterov's momentum, or the drift itself."""
        rate, momentum = self.protocol.outer_rate, self.protocol.outer_momentum
        if momentum == 0:
            return rate * mean
        self._velocity = momentum * self._velocity + mean
        return np.asarray(rate * (mean + momentum * self._velocity))

    def _finite(self, model: Vector) -> NDArray[Any]:
        """In the model's element type. Raises CannotDistribute."""
        with np.errstate(over="ignore"):  # looked at below
            reference = model.astype(self.layout.dtype)
        if not np.isfinite(reference).all():
            raise CannotDistribute(
                "the next global model would hold numbers that are not finite",
                hint="lower the learning rate, or the rate and momentum of the outer step",
            )
        return reference

    def _stop(self) -> None:
        self.finished = True
        for worker in sorted(self.members):
            self._send(m.Stop(worker, self.round, 0))

    def _begin(self, change: bytes = b"") -> None:
        """A round begins, with the whole model or its encoded change."""
        self.round += 1
        self.subround = 0
        self.drifts.clear()
        self._asked.clear()
        self._pending.clear()
        self._safe = None
        self._new_round()
        data, full = change or self.reference.tobytes(), 0 if change else 1
        quantum, number = self._quantum(), self.round
        for worker in sorted(self.members):
            if self.radius is not None and self._told_radius is None:
                self._send(m.Radius(worker, number, 0, self.radius))
            self._send(m.Begin(worker, number, 0, full=full, quantum=quantum, data=data))
        self._told_radius = self.radius

    # ---- the rest

    def _receive(self, message: m.Message) -> None:
        worker = message.worker
        if not message.up:
            raise BadMessage(f"worker {worker} sends {type(message).__name__}, which only it gets")
        if isinstance(message, m.Join):
            self._join(message)
        elif isinstance(message, m.Done):
            self.done.add(worker)
            if message.pending and message.round == self.round:
                self._pending.add(worker)
        elif (
            worker in self.members
            and message.round == self.round
            and message.subround == self._subround_of(worker)
            and not self.finished
        ):  # or else it is late
            if isinstance(message, m.Drift):
                self._take_drift(message)
            else:
                self._take(message)

    def _join(self, message: m.Join) -> None:
        worker, layout = message.worker, self.layout
        if message.length != layout.length:
            raise BadMessage(
                f"worker {worker} has a model of {message.length} numbers, not {layout.length}"
            )
        if message.layout != layout.digest:
            raise BadMessage(f"worker {worker} has a model with other names, shapes or types")
        self.members.add(worker)
        if self.members == self.expected:
            self._begin()

    def _take_drift(self, message: m.Drift) -> None:
        worker = message.worker
        if worker in self.drifts:
            return
        try:
            self.drifts[worker] = self._up.decode(message.data)
        except BadMessage as error:
            raise BadMessage(f"the drift of worker {worker}: {error.message}") from None
        self._asked.discard(worker)
        self._on_drift(message)

    def _answers(self) -> list[m.Message]:
        if self.members == self.expected and not self.finished:
            if self.measuring:
                self._find_radius()
                self._average_all()
            else:
                self._decide()
            if self.members == self.done and not self._ending and self._idle():
                self._ending = True
                if self._unaveraged():
                    self._fetch(self.members)
                else:
                    self._stop()
        answers, self._outbox = self._outbox, []
        for message in answers:
            self.counts.down += message.size
            self.counts.messages_down += 1
        return answers


class Worker(ABC):
    """Trains ``model``, a flat vector that it shares with the caller.

    The caller sends ``join()``, and then, whenever ``waiting`` is false, trains, writes the new
    parameters into ``model`` and calls ``on_update``. It passes every message to ``on_message``; if
    ``changed`` is true afterwards, ``model`` has been overwritten: it sets ``changed`` to false and
    loads the vector into its network. The optimizer's state stays as it is.
    """

    def __init__(
        self,
        protocol: Protocol,
        number: int,
        model: NDArray[Any],
        layout: VectorLayout | None = None,
    ) -> None:
        self.protocol = protocol
        self.number = number
        self.model = model
        self.layout = layout or VectorLayout.of(model)
        self.reference = model.copy()
        self.waiting = True
        self.changed = False
        self.finished = False
        self.round = -1
        self.subround = 0
        self.updates = 0
        self._steps = 0  # since the round began
        self.radius: float | None = None
        self._up, self._down = protocol.wires(self.layout)
        self._residual: Vector | None = None

    # ---- the caller's side

    def join(self) -> list[m.Message]:
        """Asks to take part. What the model holds is lost: the coordinator's takes its place."""
        self.round, self.waiting, self._residual, self.radius = -1, True, None, None
        return [m.Join(self.number, 0, 0, length=self.layout.length, layout=self.layout.digest)]

    def on_update(self) -> list[m.Message]:
        """The model has been trained: says what must be said.

        Raises BadMessage if the model holds numbers that are not finite; nothing is sent then.
        """
        if self.waiting:
            raise WrongUsage(f"worker {self.number} waits for an answer: it must not train now")
        self.updates += 1
        self._steps += 1
        if self.measuring:
            return self._after(self.protocol.measured_in or 0)
        return self._watch()

    def on_message(self, message: m.Message) -> list[m.Message]:
        """Takes one message; gives the answers. Raises BadMessage if it does not fit."""
        if isinstance(message, m.Begin):
            return self._begin(message)
        if isinstance(message, m.Radius):
            self.radius = message.radius
            return []
        if isinstance(message, m.Stop):
            self.finished = self.waiting = True
            return []
        if message.round != self.round or message.up:
            return []
        if isinstance(message, m.Fetch):
            late = self.waiting_for_model or message.subround != self.subround
            return [] if late else [self._drift(alarm=0)]
        return [] if self.measuring else self._take(message)

    def end(self) -> list[m.Message]:
        """There is nothing more to train on. The worker still answers until it is ``finished``."""
        pending = int(self._steps > 0)
        return [m.Done(self.number, max(self.round, 0), self.subround, pending)]

    # ---- what a protocol defines

    @abstractmethod
    def _watch(self) -> list[m.Message]:
        """The model has changed."""

    @abstractmethod
    def _take(self, message: m.Message) -> list[m.Message]:
        """A message of this round that is neither Begin, Fetch nor Stop."""

    def _on_begin(self, message: m.Begin) -> list[m.Message]:  # noqa: ARG002
        """A round has begun: the model is the reference."""
        return []

    # ---- what protocols use

    waiting_for_model = False
    """True between a drift and the model that answers it."""

    def drift(self) -> Vector:
        """What is to be sent: the way from the reference, and what was lost when last sent.

        Raises BadMessage if it holds numbers that are not finite.
        """
        drift: Vector = np.subtract(self.model, self.reference, dtype=np.float64)
        if self._residual is not None:
            drift += self._residual
        return drift

    def value(self, safe: SafeFunction, share: float = 1.0) -> float:
        """The safe function of what the coordinator will decode, as its perspective
        ``share * phi(X / share)``. Raises BadMessage if it is not finite.
        """
        drift = self.drift()
        if not self._up.codec.exact:
            self._check(drift)
        drift = self._up.rounded(drift)
        value = safe.of(drift) if share == 1 else share * safe.of(drift / share)
        beside = self.model[self.layout.measured :]
        if not (np.isfinite(value) and np.isfinite(beside).all()):
            raise self._not_finite()
        return value

    def safe_function(self) -> SafeFunction:
        reference = self.reference[: self.layout.measured].astype(np.float64)
        return self.protocol.safe_function(reference, self.radius)

    @property
    def measuring(self) -> bool:
        """True as long as the training is to find the radius."""
        return self.protocol.measured_in is not None and self.radius is None

    def _after(self, updates: int) -> list[m.Message]:
        """Sends the drift after so many updates in the round."""
        return [self._drift(alarm=1)] if self._steps >= updates else []

    def _drift(self, alarm: int) -> m.Drift:
        """The message with the drift. The worker waits from now on."""
        drift = self.drift()
        self._check(drift)
        data, decoded = self._up.encode(drift)
        if not self._up.codec.exact:
            self._residual = drift - decoded
        self.waiting = self.waiting_for_model = True
        return m.Drift(self.number, self.round, self.subround, alarm=alarm, data=data)

    def _check(self, drift: Vector) -> None:
        if not np.isfinite(drift).all():
            raise self._not_finite()

    def _train_on(self) -> None:
        self.waiting = self.waiting_for_model = False

    def _load(self, model: NDArray[Any]) -> None:
        self.model[:] = model
        self.changed = True

    def _begin(self, message: m.Begin) -> list[m.Message]:
        if message.round <= self.round:
            return []
        if message.full:
            if len(message.data) != self.layout.length * self.layout.dtype.itemsize:
                raise BadMessage(f"worker {self.number} got a model of another length")
            self.reference = np.frombuffer(message.data, self.layout.dtype)
        else:
            change = self._down.decode(message.data)
            self.reference = (self.reference + change).astype(self.layout.dtype)
        self.round, self.subround = message.round, message.subround
        self._load(self.reference)
        self._steps = 0
        self._train_on()
        return [] if self.measuring else self._on_begin(message)

    def _not_finite(self) -> BadMessage:
        return BadMessage(
            f"worker {self.number}: its model holds numbers that are not finite after update "
            f"{self.updates}; nothing was sent"
        )
