"""Frames of bytes between the coordinator and one worker, over torch.distributed.

Each worker shares a gloo group of two with the coordinator, in place of one group of all: when a
process dies, only its own group breaks, and it comes back with a new one. They meet at a TCPStore
that the coordinator serves; nothing else goes through it.

This module alone uses names of torch that are not documented (``ProcessGroupGloo`` and its
options, TCPStore's queues).
"""

from __future__ import annotations

import json
import queue
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed
from msgspec import Struct

from mvc.errors import BadMessage, CannotDistribute
from mvc.limits import MAX_FRAME

__all__ = [
    "ALIVE",
    "CONTROL",
    "FINAL",
    "MESSAGE",
    "MODEL",
    "Connection",
    "ConnectionGone",
    "Frame",
    "connect",
    "serve",
    "within",
]

CONTROL, MESSAGE, MODEL, FINAL = 1, 2, 3, 4
"""Kinds of frames: JSON of the runner, a message of the protocol, tensors of a model; and the last
model, after which a worker receives nothing more.
"""

_Result = TypeVar("_Result")

ALIVE = b'{"alive": true}'
"""A CONTROL frame: the process goes on, and has nothing else to say."""

_c10d: Any = torch.distributed  # its types say nothing of what is used here
_HEAD = struct.Struct("<BxxxII")
_INLINE = 52  # bytes of a short frame that travel with its head
_FOR_EVER = timedelta(days=3650)  # gloo closes the connection of a receive that times out


class ConnectionGone(Exception):
    """The process at the other end has gone, or does not read."""


class Frame(Struct, frozen=True):
    """``step``: how many steps the sender had trained; 0 from the coordinator."""

    kind: int
    step: int
    data: bytes

    def json(self) -> dict[str, Any]:
        """The content of a CONTROL frame. Raises BadMessage."""
        try:
            value = json.loads(self.data)
        except (ValueError, RecursionError):
            value = None
        if self.kind != CONTROL or not isinstance(value, dict):
            raise BadMessage("a message of the runner cannot be read")
        return value


class Connection:
    """One end of a connection. Frames are sent in order, by a thread of its own.

    ``beside``: bytes, both ways, that are no messages of the protocol: first and last models.
    Only ``receive`` tells that the other end has gone: a frame that was sent may not arrive.
    """

    def __init__(self, store: Any, name: str, rank: int, seconds: float) -> None:
        """Waits for the other end. Raises ConnectionGone after ``seconds``."""
        self._peer = 1 - rank
        self._limit = timedelta(seconds=seconds)
        options = _c10d.ProcessGroupGloo._Options()
        options._timeout = self._limit
        options._devices = [_device(store)]
        try:
            self._group = _c10d.ProcessGroupGloo(_c10d.PrefixStore(name, store), rank, 2, options)
        except RuntimeError as error:
            raise ConnectionGone(str(error)) from error
        self.beside = 0
        self._outbox: queue.Queue[Frame | None] = queue.Queue()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    def send(self, kind: int, data: bytes, step: int = 0) -> None:
        """Sends a frame in the background; never blocks."""
        self._outbox.put(Frame(kind, step, data))

    def say(self, **fields: Any) -> None:
        """Sends a CONTROL frame."""
        self.send(CONTROL, json.dumps(fields).encode())

    def finish(self, seconds: float) -> bool:
        """Sends what is left, for so long at most; nothing can be sent afterwards.

        False if the other end has not taken it all.
        """
        self._outbox.put(None)
        self._writer.join(seconds)
        return not self._writer.is_alive()

    def _write(self) -> None:
        with suppress(RuntimeError):
            while (frame := self._outbox.get()) is not None:
                data = frame.data
                self.beside += 0 if frame.kind == MESSAGE else len(data)
                head = bytearray(_HEAD.size + _INLINE)
                _HEAD.pack_into(head, 0, frame.kind, frame.step, len(data))
                parts = [head]
                if len(data) <= _INLINE:
                    head[_HEAD.size : _HEAD.size + len(data)] = data
                else:
                    parts.append(bytearray(data))
                tensors = [torch.frombuffer(part, dtype=torch.uint8) for part in parts]
                for work in [self._group.send([tensor], self._peer, 0) for tensor in tensors]:
                    work.wait(self._limit)

    def receive(self, most: int = MAX_FRAME, limit: timedelta = _FOR_EVER) -> Frame:
        """Waits for a frame. Raises ConnectionGone; BadMessage if it is longer than ``most``.

        The connection is lost if the frame does not come within ``limit``. By default a thread of
        its own receives, and its queue is what others wait at.
        """
        head = torch.empty(_HEAD.size + _INLINE, dtype=torch.uint8)
        self._fill(head, limit)
        raw = head.numpy().tobytes()
        kind, step, length = _HEAD.unpack_from(raw)
        self.beside += 0 if kind == MESSAGE else length
        if length > most:
            raise BadMessage(f"a frame has {length} bytes, more than {most}")
        if length <= _INLINE:
            return Frame(kind, step, raw[_HEAD.size : _HEAD.size + length])
        body = torch.empty(length, dtype=torch.uint8)
        self._fill(body, limit)
        return Frame(kind, step, body.numpy().tobytes())

    def _fill(self, tensor: torch.Tensor, limit: timedelta) -> None:
        try:
            self._group.recv([tensor], self._peer, 0).wait(limit)
        except RuntimeError as error:
            raise ConnectionGone(str(error)) from error


def serve(host: str, port: int) -> Any:
    """The store at which workers meet the coordinator; port 0 takes a free one.

    Raises CannotDistribute if the port is in use.
    """
    try:
        listening = socket.create_server((host, port))
    except OSError as error:
        raise CannotDistribute(
            f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}",
            hint="name another --port, or leave it out to take a free one",
        ) from error
    number = listening.getsockname()[1]
    return _c10d.TCPStore(
        host,
        number,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=30),
        master_listen_fd=listening.detach(),
    )


def connect(host: str, port: int, seconds: float) -> Any:
    """A client of that store. Raises ConnectionGone if nobody serves it within ``seconds``."""
    return within(
        seconds,
        lambda: _c10d.TCPStore(
            host,
            port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=seconds),
        ),
    )


def within(seconds: float, act: Callable[[], _Result]) -> _Result:
    """The result of a call of torch, which waits for ever for a process that is stopped.

    Raises ConnectionGone if it fails or takes longer.
    """
    results: queue.Queue[_Result | ConnectionGone] = queue.Queue()

    def work() -> None:
        try:
            results.put(act())
        except (RuntimeError, ConnectionGone) as error:
            results.put(ConnectionGone(str(error)))

    threading.Thread(target=work, daemon=True).start()
    try:
        result = results.get(timeout=seconds)
    except queue.Empty:
        result = ConnectionGone("it does not answer")
    if isinstance(result, ConnectionGone):
        raise result
    return result


def _device(store: Any) -> Any:
    """Loopback if the store is there, else the interface that gloo takes (GLOO_SOCKET_IFNAME)."""
    if getattr(store, "host", "") in {"localhost", "127.0.0.1"}:
        return _c10d.ProcessGroupGloo.create_device(hostname="127.0.0.1")
    return _c10d.ProcessGroupGloo.create_default_device()
