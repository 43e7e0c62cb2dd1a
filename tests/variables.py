"""Variables of the environment that the test suites read.

Their names begin like mvc's own settings, and mvc refuses what it does not know. So where
tests run they go by another name (``tests/conftest.py``), which child processes inherit.
"""

from __future__ import annotations

import os

__all__ = ["NAMES", "put_aside", "variable"]

NAMES = (
    "MVC_SEED",
    "MVC_COUNTERS",
    "MVC_FUZZ_SECONDS",
    "MVC_REQUIRE_FRAMEWORKS",
    "MVC_REQUIRE_BROWSER",
)
_PREFIX = "TESTS_"


def put_aside() -> None:
    """Renames them for this process and its children."""
    for name in NAMES:
        if (value := os.environ.pop(name, None)) is not None:
            os.environ[_PREFIX + name] = value


def variable(name: str) -> str | None:
    """The value, under whichever name it goes."""
    return os.environ.get(name) or os.environ.get(_PREFIX + name)
