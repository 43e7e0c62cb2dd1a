"""Which tests are slow: those that ``slow.json`` names, with the seconds that they took.

The seconds are those of one processor, or a fifth of the clock's seconds if a test mostly waits.

They get the marker ``slow`` when they are collected, and run in the second half of ``.ci/run``.

    python -m pytest -n auto -m 'not long' -p tests.slow     # notes in costs/ what each test takes
    python -m tests.slow                                     # writes slow.json from that
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

__all__ = ["KNOWN", "mark"]

KNOWN = Path(__file__).with_suffix(".json")
COSTS = Path("costs")
LIMIT = 1.0
"""Seconds, of all parameters of a test together, from which on it is slow."""
WAITING = 0.2
"""The weight of a second of the clock."""


def mark(items: Iterable[pytest.Item]) -> None:
    """Gives the marker to what ``slow.json`` names."""
    slow = json.loads(KNOWN.read_text(encoding="utf-8"))
    for item in items:
        if item.nodeid.partition("[")[0] in slow:
            item.add_marker(pytest.mark.slow)


# -- as a plugin: what each test takes -----------------------------------------------------------


_began: dict[str, tuple[float, float]] = {}


def _clocks() -> tuple[float, float]:
    """Seconds of the processor, ended child processes included; weighted seconds of the clock."""
    times = os.times()
    return sum(times[:4]), WAITING * times.elapsed


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(nodeid: str) -> None:
    _began[nodeid] = _clocks()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.when == "teardown" and item.nodeid in _began:
        COSTS.mkdir(exist_ok=True)
        with (COSTS / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            began = _began.pop(item.nodeid)
            took = max(now - then for now, then in zip(_clocks(), began, strict=True))
            file.write(json.dumps([item.nodeid.partition("[")[0], took]) + "\n")
    return report


def _main() -> None:
    sums: Counter[str] = Counter()
    for path in COSTS.glob("*.jsonl"):
        for test, took in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            sums[test] += took
    slow = {test: round(took, 1) for test, took in sorted(sums.items()) if took >= LIMIT}
    KNOWN.write_text(json.dumps(slow, indent=1) + "\n", encoding="utf-8")
    fast = sum(sums.values()) - sum(slow.values())
    print(f"{len(slow)} slow tests, {sum(slow.values()):.0f} s; the others {fast:.0f} s")


if __name__ == "__main__":
    _main()
