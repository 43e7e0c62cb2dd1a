"""The command of the long suite: parts, resuming, and whose counters count."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tests.long.plan import cost, part
from tests.long.plugin import FINISHED
from tests.long.report import counters, durations, finished, gather

COSTS = {"a.py::long": 100.0, "a.py::short": 1.0}
TESTS = [
    *(f"a.py::long[{i}]" for i in range(6)),
    *(f"a.py::short[{i}]" for i in range(40)),
    "b::new",
]


def test_parts_are_the_whole_each_test_once_and_of_like_cost() -> None:
    for parts in (1, 2, 3, 4):
        dealt = [part(TESTS, COSTS, number, parts) for number in range(1, parts + 1)]
        assert Counter(test for each in dealt for test in each) == Counter(TESTS)
        sums = [sum(cost(test, COSTS) for test in each) for each in dealt]
        assert max(sums) - min(sums) <= 100


def test_the_longest_come_first() -> None:
    assert part(TESTS, COSTS, 1, 1)[:7] == [*sorted(TESTS[:6]), "b::new"]


def note(folder: Path, run: str, test: str, images: int) -> None:
    (folder / run).mkdir(parents=True, exist_ok=True)
    line = {"name": "crashes", "test": test, "numbers": {"images": images}}
    with (folder / run / "main-1.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def passed(folder: Path, run: str, test: str, seconds: float) -> str:
    line = {"test": test, "seconds": 99.0, "processor": seconds, "run": run, "commit": "abc"}
    return json.dumps(line) + "\n"


def test_only_what_passed_counts_and_with_the_run_in_which_it_did(tmp_path: Path) -> None:
    """A test that was interrupted and run again must not be counted twice."""
    note(tmp_path, "run-1", "a.py::long[0]", 5)
    note(tmp_path, "run-1", "a.py::long[1]", 3)  # then the machine stopped
    note(tmp_path, "run-2", "a.py::long[1]", 7)
    note(tmp_path, "run-2", "a.py::long[2]", 1000)  # failed
    lines = passed(tmp_path, "run-1", "a.py::long[0]", 2.0)
    lines += passed(tmp_path, "run-2", "a.py::long[1]", 4.0)
    (tmp_path / FINISHED).write_text(lines + '{"test": "a.py::lo')
    assert set(finished(tmp_path)) == {"a.py::long[0]", "a.py::long[1]"}
    assert counters(tmp_path).splitlines()[-1] == "| crashes | images 12 |"
    assert durations(tmp_path) == {"a.py::long": 3.0}


def test_parts_of_several_machines_are_gathered(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    for number in (1, 2):
        other = tmp_path / f"part-{number}"
        note(other, f"run-{number}", f"a.py::long[{number}]", 10 * number)
        (other / FINISHED).write_text(passed(other, f"run-{number}", f"a.py::long[{number}]", 1.0))
        gather(other, whole)
    assert set(finished(whole)) == {"a.py::long[1]", "a.py::long[2]"}
    assert counters(whole).splitlines()[-1] == "| crashes | images 30 |"
