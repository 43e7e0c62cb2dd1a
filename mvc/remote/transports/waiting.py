"""Limits how long a client waits for a server.

A timeout of the connection is not enough, because a server could send useless bytes forever, or one
byte a minute. So an operation has an *allowance*: the number of seconds that it may wait, summed
over all its attempts. Useful bytes, received or sent, extend the allowance.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from http.client import HTTPResponse
from socket import socket
from typing import Any

from mvc.remote import wire
from mvc.types import Bytes

PATIENCE = 600.0
"""Usual allowance, in seconds."""
WORK = 3600.0
"""Allowance, in seconds, if the server must read or verify versions before it answers."""
RATE = 1 << 10
"""Number of useful bytes that extend the allowance by one second."""
PIECE = 1 << 14
"""Number of bytes of a request that are sent between two checks of the allowance."""
# If a wait seems to last longer, this computer was suspended. Then only _LONGEST seconds count.
_LONGEST = 4 * wire.WAIT


class Allowance:
    """The seconds for which an operation may still wait for its server."""

    def __init__(self, seconds: float) -> None:
        self.spent = 0.0
        self._seconds, self._since = seconds, 0.0
        self._unsent = math.inf

    @property
    def left(self) -> float:
        return self._seconds - self.spent

    def earn(self, size: float) -> None:
        """Extends the allowance for ``size`` useful bytes that arrived or were sent."""
        self.spent = max(0.0, self.spent - size / RATE)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time of the ``with`` block as waiting.

        If the allowance is used up, reading a ``Response`` in the block raises TimeoutError.
        """
        self._since = time.monotonic()
        before = _waiting.set(self)
        try:
            yield
        finally:
            _waiting.reset(before)
            self._count()

    def check(self) -> None:
        """Raises TimeoutError if the allowance is used up."""
        self._count()
        if self.left <= 0:
            raise TimeoutError("the server sent nothing useful for too long")

    def pieces(self, body: Bytes) -> Iterator[memoryview]:
        """Yields the pieces of the body of a request. Each sent piece extends the allowance.

        If a request is repeated, pieces that were sent before do not extend the allowance again.
        """
        left = memoryview(body)
        self._unsent = min(self._unsent, len(left))
        while left:
            self.check()
            yield left[:PIECE]
            left = left[PIECE:]
            self.earn(max(0, self._unsent - len(left)))
            self._unsent = min(self._unsent, len(left))

    def _count(self) -> None:
        now = time.monotonic()
        self.spent += min(now - self._since, _LONGEST)
        self._since = now


_waiting: ContextVar[Allowance] = ContextVar("_waiting")


class Response(HTTPResponse):
    """The answer of a server. The time of reading it with ``read1`` counts as waiting.

    Create a ``Response`` within ``Allowance.waiting``.
    """

    def __init__(self, sock: socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_Watched(self.fp.detach()))
        self._allowance = _waiting.get()

    def read1(self, n: int = -1) -> bytes:
        with self._allowance.waiting():
            return super().read1(n)


class _Watched(io.RawIOBase):
    def __init__(self, line: io.RawIOBase) -> None:
        self._line = line

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        _waiting.get().check()
        return self._line.readinto(buffer)

    def close(self) -> None:
        self._line.close()
        super().close()
