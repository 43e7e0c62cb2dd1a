"""What is queued is completed before the interpreter ends, also where nobody calls ``close``.

A thread cannot do that by itself: once the main thread has ended, the pools that encode take
no more work. The hook runs before they close, because it is registered after they are.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 (registers its own hook, which must be older)
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
    """Has the object closed when the interpreter ends."""
    _open.add(closable)


def closed(closable: _Closable) -> None:
    """The object is closed already."""
    _open.discard(closable)


def complete(close: Callable[[], object], error: BaseException | None) -> None:
    """Ends a ``with`` block: what ``close`` raises is a note of the error that left the block."""
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


# The only hook that runs before the executors' own; atexit comes too late for them.
getattr(threading, "_register_atexit")(_close_all)  # noqa: B009 (private, so not in stubs)
