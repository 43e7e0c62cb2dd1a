from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mvc.cli.main import run
from tests.cli.program import Mvc
from tests.repo.test_sharing import USUAL, modes, umask


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


def test_tokens_stay_private(mvc: Mvc) -> None:
    with umask(USUAL):
        mvc("init", "--bare", "--shared=group", "shared")
        mvc("-C", "shared", "serve", "token", "add", "me", "--scope", "read")
    assert modes(mvc.folder / "shared")["tokens"] == 0o600


def test_a_repository_of_a_group(mvc: Mvc) -> None:
    with umask(USUAL):
        mvc("init", "team", "--shared")
        mvc("init", "--shared=all", "--bare", "open")
    assert modes(mvc.folder / "team")["."] == 0o2775
    assert modes(mvc.folder / "open")["."] == 0o2775
    assert "'world' is not one of 'group', 'all'" in mvc("init", "--shared=world", "x", code=2).err
