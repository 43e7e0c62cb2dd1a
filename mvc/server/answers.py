"""Answers that many ask for: planned once, kept in files without names, read by all at once."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path

from blake3 import blake3

from mvc.limits import MIB
from mvc.remote import slices, wire
from mvc.remote.door import Slice

KEPT = 8
MOST = 256 * MIB
"""Bytes of all answers that are kept; a larger one is made for each who asks."""


class Answer:
    """An answer on its way to a file. Its attributes change in the loop's thread alone.

    ``size``: bytes that can be read. ``ended``: no more come. ``unshared``: nothing can be read;
    each who asks has an answer made. ``changed`` is set, and another one, when any of it changes.
    """

    def __init__(self) -> None:
        self.size = 0
        self.ended = self.unshared = False
        self.error: Exception | None = None
        self.changed = asyncio.Event()
        self._file = -1

    def fill(
        self, folder: Path, given: Iterator[Slice], *,
        holds: Callable[[], bool], tell: Callable[..., object],
    ) -> None:  # fmt: skip
        """Writes a slice to a file, in a thread. ``tell(function, *given)`` runs it in the loop.

        ``holds``: whether it answers what was asked when it was; something may just have happened.
        """
        size = 0
        try:
            first = next(given)
            room = slices.written_size(first) + MIB
            if room > MOST or not holds() or not self._reserve(folder, room):
                tell(self._refuse)
                return
            for part in slices.write(first):
                view = memoryview(part).cast("B")
                while view:
                    done = os.pwrite(self._file, view[:MIB], size)
                    view, size = view[done:], size + done
                    tell(self._grow, size)
            tell(self._end, None)
        except Exception as error:  # those who read it raise it
            tell(self._end, error)

    def _reserve(self, folder: Path, room: int) -> bool:
        """Makes the file; False where the disk has no room for it, or nobody says so (macOS)."""
        if not hasattr(os, "posix_fallocate"):
            return False
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                os.posix_fallocate(file.fileno(), 0, room)
                self._file = os.dup(file.fileno())
        except OSError:
            return False
        return True

    def _grow(self, size: int) -> None:
        self.size = size
        self.changed.set()
        self.changed = asyncio.Event()

    def _refuse(self) -> None:
        self.unshared = True
        self._grow(0)

    def _end(self, error: Exception | None) -> None:
        self.ended, self.error = True, error
        self._grow(self.size)

    async def beyond(self, at: int) -> None:
        """Waits until more than ``at`` bytes can be read, or it is known that none will be."""
        while self.size <= at and not (self.ended or self.unshared):
            await self.changed.wait()

    def read(self, at: int, size: int) -> bytes:
        """Up to ``size`` of its bytes."""
        return os.pread(self._file, min(size, self.size - at), at)

    def begins(self, skip: int, check: str) -> bool:
        """Whether it begins as the one of which ``skip`` bytes came, by their BLAKE3."""
        return blake3(self.read(0, min(skip, wire.CHECKED))).hexdigest() == check

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


class Answers:
    """Those that were asked for last. Lives in the loop's thread."""

    def __init__(self) -> None:
        self._kept = OrderedDict[Hashable, Answer]()

    def find(self, question: Hashable) -> Answer | None:
        """The answer to a question, on its way or whole; None if nobody asked, or it failed."""
        found = self._kept.get(question)
        if found is None or found.error is not None:
            return None
        self._kept.move_to_end(question)
        return found

    def add(self, question: Hashable) -> Answer:
        """A new answer, which its maker fills."""
        answer = self._kept[question] = Answer()
        self._kept.move_to_end(question)
        self.trim()
        return answer

    def trim(self) -> None:
        """Lets go of old ones; who reads them reads on."""
        total = 0
        for i, (question, answer) in enumerate(reversed([*self._kept.items()])):
            total += answer.size
            if i >= KEPT or total > MOST:
                del self._kept[question]
