"""A repository whose commits wait for a word, or fail: what is queued behind them can be seen."""

from __future__ import annotations

import threading
from typing import Any

import mvc


class Gate:
    """Wraps ``commit`` of a repository. ``open`` lets everything through."""

    def __init__(self, repo: mvc.Repository, failures: dict[int, BaseException] | None = None):
        self.begun = threading.Semaphore(0)
        self._may = threading.Semaphore(0)
        self._open = threading.Event()
        self._commit = repo.commit
        self._failures = failures or {}
        self._count = 0
        repo.commit = self.commit  # type: ignore[method-assign]

    def commit(self, *arguments: Any, **options: Any) -> Any:
        self.begun.release()
        if not self._open.is_set():
            self._may.acquire()
        self._count += 1
        if self._count in self._failures:
            raise self._failures[self._count]
        return self._commit(*arguments, **options)

    def let(self, count: int = 1) -> None:
        """Lets ``count`` commits through."""
        self._may.release(count)

    def open(self) -> None:
        self._open.set()
        self._may.release()
