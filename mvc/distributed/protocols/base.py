"""Base classes of the protocols of distributed training: ``Coordinator`` and ``Worker``.

In a round, each worker trains a copy of the global model. The *drift* of a worker is its model
minus the global model. At the end of the round, the coordinator adds the mean of all drifts to the
global model. A protocol determines when a round ends. Some protocols divide a round into
sub-rounds.

The classes only take and return messages. The caller sends these messages. All messages between a
worker and the coordinator must arrive, in order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from mvc.distributed import messages as m
from mvc.distributed.codecs import VectorLayout, Wire, codec_named
from mvc.distributed.safe import SAFE_FUNCTIONS, Own, SafeFunction, Vector, norm_of
from mvc.errors import BadMessage, CannotDistribute, WrongUsage

__all__ = ["Coordinator", "Counts", "Protocol", "SafeName", "Vector", "Worker"]

PERIOD = 40
"""Default number of updates after which a radius is measured."""

_Positive = Annotated[float, Meta(gt=0, le=1e300)]
_Share = Annotated[float, Meta(gt=0, lt=1)]
_Number = Annotated[int, Meta(ge=1)]

SafeName = Literal["norm", "variance", "cap"]

_M = TypeVar("_M", bound=m.Message)
_T = TypeVar("_T")
Listening = Generator[None, Sequence[m.Message], _T]


class Protocol(Struct, frozen=True):
    """The options of a protocol. ``protocol_named`` creates a protocol and checks its options.

    A periodic protocol averages after every ``every`` updates; for all other protocols ``every`` is
    None. The other protocols are gm (geometric monitoring), fgm (functional geometric monitoring)
    and fda (federated dynamic averaging). They average when models are too far from the global
    model. The radius r is the distance that counts as far. Set r by one of four options:

    - ``radius``: r itself.
    - ``relative``: r is ``relative`` times the norm of the global model at the start of a round.
    - ``rho``: r is ``rho * rate * sqrt(n)``, for the learning rate ``rate`` and n parameters.
    - ``period``: r is measured, as the distance of the workers' models after ``period`` updates.
      This is the default, with ``PERIOD`` updates.

    ``safe``: the safe function of gm and fgm, a name or the user's function (``Own``). Its value is
    negative while a model is close enough. ``balancing``: how gm chooses the workers of an average
    (``GeometricCoordinator``). In fgm, psi is the sum of the values of all workers' safe functions,
    and negative at the start of a round. ``barrier``: a round ends when psi has risen to this
    fraction of its first value. Then all workers send their drifts. ``rebalance``: the round
    continues nevertheless if psi is then at most this fraction of its first value; None: never.
    ``outer_rate``, ``outer_momentum``: rate and momentum with which the coordinator adds the mean
    drift; 1 and 0 mean plain averaging. ``up``: codec of drifts. ``down``: codec of changes of the
    global model.
    """

    name: str
    radius: _Positive | None = None
    relative: _Positive | None = None
    rho: _Positive | None = None
    rate: _Positive | None = None
    period: _Number | None = None
    safe: SafeName | Any = "norm"
    every: _Number | None = None
    balancing: Literal["random", "hedge", "none"] = "random"
    barrier: _Share = 0.01
    rebalance: _Share | None = None
    outer_rate: Annotated[float, Meta(gt=0, lt=10)] = 1.0
    outer_momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    up: str = "none"
    down: str = "none"
    seed: Annotated[int, Meta(ge=0)] = 0

    @property
    def measured_in(self) -> int | None:
        """The number of updates after which the radius is measured; None if the radius is set or
        not used.
        """
        set_options = (self.every, self.radius, self.relative, self.rho)
        return self.period or PERIOD if set_options == (None,) * 4 else None

    @property
    def alarms(self) -> bool:
        """Whether the coordinator reacts to a drift that it did not request, before it has the
        drifts of all workers.
        """
        return self.name.startswith("gm")

    def radius_at(self, reference: Vector, measured: float | None = None) -> float | None:
        """The radius r of a round; None if unknown.

        ``reference``: the parameters of the global model at the start of the round, without
        statistics. ``measured``: the radius that was measured in the training, or None.
        """
        if self.relative is not None:
            return self.relative * norm_of(reference)
        if self.rho is not None and self.rate is not None:
            return self.rho * self.rate * math.sqrt(len(reference))
        return self.radius or measured

    def describe(self, model: NDArray[Any], measured: float | None = None) -> str:
        """A text for users: the radius as r, T (``relative``) and rho, or when to average."""
        if self.every is not None:
            return f"every {self.every} updates"
        reference = model.astype(np.float64)
        radius, norm = self.radius_at(reference, measured), norm_of(reference)
        if radius is None:
            return f"r is measured in the first {self.measured_in} updates"
        relative = f"{radius / norm:.4g}" if norm else "not defined (the model is zero)"
        rho = "unknown (no learning rate)"
        if self.rate is not None:
            rho = f"{radius / (self.rate * math.sqrt(len(reference))):.4g}"
        return f"r = {radius:.4g}, T = {relative}, rho = {rho}"

    def wires(self, layout: VectorLayout) -> tuple[Wire, Wire]:
        return Wire(codec_named(self.up), layout), Wire(codec_named(self.down), layout)


class Counts(Struct):
    """The counts of a coordinator. ``up``, ``messages_up``: bytes and number of all messages from
    workers. ``down``, ``messages_down``: bytes and number of all messages to workers.
    """

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


class Side:
    """The common base of ``Coordinator`` and ``Worker``. ``reference``: the newest global model."""

    safe: SafeFunction

    def __init__(
        self, protocol: Protocol, model: NDArray[Any], layout: VectorLayout | None
    ) -> None:
        self.protocol = protocol
        self.layout = layout or VectorLayout.of(model)
        self.reference = model.copy()
        self.finished = False
        self.round = 0
        self.radius: float | None = None
        self._up, self._down = protocol.wires(self.layout)

    @property
    def measuring(self) -> bool:
        """Whether the radius must be measured, and was not measured yet."""
        return self.protocol.measured_in is not None and self.radius is None

    def _safe_function(self, measured: float | None) -> SafeFunction:
        reference = self.reference[: self.layout.measured].astype(np.float64)
        radius = self.protocol.radius_at(reference, measured)
        assert radius is not None
        safe = self.protocol.safe
        return (
            SAFE_FUNCTIONS[safe](reference, radius)
            if isinstance(safe, str)
            else Own(safe, reference, radius)
        )

    def _renew(self) -> None:
        """Creates the safe function of a new round, if the protocol uses safe functions.

        In the first round, checks a safe function that the user wrote.
        """
        if self.protocol.every is None and not self.measuring:
            first, self.safe = not hasattr(self, "safe"), self._safe_function(self.radius)
            if first and isinstance(self.safe, Own):
                self.safe.check()


class Coordinator(Side):
    """Computes the global model ``reference``, a vector in the model's element type.

    Pass messages from workers to ``on_messages``, and send the messages that it returns. One call
    creates at most one global model; ``counts.rounds`` is the number of global models so far.
    ``finished``: whether all workers are done and the last average is complete. ``averaged``: the
    drifts of the preceding round. This base class averages when all workers have sent their drifts.

    Raises BadMessage, which names the worker, for an invalid message. Raises CannotDistribute if
    the next model would have infinities or NaNs; ``reference`` is unchanged then.
    """

    def __init__(
        self,
        protocol: Protocol,
        model: NDArray[Any],
        workers: Iterable[int],
        layout: VectorLayout | None = None,
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        """``workers``: the numbers of the workers; WrongUsage is raised if there is no worker.
        ``memory``: to resume, the result of ``memory()`` of an earlier coordinator.
        """
        super().__init__(protocol, model, layout)
        memory = memory or {}
        self.counts = Counts()
        self.members = set(workers)
        if not self.members:
            raise WrongUsage("averaging needs at least one worker")
        self.done: set[int] = set()
        self.drifts: dict[int, Vector] = {}
        self.averaged: Mapping[int, Vector] = {}
        self.subrounds: Counter[int] = Counter()
        self._asked: set[int] = set()
        self._outbox: list[m.Message] = []
        self._ending = False  # the last drifts are requested
        self.round = int(memory.get("round", 0))
        self._velocity: Any = memory.get("velocity", 0.0)
        self._residual = np.zeros(self.layout.length) + memory.get("residual", 0.0)
        if protocol.measured_in is not None and "radius" in memory:
            self.radius = float(memory["radius"])
        self._renew()
        self._script = self._run()
        next(self._script)

    def on_messages(self, batch: Sequence[m.Message]) -> list[m.Message]:
        """Processes messages that arrived together, in this order. Returns the answers."""
        self._outbox = []
        with suppress(StopIteration):  # the training has ended
            self._script.send(batch)
        counts, answers = self.counts, self._outbox
        counts.up += sum(message.size for message in batch)
        counts.messages_up += len(batch)
        counts.down += sum(message.size for message in answers)
        counts.messages_down += len(answers)
        return answers

    def memory(self) -> dict[str, Any]:
        """The state to resume with, in addition to ``reference``. Valid between two rounds."""
        radius = {} if self.radius is None else {"radius": self.radius}
        return {
            "round": self.round,
            "residual": self._residual,
            "velocity": self._velocity,
            **radius,
        }

    # ---- defined by a protocol

    def _round(self) -> Listening[Vector | None]:
        """Runs a round and returns the mean drift.

        Returns None if all workers are done and every drift was averaged.
        """
        while not self.drifts.keys() >= self.members:
            if self.drifts:
                self._fetch(self.done)
            elif self._ended:
                return (yield from self._last_mean())
            yield from self._listen(m.Drift)
        return self._mean(self.drifts)

    def _quantum(self) -> float:
        """The quantum of a round's first sub-round; 0 except for fgm. A worker of fgm counts by how
        many quanta the value of its safe function has risen.
        """
        return 0.0

    def _measure(self, drifts: Sequence[Vector]) -> float:
        """The radius with which these drifts (only parameters) would just end a round."""
        return self._safe_function(1.0).radius_of(drifts)

    # ---- used by protocols

    def _listen(self, kind: type[_M]) -> Listening[list[_M]]:
        """Waits for messages. Processes Drift and Done. Returns the messages of type ``kind``."""
        matching = []
        for message in (yield):
            worker = message.worker
            if isinstance(message, m.Done):
                self.done.add(worker)
                self._pending |= message.pending > 0 and message.round == self.round
            elif (message.round, message.subround) != (self.round, self.subrounds[worker]):
                continue  # the message is late
            elif isinstance(message, m.Drift):
                try:
                    self.drifts[worker] = self._up.decode(message.data)
                except BadMessage as error:
                    raise BadMessage(f"the drift of worker {worker}: {error.message}") from None
                self._alarms += message.alarm
            if isinstance(message, kind):
                matching.append(message)
        return matching

    @property
    def _ended(self) -> bool:
        return self.done >= self.members

    def _send(self, kind: Callable[..., m.Message], workers: Iterable[int], **values: Any) -> None:
        for worker in sorted(workers):
            self._outbox.append(kind(worker, self.round, self.subrounds[worker], **values))

    def _start_subround(self, kind: Callable[..., m.Message], **values: Any) -> None:
        """Starts a sub-round for all workers."""
        self._send(kind, self.members, **values)
        self.subrounds.update(self.members)
        self.counts.subrounds += 1

    def _fetch(self, workers: Iterable[int]) -> None:
        """Requests the drifts of ``workers``, unless a drift was already received or requested."""
        missing = set(workers) - self.drifts.keys() - self._asked
        self._asked |= missing
        self._send(m.Fetch, missing)

    def _gather(self, workers: set[int]) -> Listening[Vector]:
        """Requests drifts and waits for their arrival. Returns the mean of all received drifts."""
        self._fetch(workers)
        while not self.drifts.keys() >= workers:
            yield from self._listen(m.Drift)
        self._asked.clear()
        return self._mean(self.drifts)

    def _last_mean(self) -> Listening[Vector | None]:
        """The mean of the drifts that were not averaged; None if there are none.

        Called when all workers are done.
        """
        if not self._pending:
            return None
        self._ending = True
        return (yield from self._gather(self.members))

    def _mean(self, drifts: Mapping[int, Vector]) -> Vector:
        """The mean of drifts, added in the order of the workers' numbers."""
        total = sum((drifts[worker] for worker in sorted(drifts)), np.zeros(self.layout.length))
        return total / len(drifts)

    # ---- private parts

    def _run(self) -> Listening[None]:
        joined: set[int] = set()
        while joined < self.members:
            for message in (yield):
                if isinstance(message, m.Join):
                    self._join(message)
                    joined.add(message.worker)
        if self.radius is not None:
            self._send(m.Radius, self.members, radius=self.radius)
        change = b""
        while not self._ending:
            self._begin(change)
            measuring = self.measuring
            mean = yield from Coordinator._round(self) if measuring else self._round()
            if mean is None:
                break
            if measuring:
                self._measure_radius()
            change = self._move(mean)
        self._send(m.Stop, self.members)
        self.finished = True

    def _join(self, message: m.Join) -> None:
        if (message.length, message.layout) != (self.layout.length, self.layout.digest):
            raise BadMessage(
                f"worker {message.worker} has a model with other names, shapes or types"
            )

    def _begin(self, change: bytes) -> None:
        """Starts a round. Sends ``change``, the encoded change of the model.

        If ``change`` is empty, sends the whole model.
        """
        self.round += 1
        self.subrounds.clear()
        self.drifts = {}
        self._asked.clear()
        self._pending, self._alarms = False, 0
        self._renew()
        data, full = change or self.reference.tobytes(), int(not change)
        self._send(m.Begin, self.members, full=full, quantum=self._quantum(), data=data)

    def _measure_radius(self) -> None:
        """Measures the radius from the drifts of workers that trained to the end of the period."""
        drifts = [self.drifts[worker] for worker in sorted(self.drifts.keys() - self.done)]
        radius = self._measure([drift[: self.layout.measured] for drift in drifts]) if drifts else 0
        if 0 < radius < math.inf:
            self.radius = radius
            self._send(m.Radius, self.members, radius=radius)

    def _move(self, mean: Vector) -> bytes:
        """Adds the outer step (``_step``) of the mean drift to the global model.

        Returns the encoded change of the global model; empty for an exact codec.
        """
        measured, data = self.layout.measured, b""
        change = mean + self._residual
        change[:measured] = self._step(mean[:measured]) + self._residual[:measured]
        before = self.reference.astype(np.float64)
        reference = self._finite(before + change)
        if not self._down.codec.exact:
            data, decoded = self._down.encode(change)
            reference = self._finite(before + decoded)
            self._residual = before + change - reference
        self.reference, self.averaged = reference, self.drifts
        self.counts.rounds += 1
        return data

    def _step(self, mean: Vector) -> Vector:
        """The outer step: the mean drift times the outer rate, with Nesterov momentum if set."""
        rate, momentum = self.protocol.outer_rate, self.protocol.outer_momentum
        if momentum == 0:
            return rate * mean
        self._velocity = momentum * self._velocity + mean
        return np.asarray(rate * (mean + momentum * self._velocity))

    def _finite(self, model: Vector) -> NDArray[Any]:
        """``model`` in the layout's element type. Raises CannotDistribute for numbers that are not
        finite.
        """
        with np.errstate(over="ignore"):  # checked below
            reference = model.astype(self.layout.dtype)
        if not np.isfinite(reference).all():
            raise CannotDistribute(
                "the next global model would have numbers that are not finite",
                hint="lower the learning rate, or the rate and momentum of the outer step",
            )
        return reference


class Worker(Side):
    """Decides when a worker sends which message. The caller trains and sends the messages.

    ``model``: the model's flat vector (``VectorLayout``), shared with the caller. First, the caller
    sends ``join()``. While ``waiting`` is false, the caller trains, writes the new values into
    ``model`` and calls ``on_update``. The caller passes every received message to ``on_message``.
    If ``changed`` is true afterwards, the caller loads ``model`` into the network, sets ``changed``
    to false, and keeps the optimizer's state. This base class sends the worker's drift after a
    number of updates.
    """

    _residual: Any = 0.0

    def __init__(
        self,
        protocol: Protocol,
        number: int,
        model: NDArray[Any],
        layout: VectorLayout | None = None,
    ) -> None:
        super().__init__(protocol, model, layout)
        self.number = number
        self.model = model
        self.waiting = True
        self.changed = False
        self.done = False
        self.subround = 0
        self.updates = 0
        self._steps = 0  # since the round began
        self._sent = False  # whether a drift was sent and not yet answered

    def join(self) -> list[m.Message]:
        """Joins the training. The coordinator's model will replace ``model``."""
        return [m.Join(self.number, 0, 0, length=self.layout.length, layout=self.layout.digest)]

    def on_update(self) -> list[m.Message]:
        """Call this after a training step. Returns the messages to send.

        Raises BadMessage if the model has numbers that are not finite. Then nothing is sent.
        """
        self.updates += 1
        self._steps += 1
        return Worker._watch(self) if self.measuring else self._watch()

    def on_message(self, message: m.Message) -> list[m.Message]:
        """Processes one message. Returns the answers. Raises BadMessage if the message is
        invalid.
        """
        if isinstance(message, m.Begin):
            return self._begin(message)
        if isinstance(message, m.Radius):
            self.radius = message.radius
        elif isinstance(message, m.Stop):
            self.finished = self.waiting = True
        elif (message.round, message.subround) != (self.round, self.subround):
            return []  # the message is late
        elif not isinstance(message, m.Fetch):
            return self._answer(message)
        elif not self._sent:
            return self._drift(alarm=0)
        return []

    def end(self) -> list[m.Message]:
        """Stops training. The worker still answers messages until it is ``finished``."""
        self.done = True
        return [m.Done(self.number, self.round, self.subround, int(self._steps > 0))]

    # ---- defined by a protocol

    def _watch(self) -> list[m.Message]:
        """Called after each update of the model. Returns the messages to send."""
        ready = self._steps >= (self.protocol.every or self.protocol.measured_in or 0)
        return self._drift(alarm=1) if ready else []

    def _answer(self, message: m.Message) -> list[m.Message]:  # noqa: ARG002
        """Answers a message of this sub-round, except Begin, Fetch, Radius and Stop."""
        return []

    def _on_begin(self, message: m.Begin) -> list[m.Message]:  # noqa: ARG002
        """Called after a round has begun, when the model equals the reference."""
        return []

    # ---- used by protocols

    def drift(self) -> Vector:
        """The drift to send: the model minus the model from which the worker trains, plus the
        encoding error of the preceding drift.

        Raises BadMessage for numbers that are not finite.
        """
        drift: Vector = np.subtract(self.model, self._origin, dtype=np.float64) + self._residual
        if not np.isfinite(drift).all():
            raise BadMessage(
                f"worker {self.number}: its model has numbers that are not finite after update "
                f"{self.updates}; nothing was sent"
            )
        return drift

    def _rounded(self) -> Vector:
        """The parameters of the drift as the coordinator will decode them."""
        return self._up.rounded(self.drift())

    def _drift(self, alarm: int) -> list[m.Message]:
        """Returns the message with the drift. The worker waits for the answer."""
        drift = self.drift()
        data, decoded = self._up.encode(drift)
        if not self._up.codec.exact:
            self._residual = drift - decoded
        self.waiting = self._sent = True
        return [m.Drift(self.number, self.round, self.subround, alarm=alarm, data=data)]

    def _load(self, model: NDArray[Any]) -> None:
        """Continues training from this model."""
        self.model[:] = model
        self.changed = True
        self.waiting = self._sent = False

    def _begin(self, message: m.Begin) -> list[m.Message]:
        dtype = self.layout.dtype
        if message.full:
            self.reference = np.frombuffer(message.data, dtype)
        else:
            self.reference = (self.reference + self._down.decode(message.data)).astype(dtype)
        self._origin = self.reference
        self.round, self.subround = message.round, message.subround
        self._steps = 0
        self._load(self.reference)
        self._renew()
        return [] if self.measuring else self._on_begin(message)
