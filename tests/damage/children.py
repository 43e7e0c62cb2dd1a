"""Runs a suite's module in a child process: a process that dies is counted, not suffered."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.counters import count

__all__ = ["note", "run"]

PROJECT = Path(__file__).parents[2]


def run(module: str, root: Path, *numbers: object) -> Counter[str]:
    """The counters that the module prints; ``deaths`` is 1 where a signal ended it."""
    command = [sys.executable, "-m", f"tests.damage.{module}", str(root), *map(str, numbers)]
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
