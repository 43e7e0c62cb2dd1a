"""Which tests belong to the long suite, what they cost, and how they are cut into parts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["PROJECT", "cost", "known_costs", "part", "tests_of"]

PROJECT = Path(__file__).parents[2]
DURATIONS = Path(__file__).with_name("durations.json")
ALWAYS = ("tests/hostile/test_lmdb.py", "tests/frozen", "tests/oracle")
"""T13 to T15: short tests, all of which belong to the long suite, too."""
_UNKNOWN, _SHORT = 30.0, 0.5  # seconds of a test that was never measured; of one of ALWAYS


def tests_of(folder: Path) -> list[str]:
    """The ids of all tests, those marked ``long`` and those of ``ALWAYS``."""
    marked = _collected(folder / "collected", "long", ["tests"])
    return sorted({*marked, *_collected(folder / "collected", "not long", ALWAYS)})


def _collected(into: Path, marks: str, paths: Iterable[str]) -> list[str]:
    command = [
        sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider",
        "-p", "tests.long.collecting", "-m", marks, "--collected", str(into), *paths,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the tests cannot be collected:\n{done.stdout[-3000:]}{done.stderr}")
    return into.read_text(encoding="utf-8").splitlines()


def known_costs() -> dict[str, float]:
    """Seconds of one core, by test function (``file::name``, without its parameters)."""
    costs: dict[str, float] = json.loads(DURATIONS.read_text(encoding="utf-8"))
    return costs


def cost(test: str, costs: Mapping[str, float]) -> float:
    """Seconds that a test will take."""
    return costs.get(test.partition("[")[0], _SHORT if test.startswith(ALWAYS) else _UNKNOWN)


def part(tests: Iterable[str], costs: Mapping[str, float], number: int, parts: int) -> list[str]:
    """The tests of one of several parts of about the same cost; together they are all tests.

    The longest tests are dealt out first, each to the part that has least. The same tests and
    costs give the same parts again.
    """
    sums, chosen = [0.0] * parts, []
    for test in sorted(tests, key=lambda test: (-cost(test, costs), test)):
        least = min(range(parts), key=lambda i: (sums[i], i))
        sums[least] += cost(test, costs)
        if least == number - 1:
            chosen.append(test)
    return chosen
