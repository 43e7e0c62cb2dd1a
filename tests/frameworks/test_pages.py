"""The examples of docs/frameworks run, each page in a process and a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks.need import need
from tests.frameworks.trainings import NAMES
from tests.guides.page import PROJECT

NEEDS = {**NAMES, "distributed": ["torch"], "fsspec": ["fsspec"]}
PAGES = PROJECT / "docs" / "frameworks"


def test_every_page_with_an_example_is_here() -> None:
    shown = {path.stem for path in PAGES.glob("*.md") if "```python" in path.read_text()}
    assert shown == set(NEEDS)


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    need(*NEEDS[name])
    environ = {**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.guides.page", PAGES / f"{name}.md"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
