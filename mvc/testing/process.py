"""Helpers for tests: replace the clock and threads, kill a process, open a repository."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from mvc.api import Repository, Tuning, clear_caches
from mvc.system import Clock, FileSystem
from mvc.testing.files import Hook, HookedFS

P = ParamSpec("P")
T = TypeVar("T")


class FixedClock(Clock):
    """A clock that starts at ``start_ns`` and advances by ``step_ns`` on each query."""

    def __init__(self, start_ns: int = 1_750_000_000_000_000_000, step_ns: int = 0) -> None:
        self.time_ns = start_ns
        self.step_ns = step_ns

    def now_ns(self) -> int:
        now = self.time_ns
        self.time_ns += self.step_ns
        return now

    def advance(self, ns: int) -> None:
        """Sets the clock forward, or back if ``ns`` is negative."""
        self.time_ns += ns


class InThisThread(Executor):
    """An executor that runs each call in the calling thread, which is faster for small tensors."""

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


def killed(act: Callable[[FileSystem], object], when: Hook) -> bool:
    """Runs ``act`` with a file system in a forked process. Kills the process at the first call of
    the file system for which ``when`` is true.

    Returns whether the process was killed.
    """

    def die(number: int, op: str, path: Path) -> None:
        if when(number, op, path):
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            fresh_process()
            act(HookedFS(die))
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def fresh_process() -> None:
    """Clears all caches, as if the process had just started."""
    clear_caches()


def open_repository(root: Path, *, tuning: Tuning | None = None, **options: Any) -> Repository:
    """Opens the repository in exactly this folder. ``options`` are those of ``Repository.open``."""
    return Repository.open(root, discover=False, tuning=tuning, **options)


def open_quietly(root: Path, **options: Any) -> Repository:
    """Opens the repository in exactly this folder, without threads for storing and reading."""
    return open_repository(root, tuning=Tuning(pool=InThisThread()), **options)
