"""Answers that many ask for: made once, kept in files without names, read by all at once."""

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

KEPT = 8
MOST = 256 * MIB
"""Bytes of all answers that are kept; a larger one is made for each who asks."""
PART = 64 << 10
"""Bytes of an answer that are read at once: many read it at the same time."""


class Answer:
    """A slice in a file, which is gone with the last who reads it."""

    def __init__(self, file: int, size: int) -> None:
        self.size = size
        self._file = file

    def parts(self) -> Iterator[bytes]:
        """All of its bytes."""
        for at in range(0, self.size, PART):
            yield os.pread(self._file, min(PART, self.size - at), at)

    def __del__(self) -> None:
        os.close(self._file)


def make(folder: Path, given: Iterator[Slice], holds: Callable[[], bool]) -> Answer | None:
    """The answer that a slice is; None if it is too large, or the disk has no room for it.

    ``holds``: whether it answers what was asked when it was; something may just have happened.
    """
    first = next(given)
    room = len(first.head) + first.size + MIB  # what frames them comes on top, below 1 KiB
    if room > MOST or not holds() or not hasattr(os, "posix_fallocate"):  # macOS says of no room
        return None
    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, room)
        for part in slices.write(first):
            file.write(part)
        file.flush()
        return Answer(os.dup(file.fileno()), file.tell())
    return None


Making: TypeAlias = asyncio.Future[Answer | None]
"""An answer on its way; None where each who asks has one made."""


class Answers:
    """Those that were asked for last. Lives in the loop's thread."""

    def __init__(self) -> None:
        self._kept = OrderedDict[Hashable, Making]()

    def find(self, question: Hashable) -> Making | None:
        """The answer to a question; None if nobody asked, or it failed."""
        found = self._kept.get(question)
        if found is None or (found.done() and found.exception() is not None):
            return None
        self._kept.move_to_end(question)
        return found

    def add(self, question: Hashable, making: Making) -> None:
        self._kept[question] = making
        self._kept.move_to_end(question)
        making.add_done_callback(self._trim)

    def _trim(self, _: Making) -> None:
        """Lets go of old ones; who reads them reads on."""
        total = 0
        for i, (question, making) in enumerate(reversed([*self._kept.items()])):
            is_whole = making.done() and making.exception() is None
            answer = making.result() if is_whole else None
            total += 0 if answer is None else answer.size
            if i >= KEPT or total > MOST:
                del self._kept[question]
