"""Who connects to a coordinator: processes that prove to be workers, and what they say.

With it the bytes that the sockets of this process have carried, as the kernel counts them.
"""

from __future__ import annotations

import os
import queue
import socket
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from mvc.distributed.runner.connection import Connection, ConnectionGone, serve
from mvc.distributed.runner.handshake import Unproven, admit, own_secret
from mvc.errors import BadMessage
from mvc.system import SLICE

GOODBYE = 5.0  # seconds that a failure may take to reach the workers
_GREETING = 10.0  # seconds in which a process that connects must prove that it is a worker
_STRANGERS = 64  # processes that may be about to prove it; the oldest makes room for one more

_INFO = struct.Struct("=120xQQII")  # of tcp_info: bytes_acked, bytes_received, segs_out, segs_in
_FOLDER = Path("/proc/self/fd")
_HEADERS = 52  # bytes of a segment's headers: IPv4 20, TCP 20, time stamps 12

_Address = tuple[str, int]


class Reception:
    """Attends to all that connect, in a thread each, until ``close``.

    ``events``: ``("hello", link, what it says)`` of a worker that has come, ``("frame", link,
    frame)`` of one that says something, ``("lost", link, None)`` of one that has gone.
    ``timeout``: seconds for which a connection may not take what is sent.

    Raises CannotDistribute where there is no secret, because nobody could be admitted.
    """

    def __init__(self, host: str, port: int, timeout: float) -> None:
        own_secret()
        self.events: queue.Queue[tuple[str, Connection, Any]] = queue.Queue()
        self.timeout = timeout
        self.traffic = Traffic()
        self._strangers: deque[socket.socket] = deque()
        self._closed = False
        self._door = serve(host, port)
        self.port: int = self._door.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        self._closed = True
        self._accepting.join(5.0)

    def _accept(self) -> None:
        self._door.settimeout(SLICE / 4)
        with self._door:
            while not self._closed:
                try:
                    link, _ = self._door.accept()
                except TimeoutError:
                    continue
                except OSError:  # as too many open files
                    time.sleep(SLICE / 4)
                    continue
                self._strangers.append(link)
                if len(self._strangers) > _STRANGERS:  # a worker needs a moment only
                    with suppress(OSError):  # its own thread closes it
                        self._strangers.popleft().shutdown(socket.SHUT_RDWR)
                threading.Thread(target=self._attend, args=(link,), daemon=True).start()

    def _attend(self, link: socket.socket) -> None:
        """A process that has connected: it proves that it is a worker, or is dropped."""
        try:
            worker, keys = admit(link, time.monotonic() + _GREETING)
            connection = Connection(link, keys, self.timeout)
        except (ConnectionGone, Unproven, OSError):
            link.close()
            return
        finally:
            with suppress(ValueError):  # it made room for another
                self._strangers.remove(link)
        self._hear(worker, connection)

    def _hear(self, worker: int, link: Connection) -> None:
        try:
            self.events.put(("hello", link, {**link.receive().json(), "hello": worker}))
            while True:
                self.events.put(("frame", link, link.receive()))
        except BadMessage as error:
            link.say(failed=error.message)
        except ConnectionGone:
            self.events.put(("lost", link, None))
        finally:
            self.traffic.look()
            link.finish(GOODBYE)
            link.close()


class Traffic:
    """Bytes over TCP connections to other processes; call ``look`` while they are open.

    The kernel counts them, in both directions, and the segments that they go in (TCP_INFO).
    """

    def __init__(self) -> None:
        self._counted: dict[tuple[_Address, _Address], tuple[int, int]] = {}

    def look(self) -> None:
        """Reads the counters of all sockets that are open now."""
        found = {}
        with suppress(OSError):
            for entry in list(_FOLDER.iterdir()):
                with suppress(OSError):
                    if str(entry.readlink()).startswith("socket:"):
                        found.update(_counters(int(entry.name)))
        inside = {(there, here) for here, there in found}
        self._counted |= {ends: counts for ends, counts in found.items() if ends not in inside}

    def total(self) -> tuple[int, int] | tuple[None, None]:
        """Bytes without headers, and with those of TCP and IP; None if the system does not tell."""
        if not self._counted:
            return None, None
        carried, segments = map(sum, zip(*self._counted.values(), strict=True))
        return carried, carried + _HEADERS * segments


def _counters(number: int) -> dict[tuple[_Address, _Address], tuple[int, int]]:
    """The counters of a socket by its two ends; empty if it is no TCP connection."""
    with socket.socket(fileno=os.dup(number)) as copy:
        internet = copy.family in {socket.AF_INET, socket.AF_INET6}
        if copy.type != socket.SOCK_STREAM or not internet:
            return {}
        ends = (_address(copy.getsockname()), _address(copy.getpeername()))
        raw = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    if len(raw) < _INFO.size:
        return {}
    sent, received, out, into = _INFO.unpack_from(raw)
    return {ends: (sent + received, out + into)}


def _address(name: tuple[str, int]) -> _Address:
    return name[0].removeprefix("::ffff:"), name[1]
