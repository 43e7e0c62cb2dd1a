"""Counters add up over processes, and seeds differ where they must."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.counters import count, table, totals
from tests.seeds import draw

PROJECT = Path(__file__).parents[1]


def test_counters_of_several_processes_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MVC_COUNTERS", str(tmp_path))
    count("flips", tried=1000, wrong=0, max_mib=7)
    count("flips", tried=2, wrong=0, max_mib=3)
    child = "from tests.counters import count; count('flips', tried=9, max_mib=8, deaths=1)"
    subprocess.run([sys.executable, "-c", child], cwd=PROJECT, check=True)
    count("cuts", tried=1)
    sums = totals(tmp_path)
    assert sums == {
        "cuts": {"tried": 1},
        "flips": {"tried": 1011, "wrong": 0, "max_mib": 8, "deaths": 1},
    }
    shown = subprocess.run(
        [sys.executable, "-m", "tests.counters", str(tmp_path)],
        cwd=PROJECT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert shown == table(sums) + "\n"
    assert "| flips | tried 1,011, at most mib 8, wrong 0, deaths 1 |" in shown


def test_without_a_folder_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MVC_COUNTERS", raising=False)
    monkeypatch.delenv("TESTS_MVC_COUNTERS", raising=False)
    monkeypatch.chdir(tmp_path)
    count("flips", tried=1)
    assert list(tmp_path.iterdir()) == []


def test_a_seed_repeats_a_test_and_differs_between_tests_and_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drawn(seed: str, test: str, name: str) -> int:
        monkeypatch.setenv("MVC_SEED", seed)
        monkeypatch.setenv("PYTEST_CURRENT_TEST", f"{test} (call)")
        return draw(name).getrandbits(64)

    every = {
        (seed, test, name): drawn(seed, test, name)
        for seed in ("1", "2")
        for test in ("t.py::test[0]", "t.py::test[1]", "t.py::other")
        for name in ("a", "b")
    }
    assert len(set(every.values())) == len(every)
    assert all(drawn(*key) == value for key, value in every.items())
    monkeypatch.delenv("MVC_SEED")
    monkeypatch.delenv("TESTS_MVC_SEED", raising=False)
    assert drawn_twice() != drawn_twice()


def drawn_twice() -> tuple[int, int]:
    first, second = draw("a"), draw("a")
    assert isinstance(first, random.Random)
    return first.getrandbits(64), second.getrandbits(64)
