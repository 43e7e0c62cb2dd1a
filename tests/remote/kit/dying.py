"""Kills the own process just before its n-th call that changes a file, a folder or a name.

``python -m tests.remote.kit.dying N MODULE ARGUMENTS...`` runs a module as a program that dies
there. What LMDB writes is not counted.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = ["count_changes", "die_at"]

CHANGES = (
    "pwrite", "pwritev", "fsync", "fdatasync", "ftruncate", "fchmod", "replace", "link", "unlink",
    "mkdir", "rmdir", "symlink",
)  # fmt: skip
Report = Callable[[], int]


def count_changes(at_call: Callable[[int], None] = lambda number: None) -> Report:
    """From now on the process counts, and calls ``at_call`` before each; returns how many."""
    lock, counted = threading.Lock(), [0]

    def changed(real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        with lock:
            counted[0] += 1
            number = counted[0]
        at_call(number)
        return real(*arguments, **named)

    for name in CHANGES:
        setattr(os, name, partial(changed, getattr(os, name)))
    return lambda: counted[0]


def die_at(number: int) -> Report:
    """As ``count_changes``; the process does not survive the call of that number (from 1)."""

    def die(now: int) -> None:
        if now == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return count_changes(die)


if __name__ == "__main__":
    die_at(int(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
