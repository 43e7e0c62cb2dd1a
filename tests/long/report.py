"""What the long suite has counted so far: only what tests noted that have passed."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from tests.counters import table, totals
from tests.long.plugin import FINISHED

__all__ = ["Finished", "counters", "durations", "finished", "gather"]


@dataclass(frozen=True)
class Finished:
    """A test that has passed: how long it took, in which run, on which commit.

    ``processor``: of all its processes, which is what counts on a machine that is busy.
    """

    test: str
    seconds: float
    processor: float
    run: str
    commit: str


def finished(folder: Path) -> dict[str, Finished]:
    """By test id; a line that was cut off by a kill is left out."""
    path, found = folder / FINISHED, {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        try:
            each = Finished(**json.loads(line))
        except ValueError:
            continue
        found[each.test] = each
    return found


def counters(folder: Path) -> str:
    """The Markdown table of docs/reliability.md.

    A test that was interrupted may have counted something before: each test counts with the
    run in which it passed.
    """
    passed = finished(folder)
    return table(totals(folder, lambda run, test: test in passed and passed[test].run == run))


def durations(folder: Path) -> dict[str, float]:
    """Mean processor time of each test function, of all its parameters."""
    by_function: dict[str, list[float]] = defaultdict(list)
    for each in finished(folder).values():
        by_function[each.test.partition("[")[0]].append(each.processor)
    return {name: round(sum(s) / len(s), 1) for name, s in sorted(by_function.items())}


def gather(other: Path, folder: Path) -> None:
    """Adds what ran on another machine, in ``other``, to what is in ``folder``."""
    for run in other.glob("run-*/"):
        shutil.copytree(run, folder / run.name)
    noted = other / FINISHED
    lines = noted.read_text(encoding="utf-8").splitlines() if noted.exists() else []
    with (folder / FINISHED).open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
