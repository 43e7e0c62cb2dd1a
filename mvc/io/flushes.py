"""Flushes many files to disk in parallel, which takes less time than one after another.

One flush takes a disk milliseconds. Several flushes at the same time take about as long as one.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Self

from mvc.errors import IoFailed
from mvc.io.handles import WriteFile
from mvc.io.os_errors import under_name

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

FLUSHES = 16
"""How many files are flushed at the same time by default. More were not faster on two CPUs."""


class Flushes:
    """Flushes and closes files. All are durable when the ``with`` block ends without an error.

    ``at_once``: how many files are flushed at the same time. If 0, all files are flushed at the end
    of the block, in the order of ``add``: tests with simulated file systems need a fixed order.
    """

    def __init__(self, at_once: int = FLUSHES) -> None:
        self._at_once = at_once
        self._waiting: deque[tuple[WriteFile, Path]] = deque()
        self._running: deque[Future[None]] = deque()
        self._pool: ThreadPoolExecutor | None = None

    def add(self, file: WriteFile, path: Path) -> None:
        """Adds an open file. Messages about this file name ``path``.

        Raises the error of an earlier file whose flush failed.
        """
        self._waiting.append((file, path))
        # ``__exit__`` flushes the last file: a single file needs no thread.
        if not self._at_once or len(self._waiting) == 1:
            return
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor  # late: slow to import

            self._pool = ThreadPoolExecutor(self._at_once, thread_name_prefix="mvc-flush")
        while len(self._running) >= 2 * self._at_once:  # limits the number of open files
            self._running.popleft().result()
        self._running.append(self._pool.submit(_flush, *self._waiting.popleft()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        try:
            while self._waiting and error is None:
                _flush(*self._waiting.popleft())
            while self._running and error is None:
                self._running.popleft().result()
        finally:
            if self._pool is not None:
                self._pool.shutdown()
            for file, _path in self._waiting:
                file.close()


def _flush(file: WriteFile, path: Path) -> None:
    with file:
        try:
            file.sync()
        except IoFailed as error:
            raise under_name(error, file.path, path) from error.__cause__
