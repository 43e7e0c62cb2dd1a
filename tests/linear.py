"""How work grows with the number of its things, measured without a clock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import mvc


def lines_run(work: Callable[[], object]) -> int:
    """Lines of Python in mvc that ``work`` runs in this thread: a measure without a clock."""
    count = 0

    def local(frame: Any, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return local

    def begin(frame: Any, event: str, argument: object) -> Any:
        return local if f"{mvc.__name__}/" in frame.f_code.co_filename else None

    sys.settrace(begin)
    try:
        work()
    finally:
        sys.settrace(None)
    return count


def assert_linear(work: Callable[[int], int]) -> None:
    """Three times as many things take about three times the lines, not nine times."""
    assert work(600) < 4 * work(200)
