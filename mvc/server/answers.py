"""Caches the server's answers to nodes, the machines that serve a model.

Many nodes request the live version of a target. The server computes the answer once, and stores it
in a temporary file.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from mvc.limits import MIB
from mvc.transport import Slice, slices

CACHED = 8  # maximum number of cached answers
MOST = 256 * MIB
"""Maximum number of bytes of all cached answers together. A larger answer is not cached."""
PART = 64 << 10
"""Number of bytes of an answer that are read in one step.

The number is small, because many requests read concurrently.
"""


class Answer:
    """A slice (versions with their encoded contents) in a temporary file without a name.

    The operating system deletes the file after ``__del__`` has closed it.
    """

    def __init__(self, file: int, size: int) -> None:
        self.size = size
        self._file = file

    def parts(self) -> Iterator[bytes]:
        """All bytes of the slice, in parts."""
        for at in range(0, self.size, PART):
            yield os.pread(self._file, min(PART, self.size - at), at)

    def __del__(self) -> None:
        os.close(self._file)


def store_answer(
    folder: Path, answer: Iterator[Slice], is_current: Callable[[], bool]
) -> Answer | None:
    """Stores the slice of ``answer`` in a file in ``folder``.

    None if the slice is too large or outdated, or if the disk is full. ``is_current``: returns
    whether the slice is still the right answer.
    """
    first = next(answer)
    room = len(first.head) + first.size + MIB  # the encoding adds less than 1 MiB
    # posix_fallocate reserves the space. macOS lacks it, so nothing is cached on macOS.
    if room > MOST or not is_current() or not hasattr(os, "posix_fallocate"):
        return None
    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, room)
        for part in slices.write(first):
            file.write(part)
        file.flush()
        return Answer(os.dup(file.fileno()), file.tell())
    return None


Pending: TypeAlias = asyncio.Future[Answer | None]
"""An answer in preparation. The result None means that each request computes its own answer."""


class Answers:
    """The answers to recent requests. Use the class only in the thread of the event loop."""

    def __init__(self) -> None:
        self._cached = OrderedDict[Hashable, Pending]()

    def find(self, question: Hashable) -> Pending | None:
        """The cached answer to a request.

        None if no answer is cached, or if the computation of the answer failed.
        """
        pending = self._cached.get(question)
        if pending is None or (pending.done() and pending.exception() is not None):
            return None
        self._cached.move_to_end(question)
        return pending

    def add(self, question: Hashable, pending: Pending) -> None:
        self._cached[question] = pending
        self._cached.move_to_end(question)
        pending.add_done_callback(self._trim)

    def _trim(self, _: Pending) -> None:
        """Removes old answers from the cache. Requests that read a removed answer can continue."""
        total = 0
        for i, (question, pending) in enumerate(reversed([*self._cached.items()])):
            is_whole = pending.done() and pending.exception() is None
            answer = pending.result() if is_whole else None
            total += 0 if answer is None else answer.size
            if i >= CACHED or total > MOST:
                del self._cached[question]
