"""Closes recorders before the interpreter ends, so that queued versions are committed.

A recorder's thread cannot do that by itself: once the main thread has ended, the thread pools
that encode take no more work. The hook here runs before theirs, because it is registered later.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 (registers its hook, which must come first)
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol
from weakref import WeakSet

__all__ = ["before_exit", "closed", "complete"]


class _Closable(Protocol):
    def close(self) -> object: ...


_open: WeakSet[_Closable] = WeakSet()


def before_exit(closable: _Closable) -> None:
    """Registers an object to be closed when the interpreter ends."""
    _open.add(closable)


def closed(closable: _Closable) -> None:
    """Removes an object that is closed."""
    _open.discard(closable)


def complete(close: Callable[[], object], error: BaseException | None) -> None:
    """Ends a ``with`` block: an error of ``close`` becomes a note of the error in the block."""
    try:
        close()
    except BaseException as failure:
        if error is None:
            raise
        if failure is not error:
            error.add_note(f"mvc: a version could not be recorded either: {failure}")


def _close_all() -> None:
    with ExitStack() as all_:
        for closable in list(_open):
            all_.callback(closable.close)


# The only hook that can run before the executors' own; atexit runs after it.
getattr(threading, "_register_atexit")(_close_all)  # noqa: B009 (private, so not in stubs)
