"""A repository whose commits wait for a word, or fail: what is queued behind them can be seen."""

from __future__ import annotations

import threading

import mvc


class Gate:
    """Stands before the commits of a repository. ``open`` lets everything through."""

    def __init__(self, repo: mvc.Repository, failures: dict[int, BaseException] | None = None):
        self.begun = threading.Semaphore(0)
        self._may = threading.Semaphore(0)
        self._open = threading.Event()
        self._lock = repo.handle.recent.caches.lock
        self._failures = failures or {}
        self._count = 0
        repo.handle.recent.caches.lock = self  # type: ignore[assignment]

    def __enter__(self) -> None:
        self.begun.release()
        if not self._open.is_set():
            self._may.acquire()
        self._count += 1
        if self._count in self._failures:
            raise self._failures[self._count]
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def let(self, count: int = 1) -> None:
        """Lets ``count`` commits through."""
        self._may.release(count)

    def open(self) -> None:
        self._open.set()
        self._may.release()
