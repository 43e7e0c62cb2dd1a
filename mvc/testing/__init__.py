"""Helpers for tests of mvc, and for tests of programs that use mvc.

This package has file systems that fail, clocks with a fixed time, and functions that open a
repository as a new process would. ``mvc.testing.fixtures`` has pytest fixtures. No other package of
mvc imports this package.
"""

from mvc.testing.files import (
    FailingFS,
    HookedFS,
    Killed,
    KilledFS,
    UnsyncedFS,
    WrappedFS,
)
from mvc.testing.process import (
    FixedClock,
    fresh_process,
    killed,
    open_quietly,
    open_repository,
)

__all__ = [
    "FailingFS",
    "FixedClock",
    "HookedFS",
    "Killed",
    "KilledFS",
    "UnsyncedFS",
    "WrappedFS",
    "fresh_process",
    "killed",
    "open_quietly",
    "open_repository",
]
