"""Frames of bytes between the coordinator and one worker, over a TCP connection.

Each frame carries a keyed BLAKE3 of its number and its content, with a key of its direction on this
connection. So what anybody else puts in, changes, repeats or leaves out ends the connection.
"""

from __future__ import annotations

import json
import math
import queue
import socket
import struct
import threading
import time
from contextlib import suppress
from hmac import compare_digest
from typing import Any

from blake3 import blake3
from msgspec import Struct

from mvc.errors import BadMessage, CannotDistribute

CONTROL, MESSAGE, MODEL, FINAL = 1, 2, 3, 4
"""Kinds of frames: JSON of the runner, a message of the protocol, tensors of a model; and the last
model, after which a worker receives nothing more.
"""

ALIVE = b'{"alive": true}'
"""A CONTROL frame: the process goes on, and has nothing else to say."""

_HEAD = struct.Struct("<BxxxII")  # kind, step, length
_NUMBER = struct.Struct("<Q")
_TAG = 16  # bytes
_PART = 1 << 20  # bytes that are received at once, at most


class ConnectionGone(Exception):
    """The process at the other end has gone, or does not read."""


class Keys(Struct, frozen=True):
    """The keys of both directions of a connection, for one of its ends."""

    out: bytes
    into: bytes


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
    ``ended`` is set when it is closed. Only ``receive`` notices that the other end has gone: a
    frame that was sent may not arrive.
    """

    def __init__(self, link: socket.socket, keys: Keys, seconds: float) -> None:
        """An end that does not read for so many ``seconds`` is given up."""
        link.settimeout(None)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        limit = struct.pack("ll", math.ceil(seconds), 0)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._link, self._keys = link, keys
        self._received = 0
        self.beside = 0
        self.ended = threading.Event()
        self._outbox: queue.Queue[Frame | None] = queue.Queue()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    def send(self, kind: int, data: bytes, step: int = 0) -> None:
        """Sends a frame in the background; never blocks."""
        self._outbox.put(Frame(kind, step, data))

    def say(self, **fields: Any) -> None:
        self.send(CONTROL, json.dumps(fields).encode())

    def finish(self, seconds: float) -> bool:
        """Sends what is left, for so long at most; nothing can be sent afterwards.

        False if the other end has not taken it all.
        """
        self._outbox.put(None)
        self._writer.join(seconds)
        return not self._writer.is_alive()

    def close(self) -> None:
        """Ends it at once, with the threads that send and receive."""
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()
        self.ended.set()

    def _write(self) -> None:
        number = 0
        try:
            while (frame := self._outbox.get()) is not None:
                data = frame.data
                self.beside += 0 if frame.kind == MESSAGE else len(data)
                head = _HEAD.pack(frame.kind, frame.step, len(data))
                self._link.sendall(head + _tag(self._keys.out, number, head, data) + data)
                number += 1
            self._link.shutdown(socket.SHUT_WR)  # what comes from the other end is still read
        except OSError:
            with suppress(OSError):
                self._link.shutdown(socket.SHUT_RDWR)

    def receive(self) -> Frame:
        """Waits for a frame, for ever. Raises ConnectionGone.

        A thread of its own receives, and its queue is what others wait at.
        """
        head = read(self._link, _HEAD.size)
        tag = read(self._link, _TAG)
        kind, step, length = _HEAD.unpack(head)
        data = read(self._link, length)
        if not compare_digest(tag, _tag(self._keys.into, self._received, head, data)):
            raise ConnectionGone("somebody else has put a frame in")
        self._received += 1
        self.beside += 0 if kind == MESSAGE else length
        return Frame(kind, step, data)


def _tag(key: bytes, number: int, head: bytes, data: bytes) -> bytes:
    tag = blake3(_NUMBER.pack(number) + head, key=key)
    tag.update(data)
    return tag.digest(_TAG)


def read(link: socket.socket, length: int, until: float | None = None) -> bytes:
    """So many bytes. Raises ConnectionGone if they do not come until then (monotonic clock)."""
    parts = []
    try:
        while length:
            if until is not None:
                link.settimeout(max(1e-3, until - time.monotonic()))
            part = link.recv(min(length, _PART))
            if not part or (until is not None and time.monotonic() > until):
                raise ConnectionGone("it has gone, or says too little")
            parts.append(part)
            length -= len(part)
    except OSError as error:
        raise ConnectionGone(str(error)) from error
    return b"".join(parts)


def serve(host: str, port: int) -> socket.socket:
    """The socket at which the coordinator listens; port 0 takes a free one.

    Raises CannotDistribute if the port is in use.
    """
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise CannotDistribute(
            f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}",
            hint="name another --port, or leave it out to take a free one",
        ) from error
