"""Runs a suite's module in a child process, and takes the counters that it prints as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.counters import count

__all__ = ["PROJECT", "note", "outcome", "run"]

PROJECT = Path(__file__).parents[1]


def run(module: str, *arguments: object) -> Counter[str]:
    """The counters; what the child says of failures is shown where a test fails."""
    found = outcome(module, *arguments)
    assert not found["deaths"], f"{module} was ended by a signal"
    return found


def outcome(module: str, *arguments: object) -> Counter[str]:
    """As ``run``, but a child that a signal ends is counted as ``deaths``, not suffered."""
    command = [sys.executable, "-m", f"tests.{module}", *map(str, arguments)]
    child = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    if child.returncode < 0:
        return Counter(deaths=1)
    assert child.returncode == 0, child.stderr[-3000:]
    print(child.stderr, end="")
    return Counter(json.loads(child.stdout))


def note(name: str, found: Counter[str]) -> None:
    """Counts. A suite that met wrong bytes or a foreign error has not come this far."""
    deaths = found["deaths"]
    count(name, **{k: v for k, v in found.items() if k != "deaths"}, wrong=0, deaths=deaths)
    assert not deaths
