"""A cache of answers that many nodes request.

An answer is computed once, and stored in an unnamed file.
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

CACHED = 8
MOST = 256 * MIB
"""Limit of bytes of all cached answers. A larger answer is computed for each request."""
PART = 64 << 10
"""Bytes of an answer that are read at once: few, because many requests read concurrently."""


class Answer:
    """A slice (versions with their records) in an unnamed file, deleted with its last reader."""

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
    """Stores a slice. None if the slice is too large, or the disk is full.

    ``is_current``: whether the slice still answers the request. The repository may have changed.
    """
    first = next(answer)
    room = len(first.head) + first.size + MIB  # the encoding adds less than 1 KiB
    # macOS lacks posix_fallocate.
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
"""An answer in preparation. Its result is None if each request computes its own answer."""


class Answers:
    """The answers to recent requests. To be used only in the event loop's thread."""

    def __init__(self) -> None:
        self._cached = OrderedDict[Hashable, Pending]()

    def find(self, question: Hashable) -> Pending | None:
        """The cached answer to a request. None if there is none, or if it failed."""
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
        """Removes old answers from the cache. Open readers can still read them."""
        total = 0
        for i, (question, pending) in enumerate(reversed([*self._cached.items()])):
            is_whole = pending.done() and pending.exception() is None
            answer = pending.result() if is_whole else None
            total += 0 if answer is None else answer.size
            if i >= CACHED or total > MOST:
                del self._cached[question]
