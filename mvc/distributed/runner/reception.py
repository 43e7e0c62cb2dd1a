"""Who connects to a coordinator: processes that prove to be workers, and what they say."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any

from mvc.distributed.runner.connection import Connection, ConnectionGone, serve
from mvc.distributed.runner.handshake import Unproven, admit, own_secret
from mvc.distributed.runner.sockets import Traffic
from mvc.errors import BadMessage
from mvc.io.patience import SLICE

GOODBYE = 5.0  # seconds that a failure may take to reach the workers
_GREETING = 10.0  # seconds in which a process that connects must prove that it is a worker
_STRANGERS = 64  # processes that may be about to prove it; the oldest makes room for one more


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
