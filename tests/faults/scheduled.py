"""Two operations in an order that a test decides: each stops at the call it is told to.

A run is a thread with a file system of its own. It stops before its N-th call, or where it
would have to wait for a lock that the other one holds; the test then lets the other one go.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mvc.io.files import FileLock, FileSystem
from mvc.testing import HookedFS

_SECONDS = 60.0
_WHILE = 0.5
_TURNS = 50


class ScheduledFS(HookedFS):
    """Stops before each of the calls ``stops`` until ``go``; and where a lock is held.

    Calls are counted from ``arm`` on; before that it is a file system like any other.
    """

    def __init__(self, *stops: int, inner: FileSystem | None = None) -> None:
        """A stop of 0 counts as none."""
        super().__init__(self._before, inner)
        self._stops = [stop for stop in stops if stop]
        self._armed = False
        self._changed = threading.Condition()
        self._stopped = False  # waits at a call or a lock
        self._ended = False

    def _before(self, number: int, op: str, path: Path) -> None:
        with self._changed:
            due = self._armed and (self._stopped or number >= min(self._stops, default=number + 1))
            if due:
                self._stops = [stop for stop in self._stops if stop > number]
        if due:
            self.wait()

    def arm(self) -> None:
        self.calls = 0
        self._armed = True

    def lock(
        self,
        path: Path,
        *,
        shared: bool = False,
        timeout: float | None = None,
        block: bool = True,
    ) -> FileLock | None:
        while True:
            lock = super().lock(path, shared=shared, timeout=timeout, block=False)
            if lock is not None or not block:
                return lock
            self.wait()  # the other one holds it: it has to go first

    def wait(self) -> None:
        """Stops here until ``go``."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: not self._stopped, _SECONDS):
                raise AssertionError("nobody let the run go on")

    def until_it_rests(self) -> bool:
        """Waits until the run has stopped or ended; whether it has ended.

        A run that waits for something in memory that the other one holds rests as well: it
        makes no calls for a while.
        """
        with self._changed:
            calls = -1
            while calls != self.calls:
                calls = self.calls
                self._changed.wait_for(lambda: self._stopped or self._ended, _WHILE)
                if self._stopped or self._ended:
                    break
            return self._ended

    def go(self) -> None:
        """Lets the run go on, up to its next stop or a lock."""
        with self._changed:
            self._stopped = False
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class Run:
    """One operation in a thread. ``failed`` is what it raised."""

    def __init__(self, fs: ScheduledFS, act: Callable[[FileSystem], Any]) -> None:
        self.fs = fs
        self.result: Any = None
        self.failed: BaseException | None = None
        self._act = act
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._act(self.fs)
        except BaseException as error:
            self.failed = error
        finally:
            self.fs.end()

    def join(self) -> None:
        self._thread.join(_SECONDS)
        assert not self._thread.is_alive(), "the run does not end"


def interleave(first: Run, second: Run) -> None:
    """``first`` up to its first stop, ``second`` up to its own, ``first`` up to its next one or its
    end, and so on in turn; whoever meets the other one's lock waits for it."""
    first.start()
    first.fs.until_it_rests()
    second.start()
    second.fs.until_it_rests()
    for _ in range(_TURNS):
        for run in (first, second):
            run.fs.go()
            run.fs.until_it_rests()
        if first.fs.until_it_rests() and second.fs.until_it_rests():
            break
    else:
        raise AssertionError("each of the two waits for the other one")
    for run in (first, second):
        run.join()
