"""The walk-throughs of docs/guides, and the README, run as they stand and print what they show.

The examples of all other pages run from top to bottom; those that need a framework in
``tests/frameworks/test_pages.py``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guides.page import PROJECT, Page, run_page

DOCS = PROJECT / "docs"
GUIDES = sorted(path.stem for path in (DOCS / "guides").glob("*.md"))
ELSEWHERE = ("guides/", "frameworks/", "provenance")
EXAMPLES = [
    name
    for path in sorted(DOCS.rglob("*.md"))
    if "```python" in path.read_text(encoding="utf-8")
    and not (name := str(path.relative_to(DOCS).with_suffix(""))).startswith(ELSEWHERE)
]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", GUIDES)
def test_guide(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(DOCS / "guides" / f"{name}.md", tmp_path, monkeypatch)


def test_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(PROJECT / "README.md", tmp_path, monkeypatch)
    assert "<!-- python" not in (PROJECT / "README.md").read_text()  # each block runs as pasted


def test_quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The beginning of the README, which needs numpy alone."""
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    beginning = readme.partition("\n## From training")[0]
    page = tmp_path / "quickstart.md"
    page.write_text(beginning, encoding="utf-8")
    run_page(page, tmp_path, monkeypatch)
    assert "torch" not in re.findall(r"^import (\w+)", beginning, re.M)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(DOCS / f"{name}.md", tmp_path, monkeypatch, python_only=True)


_BEFORE = """
import os
from pathlib import Path

import mvc
import torch
from safetensors.torch import save_file

code, line = Path("train_recipe.py").read_text(), "epochs):  # an ordinary function\\n"
Path("seeded.py").write_text(code.replace(line, f"{line}    torch.manual_seed(0)\\n"))
from seeded import train

folder, repo = Path("data/digits").resolve(), mvc.Repository.open("models")
model = mvc.constructed(torch.nn.Linear, 64, 10)
mvc.load(repo, model, "HEAD")
train(model, torch.optim.Adam(model.parameters(), lr=1e-3), folder, epochs=3)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
os.chdir("models")
save_file(model.state_dict(), "model.safetensors")
"""


def test_the_script_and_the_blocks_of_the_provenance_page_run(tmp_path: Path) -> None:
    """The page shows lines of the script; the later blocks import it."""
    text = (DOCS / "provenance.md").read_text(encoding="utf-8")
    shown, *later = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    script = (PROJECT / "examples/train_recipe.py").read_text(encoding="utf-8")
    assert {line.strip() for line in shown.splitlines()} <= set(map(str.strip, script.splitlines()))
    environ = {**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
    printed = {}
    for name, code in {"train_recipe.py": script, "later.py": "".join([_BEFORE, *later])}.items():
        (tmp_path / name).write_text(code, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, name], cwd=tmp_path, env=environ, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        printed[name] = done.stdout
    assert "<Retrained: " in printed["train_recipe.py"]


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
