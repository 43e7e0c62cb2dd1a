"""Counters of the suites, from the run itself: what was tried, found, wrong.

A test calls ``count("bit flips, packs", tried=5000, found=5000, wrong=0)``. Where the
variable ``MVC_COUNTERS`` names a folder, each process keeps a file of lines there, and
``python -m tests.counters FOLDER`` adds them up to the table in docs/reliability.md.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from tests.variables import variable

__all__ = ["count", "table", "totals"]

_ORDER = ("tried", "images", "kills", "", "lost", "wrong", "deaths")


def count(name: str, **numbers: int) -> None:
    """Adds ``numbers`` to the counters of ``name``; of those that begin with ``max_`` the
    greatest counts. Also printed, so that ``pytest -s`` shows them."""
    print(f"{name}: {_shown(numbers)}")
    folder = variable("MVC_COUNTERS")
    if not folder:
        return
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" (")[0]
    line = json.dumps({"name": name, "test": test, "numbers": numbers})
    Path(folder).mkdir(parents=True, exist_ok=True)
    # One file a process and one write a line: nothing is shared under pytest-xdist.
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    with (Path(folder) / f"{worker}-{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def totals(
    folder: Path, counts: Callable[[str, str], bool] | None = None
) -> dict[str, dict[str, int]]:
    """Sums (``max_``: maxima) of every counter in ``folder``, names in order.

    With ``counts``, of those in folders below it for which ``counts(folder's name, test)``.
    """
    sums: dict[str, dict[str, int]] = {}
    for path in sorted(folder.glob("*.jsonl" if counts is None else "*/*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            noted = json.loads(line)
            if counts is not None and not counts(path.parent.name, noted["test"]):
                continue
            into = sums.setdefault(noted["name"], {})
            for key, value in noted["numbers"].items():
                before = into.get(key, 0)
                into[key] = max(before, value) if key.startswith("max_") else before + value
    return dict(sorted(sums.items()))


def table(sums: dict[str, dict[str, int]]) -> str:
    """The counters as a Markdown table."""
    rows = [f"| {name} | {_shown(numbers)} |" for name, numbers in sums.items()]
    return "\n".join(["| suite | counted |", "|---|---|", *rows])


def _shown(numbers: dict[str, int]) -> str:
    return ", ".join(
        f"{'at most ' if key.startswith('max_') else ''}"
        f"{key.removeprefix('max_').replace('_', ' ')} {value:,}"
        for key, value in sorted(numbers.items(), key=_place)
    )


def _place(counted: tuple[str, int]) -> tuple[int, str]:
    """What was tried comes first, what must be zero last."""
    return _ORDER.index(counted[0]) if counted[0] in _ORDER else 3, counted[0]


if __name__ == "__main__":
    print(table(totals(Path(sys.argv[1]))))
