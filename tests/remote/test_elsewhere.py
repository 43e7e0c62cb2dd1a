"""Maintenance of a remote: in a folder, behind ssh, and where only its owner can."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.cli.main import run
from tests.remote.kit import ssh


@pytest.fixture
def ada(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    Repository.init(tmp_path / "server", bare=True).close()
    repo = Repository.init(tmp_path / "ada")
    for name, value in ssh.install(tmp_path / "kit").items():
        monkeypatch.setenv(name, value)
    repo.remotes.add("folder", tmp_path / "server")
    repo.remotes.add("far", f"ssh://host{tmp_path}/server")
    repo.remotes.add("web", "https://host/server")
    for value in (1, 2):
        repo.commit({"w": np.full((64, 64), value, np.float32)})
    repo.push("folder")
    monkeypatch.chdir(repo.root)
    return repo


def test_a_version_is_forgotten_and_collected_there(
    ada: Repository, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = ada.find("HEAD~1")
    assert run(["forget", "--remote", "folder", "-f", str(first)]) == 0
    assert run(["gc", "--remote=far", "-q", "--grace", "0"]) == 0
    capfd.readouterr()
    assert run(["fsck", "--full", "--json", "--remote", "far"]) == 0
    assert json.loads(capfd.readouterr().out)["forgotten"] == 1
    with Repository.open(tmp_path / "server") as server:
        assert [s.gone_ns is not None for r in server.storage.receipts() for s in r.states] == [
            True
        ]
    assert ada.storage.receipts() == []


def test_behind_https_its_owner_does_it(
    ada: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["gc", "--remote", "web"]) == 3
    assert "maintained by its owner" in capsys.readouterr().err


def test_what_is_wrong_there_is_its_exit_code(
    ada: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["forget", "--remote", "far", "nothing", "-f"]) == 3
    assert run(["gc", "--remote", "nowhere"]) == 3
    assert "no remote nowhere" in capsys.readouterr().err


def test_a_checkout_reaches_a_named_remote_by_its_options(
    ada: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout = ["checkout", "--target", "prod", "--at", "now", "-o", "w.safetensors"]
    ada.deploy("HEAD", "prod")
    ada.push("far")
    assert run([*checkout, "--remote", "far"]) == 0
    ada.remotes.add("far", ada.remotes.find("far").url, force=True, program="/no/such/mvc")
    assert run([*checkout, "-f", "--remote", "far"]) != 0
    assert "/no/such/mvc" in capsys.readouterr().err
