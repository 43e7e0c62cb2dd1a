from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import ROOT


def test_the_advice_is_sound(mvc) -> None:
    """What it says of files leads to those of HEAD, and redo to the others again."""
    mvc.commit(1)
    old = Path("model.safetensors").read_bytes()
    mvc.commit(2)
    new = Path("model.safetensors").read_bytes()
    assert "'mvc checkout -f HEAD'" in mvc("undo").err
    assert Path("model.safetensors").read_bytes() == new
    assert [c["kind"] for c in mvc("status", "--json").json["changes"]] == ["modified"]
    mvc("checkout", "HEAD", code=3)
    mvc("checkout", "-f", "HEAD")
    assert Path("model.safetensors").read_bytes() == old
    assert mvc("status", "--json").json["branch"] == "main"
    mvc("undo", 3)
    mvc("checkout", "-f", "HEAD")
    assert Path("model.safetensors").read_bytes() == new


def test_the_advice_names_the_moment_where_there_are_two(mvc) -> None:
    mvc.write(1)
    mvc("commit", "model.safetensors", "--deploy", "prod")
    mvc("deploy", "HEAD", "prod")
    advice = next(line for line in mvc("undo", 1).err.splitlines() if "to retract it" in line)
    mvc(*advice.partition(": mvc ")[2].split())
    found = mvc("deployments", "--json").json["deployments"]
    assert [(d["sequence"], d["retracted"]) for d in found] == [(2, False), (1, True)]


@pytest.mark.parametrize("command", [["oplog"], ["undo"]])
def test_neither_needs_arrays(mvc, command: list[str]) -> None:
    mvc.commit(1)
    script = (
        f"import sys; from mvc.cli.main import run; code = run(['-q', *{command!r}]); "
        "print(code, [m for m in ('torch', 'numpy', 'rich') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=mvc.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stderr == "0 []\n"
