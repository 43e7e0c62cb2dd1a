"""What a training script holds: ``with mvc.distributed.join(model) as worker:``."""

from __future__ import annotations

import atexit
import math
import os
import queue
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Self, TypeVar

import numpy as np
import torch
import torch.distributed
from msgspec import to_builtins

from mvc.distributed import messages
from mvc.distributed.protocols.base import VectorLayout, Worker
from mvc.distributed.runner.child import Child
from mvc.distributed.runner.connection import (
    ALIVE,
    CONTROL,
    FINAL,
    MESSAGE,
    MODEL,
    Connection,
    ConnectionGone,
    Frame,
)
from mvc.distributed.runner.handshake import Unproven, greet
from mvc.distributed.runner.launch import ADDRESS, Dismissed, start_coordinator
from mvc.distributed.runner.layout import Carried, ModelLayout, write_tensors
from mvc.distributed.runner.settings import BEAT, START, TIMEOUT, TOKEN, checked, protocol_of
from mvc.errors import BadMessage, CannotDistribute, WrongUsage
from mvc.names import printable
from mvc.system import SLICE, Patience, warn

_Batch = TypeVar("_Batch")
_Result = TypeVar("_Result")

_LAST_WORDS = 10.0  # seconds that the last messages may take
_LAST = {"failed", "again"}  # what the coordinator says last
_PAUSE = 0.1  # seconds between two attempts to reach the coordinator
_TORCHRUN = 60.0  # seconds that a word to torchrun's store may take
_PUSHING = 1e6  # seconds that the last push may take; one that does not go on ends before


def join(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    timeout: float = 120.0,
    **settings: Any,
) -> Participant:
    """Takes part in a training of several processes; use the result as a context manager.

    When it returns, all workers are there and ``model`` holds the global model. ``settings`` are
    those of the command ``mvc train-distributed`` (``protocol="fgm"``, ``rho=12``, ``rate=0.01``,
    ``repo="models"``, ``target="global"``); what the command was given takes their place. The
    learning rate is that of the ``optimizer`` unless ``rate`` says otherwise.
    ``timeout``: seconds for which a lost or silent coordinator is waited for. Raises WrongUsage in
    a process that neither the command nor torchrun has started, and CannotDistribute with the
    reason if the training cannot begin.
    """
    if not isinstance(model, torch.nn.Module):
        raise WrongUsage(f"join takes a torch.nn.Module, not a {type(model).__name__}")
    layout, settings = ModelLayout.of(model), checked(settings)
    if optimizer is not None and (rate := _rate_of(optimizer)) > 0:
        settings.setdefault("rate", rate)
    try:
        rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        address = os.environ.get(ADDRESS) or _through_torchrun(
            rank, workers, pushes="push" in settings
        )
    except (KeyError, ValueError):
        raise WrongUsage(
            "this process is not one of several that train together",
            hint="start it by 'mvc train-distributed SCRIPT --workers 4' or by torchrun",
        ) from None
    place = (rank, workers)
    return Participant(model, layout, address, place, settings=settings, timeout=timeout)


def _rate_of(optimizer: torch.optim.Optimizer) -> float:
    """The learning rate before schedulers changed it: the root of its mean square over the
    parameters where they have several.
    """
    squares, numbers = 0.0, 0
    for group in optimizer.param_groups:
        count = sum(parameter.numel() for parameter in group["params"])
        squares += count * float(group.get("initial_lr", group["lr"])) ** 2
        numbers += count
    return math.sqrt(squares / max(1, numbers))


class Participant:
    """The part of one process. ``rank``: its number, from 0; ``workers``: how many there are."""

    def __init__(
        self,
        model: torch.nn.Module,
        layout: ModelLayout,
        address: str,
        place: tuple[int, int],
        *,
        settings: Mapping[str, Any],
        timeout: float,
    ) -> None:
        self.rank, self.workers = place
        self._model, self._layout, self._settings = model, layout, settings
        host, _, port = address.rpartition(":")
        self._address, self._timeout = (host, int(port)), timeout
        self._steps = self._skip = 0
        self._order: list[list[Any]] = []
        self._beat, self._spoke = BEAT, time.monotonic()
        where = f"the coordinator at {address}"
        self._patience = Patience(max(timeout, 3 * BEAT), lambda s: warn(where, s))
        self._closed = self._ending = False
        self._machine: Worker | None = None
        self._carried: Carried = {}
        atexit.register(self._abandon)
        self._connect()

    # -- the script's side -------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """How many batches this worker has trained on, those before a restart included."""
        return self._steps

    @property
    def round(self) -> int:
        """The round that is running, from 1."""
        return self._worker.round

    def batches(self, data: Iterable[_Batch]) -> Iterator[_Batch]:
        """The batches of ``data``, with a ``step`` after each.

        After a restart it leaves out those that were trained on before the last global model, so
        ``data`` must give the same batches in the same order again.
        """
        for batch in data:
            if self._skip:
                self._skip -= 1
                continue
            yield batch
            self.step()

    def step(self) -> None:
        """Call it after each step of the optimizer: it says what must be said, and listens.

        Most calls send nothing. It may wait for the other workers, and replace the parameters by
        a new global model. Raises Dismissed, and CannotDistribute if the coordinator is lost.
        """
        if self._closed:
            raise WrongUsage("this worker has left the training")
        self._steps += 1
        machine = self._worker
        machine.model[:] = self._layout.read(self._model)
        self._did("update")
        with self._fitting():
            self._say(machine.on_update())
        self._say_alive()
        self._listen(lambda: machine.waiting)

    def close(self) -> None:
        """Waits until all workers are done; then ``model`` holds the last global model."""
        if self._closed:
            return
        self._ending = True
        self._end()
        self._listen(lambda: not self._worker.finished)
        self._closed = True
        self._link.say(order=self._order)
        last = False
        while (frame := self._next()) is not None:
            if frame.kind == FINAL:
                self._layout.write(self._model, np.frombuffer(frame.data, np.float32))
                write_tensors(self._model, self._carried)
                last = True
        self._finish()
        if not last:
            raise CannotDistribute(
                "the coordinator has gone before it sent the last global model",
                hint="the model is in the coordinator's repository",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if error is None:
            self.close()
        elif not self._closed:
            self._leave(f"worker {self.rank} failed: {type(error).__name__}: {error}")

    # -- messages ------------------------------------------------------------------------------

    @property
    def _worker(self) -> Worker:
        assert self._machine is not None
        return self._machine

    def _did(self, what: str) -> None:
        """Notes an event for the log: runs of equal ones with their lengths."""
        if self._order and self._order[-1][0] == what:
            self._order[-1][1] += 1
        else:
            self._order.append([what, 1])

    def _say(self, answers: Sequence[messages.Message]) -> None:
        for message in answers:
            self._spoke = time.monotonic()
            self._link.send(MESSAGE, message.to_bytes(), self._steps)

    def _say_alive(self) -> None:
        """Called as long as the script trains or waits: who says nothing is given up."""
        if time.monotonic() > self._spoke + self._beat:
            self._spoke = time.monotonic()
            self._link.send(CONTROL, ALIVE)

    def _next(self) -> Frame | None:
        """Waits for a frame; None if the connection is lost. Raises CannotDistribute if nothing
        comes, for the coordinator says at times that it is alive.
        """
        self._patience.renew()
        while True:
            try:
                return self._inbox.get(timeout=min(SLICE, self._beat))
            except queue.Empty:
                self._say_alive()
            if self._patience.look():
                raise self._lost("says nothing")

    def _listen(self, awaited: Callable[[], bool]) -> None:
        """Takes what has arrived, and waits for more as long as ``awaited`` says so."""
        while not self._worker.finished:
            try:
                frame = self._next() if awaited() else self._inbox.get(block=False)
            except queue.Empty:
                break
            if frame is None:
                self._connect()
            elif frame.kind == MESSAGE:
                self._did("message")
                with self._fitting():
                    self._say(self._worker.on_message(messages.from_bytes(frame.data)))
            elif frame.kind == CONTROL:
                self._control(frame.json())
        if self._worker.changed:
            self._worker.changed = False
            self._layout.write(self._model, self._worker.model)

    def _control(self, said: Mapping[str, Any]) -> None:
        if "failed" in said:
            self._finish()
            raise Dismissed(str(said["failed"]))
        if "again" in said:
            self._connect()

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        """Leaves the training if a message, or the model, does not fit."""
        try:
            yield
        except BadMessage as error:
            self._leave(error.message)
            raise Dismissed(error.message) from None

    def _end(self) -> None:
        self._did("end")
        self._say(self._worker.end())

    def _abandon(self) -> None:
        """The script ends without having left the block."""
        if not self._closed:
            self._leave(f"the script of worker {self.rank} ended before its training did")

    def _leave(self, reason: str) -> None:
        self._link.say(leave=reason[:1000])
        self._finish()

    def _finish(self) -> None:
        self._closed = True
        atexit.unregister(self._abandon)
        self._hang_up()

    def _hang_up(self) -> None:
        """The coordinator hears the last words, and ends the connection."""
        self._link.finish(_LAST_WORDS)
        self._reader.join(_LAST_WORDS)
        self._link.close()

    # -- coming and coming back ------------------------------------------------------------------

    def _connect(self) -> None:
        """Meets the coordinator, now or within the time limit, and begins with its model."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                self._meet(deadline)
                break
            except Unproven:
                raise self._lost("does not know the secret of this training") from None
            except (ConnectionGone, OSError):
                if time.monotonic() > deadline:
                    raise self._lost("is not there") from None
                time.sleep(_PAUSE)
        self._did("join")
        self._say(self._worker.join())
        self._listen(lambda: self._worker.waiting)
        if self._ending:  # this coordinator has not heard of it
            self._end()

    def _lost(self, how: str) -> CannotDistribute:
        self._closed = True
        atexit.unregister(self._abandon)
        host, port = self._address
        return CannotDistribute(
            f"the coordinator at {host}:{port} {how}",
            hint="every global model until now is in its repository; "
            "start the training again with resume=true",
        )

    def _meet(self, deadline: float) -> None:
        until = max(deadline, time.monotonic() + 1.0)
        link = socket.create_connection(self._address, timeout=until - time.monotonic())
        try:
            keys = greet(link, self.rank, until)
        except (ConnectionGone, Unproven):
            link.close()
            raise
        self._link = Connection(link, keys, self._timeout)
        self._inbox: queue.Queue[Frame | None] = queue.Queue()
        self._reader = threading.Thread(
            target=_receive, args=(self._link, self._inbox), daemon=True
        )
        self._reader.start()
        self._link.say(
            pid=os.getpid(), layout=to_builtins(self._layout), settings=dict(self._settings)
        )
        self._be_welcomed()

    def _be_welcomed(self) -> None:
        layout = self._layout
        while True:
            frame = self._next()
            if frame is None:
                self._hang_up()
                raise ConnectionGone("the coordinator has gone")
            if frame.kind == MODEL:
                self._carried = layout.unpack(frame.data)
                write_tensors(self._model, self._carried)
                return
            said = frame.json()
            self._control(said)
            if "give" in said:
                self._link.send(MODEL, layout.read(self._model).tobytes())
                self._link.send(MODEL, layout.pack(self._model))
            if "welcome" in said and self._machine is None:
                vector = layout.read(self._model)
                kind = VectorLayout(layout.length, layout.measured, vector.dtype, layout.digest)
                protocol = protocol_of(said["welcome"])
                self._machine = protocol.worker(self.rank, vector, kind)
                self._steps = self._skip = int(said["steps"])
                self._beat = min(BEAT, said["welcome"].get("timeout", TIMEOUT) / 4)


def _receive(link: Connection, inbox: queue.Queue[Frame | None]) -> None:
    """Puts what arrives into the inbox; None at the end."""
    try:
        while True:
            frame = link.receive()
            inbox.put(frame)
            if frame.kind == FINAL or (frame.kind == CONTROL and _LAST & frame.json().keys()):
                break
    except ConnectionGone:
        link.close()  # before this worker connects again
    except BadMessage as error:
        link.say(leave=error.message[:1000])
    inbox.put(None)
    link.finish(_LAST_WORDS)
    link.close()


# -- torchrun --------------------------------------------------------------------------------------


def _through_torchrun(rank: int, workers: int, *, pushes: bool) -> str:
    """Where the coordinator is. Worker 0 starts it, and it ends with worker 0.

    If it ``pushes``, worker 0 first waits until it has pushed what it can.
    """
    host = os.environ["MASTER_ADDR"]
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    key = f"mvc/coordinator/{restarts}"
    try:
        store = _within(_TORCHRUN, lambda: _torchruns_store(host))
        if rank == 0:
            port, token = _own_coordinator(host, workers, resume=restarts != "0", pushes=pushes)
            _within(_TORCHRUN, lambda: store.set(key, f"{host}:{port} {token}"))
        place: bytes = _within(_TORCHRUN, lambda: store.get(key))
    except ConnectionGone as error:
        raise CannotDistribute(
            f"the processes that torchrun has started do not find each other: {error}"
        ) from error
    address, _, os.environ[TOKEN] = place.decode().partition(" ")
    return address


def _torchruns_store(host: str) -> Any:
    return torch.distributed.TCPStore(  # type: ignore[attr-defined]
        host,
        int(os.environ["MASTER_PORT"]),
        wait_for_workers=False,
        timeout=timedelta(seconds=_TORCHRUN),
    )


def _within(seconds: float, act: Callable[[], _Result]) -> _Result:
    """The result of a call of torch, which waits for ever for a process that is stopped.

    Raises ConnectionGone if it fails or takes longer.
    """
    results: queue.Queue[_Result | ConnectionGone] = queue.Queue()

    def work() -> None:
        try:
            results.put(act())
        except RuntimeError as error:
            results.put(ConnectionGone(str(error)))

    threading.Thread(target=work, daemon=True).start()
    try:
        result = results.get(timeout=seconds)
    except queue.Empty:
        result = ConnectionGone("it does not answer")
    if isinstance(result, ConnectionGone):
        raise result
    return result


def _own_coordinator(host: str, workers: int, *, resume: bool, pushes: bool) -> tuple[int, str]:
    events: queue.Queue[Mapping[str, Any]] = queue.Queue()
    over = threading.Event()

    def tell(event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind in {"listening", "failed", "ended"}:
            events.put(event)
        if kind in {"finished", "failed", "ended"}:
            over.set()
        elif kind == "not pushed":
            sys.stderr.write(f"mvc: warning: {printable(str(event['reason']))}\n")

    job = {"host": host, "workers": workers, "resume": resume}
    token = secrets.token_hex(16)
    child = start_coordinator(job, tell, token)
    _coordinators.append(child)

    def see_it_push() -> None:
        if over.wait(_LAST_WORDS):
            child.wait(time.monotonic() + _PUSHING)

    if pushes:
        atexit.register(see_it_push)
    try:
        event = events.get(timeout=TIMEOUT + START)
    except queue.Empty:
        event = {"event": "silent"}
    if event["event"] != "listening":
        raise CannotDistribute(str(event.get("message", "the coordinator cannot start")))
    return int(event["port"]), token


_coordinators: list[Child] = []
"""Keeps the pipe open that the coordinator lives by."""
