"""What every protocol shares: rounds, the average, and guards against the unfit.

Both sides are pure: messages in, messages out, no I/O, no clock. A channel from one to the other
keeps the order of its messages and loses none; nothing else is assumed of the network.
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
"""Updates in which a radius is found where none is given."""

_Positive = Annotated[float, Meta(gt=0, le=1e300)]
_Share = Annotated[float, Meta(gt=0, lt=1)]
_Number = Annotated[int, Meta(ge=1)]

SafeName = Literal["norm", "variance", "cap"]

_M = TypeVar("_M", bound=m.Message)
_T = TypeVar("_T")
Listening = Generator[None, Sequence[m.Message], _T]


class Protocol(Struct, frozen=True):
    """The options of a protocol. ``protocol_named`` makes one and checks them.

    How far a model may move (gm, fgm, fda) has one of four units. ``radius``: the distance r.
    ``relative``: T, with ``r = T|E|`` anew for each round. ``rho``: ``r = rho * rate * sqrt(n)``
    with the learning rate and the number of parameters: about the number of steps straight ahead,
    so that it holds for other rates and networks. ``period``: r is found in the training, as how
    far the workers' models go in so many updates; ``PERIOD`` if nothing is given.

    ``safe``: of gm and fgm; a name, or a function of the user's (``Own``). ``every``: updates
    between averages, of the periodic ones; None of all others. ``balancing``: of gm. ``barrier``:
    a round ends when psi has come that near to zero, as a share of its first value (fgm).
    ``rebalance``: c_r, or None for no rebalancing (fgm): the round goes on after a flush if psi is
    below that share of its first value. ``outer_rate``, ``outer_momentum``: of the coordinator's
    step; 1 and 0 are plain averaging. ``up``, ``down``: codecs of drifts and of the model's change.
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
        """In how many updates the radius is found; None if there is none, or it is given."""
        given = (self.every, self.radius, self.relative, self.rho)
        return self.period or PERIOD if given == (None,) * 4 else None

    @property
    def alarms(self) -> bool:
        """True if a drift that a worker sends by itself is answered before the others send
        theirs.
        """
        return self.name.startswith("gm")

    def radius_at(self, reference: Vector, found: float | None = None) -> float | None:
        """The radius r of a round that begins with these parameters; None while it is unknown.

        ``found``: what the training has found.
        """
        if self.relative is not None:
            return self.relative * norm_of(reference)
        if self.rho is not None and self.rate is not None:
            return self.rho * self.rate * math.sqrt(len(reference))
        return self.radius or found

    def describe(self, model: NDArray[Any], found: float | None = None) -> str:
        """The radius in all units, as far as they are known, or the period."""
        if self.every is not None:
            return f"every {self.every} updates"
        reference = model.astype(np.float64)
        radius, norm = self.radius_at(reference, found), norm_of(reference)
        if radius is None:
            return f"r is found in the first {self.measured_in} updates"
        relative = f"{radius / norm:.4g}" if norm else "not defined (the model is zero)"
        rho = "unknown (no learning rate)"
        if self.rate is not None:
            rho = f"{radius / (self.rate * math.sqrt(len(reference))):.4g}"
        return f"r = {radius:.4g}, T = {relative}, rho = {rho}"

    def wires(self, layout: VectorLayout) -> tuple[Wire, Wire]:
        return Wire(codec_named(self.up), layout), Wire(codec_named(self.down), layout)


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


class Side:
    """What coordinator and worker have in common. ``reference``: the last global model."""

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
        """True as long as the training is to find the radius."""
        return self.protocol.measured_in is not None and self.radius is None

    def _safe_function(self, found: float | None) -> SafeFunction:
        reference = self.reference[: self.layout.measured].astype(np.float64)
        radius = self.protocol.radius_at(reference, found)
        assert radius is not None
        safe = self.protocol.safe
        return (
            SAFE_FUNCTIONS[safe](reference, radius)
            if isinstance(safe, str)
            else Own(safe, reference, radius)
        )

    def _renew(self) -> None:
        """The safe function of a round that begins, if it has one; the first is checked."""
        if self.protocol.every is None and not self.measuring:
            first, self.safe = not hasattr(self, "safe"), self._safe_function(self.radius)
            if first and isinstance(self.safe, Own):
                self.safe.check()


class Coordinator(Side):
    """Holds the global model, ``reference``: a vector in the model's element type.

    Feed it with ``on_messages`` and send what it returns. ``counts.rounds`` grows by one with every
    new global model; more than one new model never comes from one call. ``finished`` is true when
    all workers are done and the last average is made. Raises BadMessage, which names the worker,
    for a message that does not fit; CannotDistribute if the next model would not be finite.
    ``reference`` then is the last one. ``averaged``: the drifts of the last round. This one
    averages when all have sent theirs.
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
        self._ending = False  # the last drifts are asked for
        self.round = int(memory.get("round", 0))
        self._velocity: Any = memory.get("velocity", 0.0)
        self._residual = np.zeros(self.layout.length) + memory.get("residual", 0.0)
        if protocol.measured_in is not None and "radius" in memory:
            self.radius = float(memory["radius"])
        self._renew()
        self._script = self._run()
        next(self._script)

    def on_messages(self, batch: Sequence[m.Message]) -> list[m.Message]:
        """Takes messages that arrived together, in this order; gives the answers."""
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
        """What, beside the reference, a coordinator needs to go on from here between rounds."""
        found = {} if self.radius is None else {"radius": self.radius}
        return {
            "round": self.round,
            "residual": self._residual,
            "velocity": self._velocity,
            **found,
        }

    # ---- what a protocol defines

    def _round(self) -> Listening[Vector | None]:
        """From the begin of a round to its mean drift; None if all are done and nothing is left."""
        while not self.drifts.keys() >= self.members:
            if self.drifts:
                self._fetch(self.done)
            elif self._ended:
                return (yield from self._rest())
            yield from self._listen(m.Drift)
        return self._mean(self.drifts)

    def _quantum(self) -> float:
        """Of the first sub-round."""
        return 0.0

    def _measure(self, drifts: Sequence[Vector]) -> float:
        """The radius that these drifts of parameters reach."""
        return self._safe_function(1.0).radius_of(drifts)

    # ---- what protocols use

    def _listen(self, kind: type[_M]) -> Listening[list[_M]]:
        """Waits for messages. Keeps drifts, and who is done; gives the messages of this kind."""
        found = []
        for message in (yield):
            worker = message.worker
            if isinstance(message, m.Done):
                self.done.add(worker)
                self._pending |= message.pending > 0 and message.round == self.round
            elif (message.round, message.subround) != (self.round, self.subrounds[worker]):
                continue  # it is late
            elif isinstance(message, m.Drift):
                try:
                    self.drifts[worker] = self._up.decode(message.data)
                except BadMessage as error:
                    raise BadMessage(f"the drift of worker {worker}: {error.message}") from None
                self._alarms += message.alarm
            if isinstance(message, kind):
                found.append(message)
        return found

    @property
    def _ended(self) -> bool:
        return self.done >= self.members

    def _send(self, kind: Callable[..., m.Message], workers: Iterable[int], **values: Any) -> None:
        for worker in sorted(workers):
            self._outbox.append(kind(worker, self.round, self.subrounds[worker], **values))

    def _go_on(self, kind: Callable[..., m.Message], **values: Any) -> None:
        """A sub-round begins for all."""
        self._send(kind, self.members, **values)
        self.subrounds.update(self.members)
        self.counts.subrounds += 1

    def _fetch(self, workers: Iterable[int]) -> None:
        """Asks for the drifts that are neither here nor asked for."""
        missing = set(workers) - self.drifts.keys() - self._asked
        self._asked |= missing
        self._send(m.Fetch, missing)

    def _gather(self, workers: set[int]) -> Listening[Vector]:
        """Asks for drifts and waits for them; the mean of all that are here."""
        self._fetch(workers)
        while not self.drifts.keys() >= workers:
            yield from self._listen(m.Drift)
        self._asked.clear()
        return self._mean(self.drifts)

    def _rest(self) -> Listening[Vector | None]:
        """All are done: the mean of what is in no average yet, if there is any."""
        if not self._pending:
            return None
        self._ending = True
        return (yield from self._gather(self.members))

    def _mean(self, drifts: Mapping[int, Vector]) -> Vector:
        """Added in the order of the workers' numbers."""
        total = sum((drifts[each] for each in sorted(drifts)), np.zeros(self.layout.length))
        return total / len(drifts)

    # ---- the rest

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
                self._find_radius()
            change = self._move(mean)
        self._send(m.Stop, self.members)
        self.finished = True

    def _join(self, message: m.Join) -> None:
        if (message.length, message.layout) != (self.layout.length, self.layout.digest):
            raise BadMessage(
                f"worker {message.worker} has a model with other names, shapes or types"
            )

    def _begin(self, change: bytes) -> None:
        """A round begins, with the whole model or its encoded change."""
        self.round += 1
        self.subrounds.clear()
        self.drifts = {}
        self._asked.clear()
        self._pending, self._alarms = False, 0
        self._renew()
        data, full = change or self.reference.tobytes(), int(not change)
        self._send(m.Begin, self.members, full=full, quantum=self._quantum(), data=data)

    def _find_radius(self) -> None:
        """From the drifts of those that have trained to the end of the measured period."""
        drifts = [self.drifts[each] for each in sorted(self.drifts.keys() - self.done)]
        radius = self._measure([each[: self.layout.measured] for each in drifts]) if drifts else 0
        if 0 < radius < math.inf:
            self.radius = radius
            self._send(m.Radius, self.members, radius=radius)

    def _move(self, mean: Vector) -> bytes:
        """The reference moves by the mean drift, or as the outer step says; its encoded change."""
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


class Worker(Side):
    """Trains ``model``, a flat vector that it shares with the caller.

    The caller sends ``join()``, and then, whenever ``waiting`` is false, trains, writes the new
    parameters into ``model`` and calls ``on_update``. It passes every message to ``on_message``; if
    ``changed`` is true afterwards, ``model`` has been overwritten: it sets ``changed`` to false and
    loads the vector into its network. The optimizer's state stays as it is. This one sends its
    drift after a number of updates.
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
        self._sent = False  # a drift, and no answer has come

    def join(self) -> list[m.Message]:
        """Asks to take part. What the model holds is lost: the coordinator's takes its place."""
        return [m.Join(self.number, 0, 0, length=self.layout.length, layout=self.layout.digest)]

    def on_update(self) -> list[m.Message]:
        """The model has been trained: says what must be said.

        Raises BadMessage if the model holds numbers that are not finite; nothing is sent then.
        """
        self.updates += 1
        self._steps += 1
        return Worker._watch(self) if self.measuring else self._watch()

    def on_message(self, message: m.Message) -> list[m.Message]:
        """Takes one message; gives the answers. Raises BadMessage if it does not fit."""
        if isinstance(message, m.Begin):
            return self._begin(message)
        if isinstance(message, m.Radius):
            self.radius = message.radius
        elif isinstance(message, m.Stop):
            self.finished = self.waiting = True
        elif (message.round, message.subround) != (self.round, self.subround):
            return []  # it is late
        elif not isinstance(message, m.Fetch):
            return self._take(message)
        elif not self._sent:
            return self._drift(alarm=0)
        return []

    def end(self) -> list[m.Message]:
        """There is nothing more to train on. The worker still answers until it is ``finished``."""
        self.done = True
        return [m.Done(self.number, self.round, self.subround, int(self._steps > 0))]

    # ---- what a protocol defines

    def _watch(self) -> list[m.Message]:
        """The model has changed."""
        ready = self._steps >= (self.protocol.every or self.protocol.measured_in or 0)
        return self._drift(alarm=1) if ready else []

    def _take(self, message: m.Message) -> list[m.Message]:  # noqa: ARG002
        """A message of this sub-round that is neither Begin, Fetch nor Stop."""
        return []

    def _on_begin(self, message: m.Begin) -> list[m.Message]:  # noqa: ARG002
        """A round has begun: the model is the reference."""
        return []

    # ---- what protocols use

    def drift(self) -> Vector:
        """What is to be sent: the way from where the drift began, and what was lost when last sent.

        Raises BadMessage if it holds numbers that are not finite.
        """
        drift: Vector = np.subtract(self.model, self._origin, dtype=np.float64) + self._residual
        if not np.isfinite(drift).all():
            raise BadMessage(
                f"worker {self.number}: its model holds numbers that are not finite after update "
                f"{self.updates}; nothing was sent"
            )
        return drift

    def _rounded(self) -> Vector:
        """The parameters of the drift as the coordinator will decode them."""
        return self._up.rounded(self.drift())

    def _drift(self, alarm: int) -> list[m.Message]:
        """The message with the drift. The worker waits from now on."""
        drift = self.drift()
        data, decoded = self._up.encode(drift)
        if not self._up.codec.exact:
            self._residual = drift - decoded
        self.waiting = self._sent = True
        return [m.Drift(self.number, self.round, self.subround, alarm=alarm, data=data)]

    def _load(self, model: NDArray[Any]) -> None:
        """Trains on from this model."""
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
