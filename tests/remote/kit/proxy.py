"""A proxy that counts, cuts connections at a byte, loses answers, drips, refuses."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

__all__ = ["Faults", "Proxy"]

Address = tuple[str, int] | str
"""Host and port, or the path of a Unix socket."""
_CHUNK = 1 << 16
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 0\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)


@dataclass
class Faults:
    """What goes wrong, once each. Bytes are counted over all connections from now on.

    ``up``, ``down``: all connections are cut as soon as so many bytes went there. ``lost``: the
    answer that follows the so-manieth request (from 1) is thrown away, and its connection cut.
    ``refused``: so many requests are answered with 503 and reach no server. ``drip``: seconds
    between pieces of ``piece`` bytes.
    """

    up: int | None = None
    down: int | None = None
    lost: int | None = None
    refused: int = 0
    drip: float = 0.0
    piece: int = 1 << 10


class Proxy:
    """Listens on loopback. ``up`` and ``down`` count bytes, ``trips`` requests."""

    def __init__(self, target: Address, faults: Faults | None = None) -> None:
        self.target, self.faults = target, faults or Faults()
        self.up = self.down = self.trips = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def again(self, faults: Faults | None = None) -> None:
        """Counts from 0 on, with other faults."""
        with self._lock:
            self.faults, self.up, self.down, self.trips = faults or Faults(), 0, 0, 0

    def cut(self) -> None:
        """Cuts every connection that is open now."""
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _connect(self) -> socket.socket:
        if isinstance(self.target, str):
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.target)
            return server
        return socket.create_connection(self.target)

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                server = self._connect()
            except OSError:
                return
            with server:
                both = _Connection(self, client, server)
                self._open |= {client, server}
                upward = threading.Thread(target=both.upward, daemon=True)
                upward.start()
                both.downward()
                upward.join()
                self._open -= {client, server}

    def may_send(self, direction: str, count: int) -> tuple[int, bool]:
        """How many of these bytes may go on, and whether all is cut behind them."""
        with self._lock:
            limit, sent = getattr(self.faults, direction), getattr(self, direction)
            may = count if limit is None else max(0, min(count, limit - sent))
            setattr(self, direction, sent + may)
            is_last = may < count or (limit is not None and sent + may >= limit)
            if is_last:
                setattr(self.faults, direction, None)
            return may, is_last

    def asked(self) -> tuple[bool, bool]:
        """A request begins: whether it is refused, and whether its answer gets lost."""
        with self._lock:
            self.trips += 1
            refused = self.faults.refused > 0
            self.faults.refused -= refused
            return refused, self.trips == self.faults.lost


class _Connection:
    """Two sockets. A request begins where bytes go up after some have come down."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._answering, self._losing = True, False

    def upward(self) -> None:
        self._copy(self._client, self._server, self._take_up)

    def downward(self) -> None:
        self._copy(self._server, self._client, self._take_down)

    def _take_up(self, data: bytes) -> tuple[int, bool]:
        if self._answering:
            self._answering = False
            refused, self._losing = self._proxy.asked()
            if refused:
                self._client.sendall(_REFUSAL)
                return 0, False
        return self._proxy.may_send("up", len(data))

    def _take_down(self, data: bytes) -> tuple[int, bool]:
        self._answering = True
        if self._losing:
            return 0, False
        return self._proxy.may_send("down", len(data))

    def _copy(
        self, source: socket.socket, to: socket.socket, take: Callable[[bytes], tuple[int, bool]]
    ) -> None:
        """Until either side ends; what may not go on ends both."""
        try:
            while data := source.recv(_CHUNK):
                size, is_last = take(data)
                self._send(to, data[:size])
                if is_last:
                    self._proxy.cut()
                if size < len(data):
                    break
        except OSError:
            pass
        for each in (to, source):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _send(self, to: socket.socket, data: bytes) -> None:
        faults = self._proxy.faults
        if not faults.drip:
            to.sendall(data)
            return
        for at in range(0, len(data), faults.piece):
            to.sendall(data[at : at + faults.piece])
            time.sleep(faults.drip)
