"""``mvc follow`` as a program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return Repository.init(tmp_path / "remote", bare=True)


def commit(repo: Repository, step: int) -> str:
    state = {"w": np.arange(2000, dtype=np.float32) + step}
    return str(repo.commit(state, message=str(step), deploy="prod").id)


def program(*words: object, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mvc", "follow", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_follows_until_a_signal_ends_it(
    repo: Repository, tmp_path: Path, number: int, code: int
) -> None:
    file = tmp_path / "model.safetensors"
    first = commit(repo, 1)
    running = program(repo.root, "prod", "-o", file, "--json")
    try:
        assert running.stdout is not None
        assert json.loads(running.stdout.readline())["commit"] == first
        second = commit(repo, 2)
        done = json.loads(running.stdout.readline())
        assert (done["commit"], done["previous"]) == (second, first)
        assert done["schema"] == "mvc.follow/1" and done["file"] == str(file)
    finally:
        running.send_signal(number)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == code
    assert "Traceback" not in errors


def test_once_says_what_it_did(repo: Repository, tmp_path: Path) -> None:
    version = commit(repo, 1)
    words = repo.root, "prod", "-o", "model.safetensors", "--once"
    out, errors = (done := program(*words, cwd=tmp_path)).communicate(timeout=60)
    assert (done.returncode, errors) == (0, "") and version[:10] in out and "B received" in out
    out, errors = (done := program(*words, cwd=tmp_path)).communicate(timeout=60)
    assert (done.returncode, out) == (0, "") and "is in sync with prod" in errors
    assert os.stat(tmp_path / "model.safetensors").st_size > 8000


def test_errors_have_their_codes(repo: Repository, tmp_path: Path) -> None:
    commit(repo, 1)
    for words, code, said in (
        ((repo.root, "beta", "-o", "a.st"), 3, "beta"),
        ((tmp_path / "nowhere", "prod", "-o", "a.st"), 3, "there is no folder"),
        (("nowhere", "prod", "-o", "a.st"), 3, "not as the name of a remote"),
        ((repo.root, "prod", "-o", "no/a.st"), 3, "the folder no does not exist"),
        ((repo.root, "prod", "-o", "a.st", "--path", "b", "--path", "c"), 2, "too many for a.st"),
        ((repo.root, "prod"), 2, "-o"),
        ((repo.root, "prod", "-o", "a.st", "--interval", "0"), 2, "interval"),
        ((repo.root, "prod", "-o", "a.st", "--as", "a/b"), 3, "a/b"),
    ):
        done = program(*words, "--once", cwd=tmp_path)
        out, errors = done.communicate(timeout=60)
        assert (done.returncode, out) == (code, ""), errors
        assert said in errors and "Traceback" not in errors
