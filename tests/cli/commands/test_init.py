from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mvc.cli.main import run


def test_makes_a_repository_and_says_where(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["init", "new/models", "-b", "trunk"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"Initialized empty mvc repository in {tmp_path}/new/models/.mvc\n"
    assert (tmp_path / "new/models/.mvc/journal").exists()
    assert run(["-C", "new/models", "status"]) == 0
    assert capsys.readouterr().out.startswith("On branch trunk\nNo commits yet\n")


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
    }


def test_twice_is_refused(mvc) -> None:
    result = mvc("init", code=3)
    assert result.err.startswith("mvc: there is a repository already")


def test_bad_branch_name_leaves_nothing(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["init", "-b", "a..b"]) == 3
    assert not (tmp_path / ".mvc").exists()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_leaves_the_repository_alone(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    assert run(["init"]) == 0
    assert (tmp_path / ".mvc/.gitignore").read_text() == "*\n"
    found = subprocess.run(["git", "status", "--porcelain"], check=True, capture_output=True)
    assert found.stdout == b""
