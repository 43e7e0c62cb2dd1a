"""For tests of mvc and of programs that use it; nothing of mvc imports it.

Here: faulty file systems, clocks that are set, opening as a new process would.
``mvc.testing.fixtures`` has them as fixtures of pytest.
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
