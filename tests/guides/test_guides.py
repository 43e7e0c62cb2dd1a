"""The walk-throughs of docs/guides run as they stand, and print what they show.

The examples of docs/python.md and docs/recorder.md run from top to bottom.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guides.page import Page, run_page

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = sorted(path.stem for path in (DOCS / "guides").glob("*.md"))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", GUIDES)
def test_guide(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(DOCS / "guides" / f"{name}.md", tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ["python", "recorder"])
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(DOCS / f"{name}.md", tmp_path, monkeypatch, python_only=True)


def test_the_file_of_the_provenance_page_runs(tmp_path: Path) -> None:
    text = (DOCS / "provenance.md").read_text(encoding="utf-8")
    file = tmp_path / "train_digits.py"
    file.write_text(text.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    environ = {**os.environ, "PYTHONPATH": str(DOCS.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, file.name], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "<Retrained: " in done.stdout


@pytest.mark.parametrize(
    ("shown", "actual", "same"),
    [
        ("a  b", "a b", True),
        ("a b", "a c", False),
        ("a", "a\nb", False),
        ("3 of 4 tensors", "3 of 5 tensors", False),
        ("8.00 kB (50.0 %)", "7.99 kB (52.1 %)", True),
        ("8.00 kB", "8.00 MB", False),
        ("990 B", "1.01 kB", True),
        ("0.95", "0.5", False),
        ("in 3.2 s", "in 9.1 s", True),
        ("2026-11-02T09:00:00+00:00", "2026-11-02T09:00:01+00:00", False),
        ("1a2b3c4d5e 1a2b3c4d5e", "aaaaaaaa11 aaaaaaaa11", True),
        ("1a2b3c4d5e 1a2b3c4d5e", "aaaaaaaa11 aaaaaaaa12", False),
        ("1a2b3c4d5e ff2b3c4d5e", "aaaaaaaa11 aaaaaaaa11", False),
    ],
)
def test_what_counts_as_the_same(shown: str, actual: str, same: bool) -> None:
    page = Page(Path("page"))
    if same:
        page.compare("x", shown, actual)
    else:
        with pytest.raises(AssertionError, match="this run printed"):
            page.compare("x", shown, actual)


def test_what_a_page_leaves_out_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n")
    with pytest.raises(AssertionError, match="does not show what a block prints"):
        run_page(page, tmp_path, monkeypatch)


def test_commands_take_the_ids_of_this_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```\n$ echo 7a2b3c4d5e | tr 7 1\n0a2b3c4d5e\n$ echo 0a2b3c4d5e\n0a2b3c4d5e\n```\n"
    )
    run_page(page, tmp_path, monkeypatch)
