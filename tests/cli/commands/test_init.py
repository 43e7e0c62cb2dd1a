from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mvc.cli.main import run


def test_branch_of_the_users_settings(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MVC_INIT_BRANCH", "stem")
    assert run(["init", "--json"]) == 0
    import json

    found = json.loads(capsys.readouterr().out)
    assert found == {
        "schema": "mvc.init/1",
        "path": str(tmp_path / ".mvc"),
        "branch": "stem",
        "bare": False,
    }


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_leaves_the_repository_alone(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    assert run(["init"]) == 0
    assert (tmp_path / ".mvc/.gitignore").read_text() == "*\n"
    found = subprocess.run(["git", "status", "--porcelain"], check=True, capture_output=True)
    assert found.stdout == b""
