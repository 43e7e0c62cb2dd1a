"""Code that a version carries does not run until somebody says so: a trap proves it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import mvc
import mvc.recipes as recipes
from mvc.errors import NotTrusted
from tests.cli.program import Mvc
from tests.models.project import Project
from tests.models.whole import commit_model

TRAP = """
    import os
    from pathlib import Path
    from torch import nn

    if "TRAP_MARKER" in os.environ:
        Path(os.environ["TRAP_MARKER"]).touch()


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(2, 2)
"""


@pytest.fixture
def trapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> tuple[Mvc, Path]:
    """Two versions whose code leaves a mark when it runs, in the current folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    folder, marker = tmp_path / "work", tmp_path / "ran"
    project = Project(tmp_path / "project", monkeypatch)
    # Modules of equal code are one in a process: each test has code of its own.
    project.write({"trapped.py": TRAP + f"    # {tmp_path}\n"})
    net = project.load("trapped").Net()
    with mvc.Repository.init(folder) as repo:
        commit_model(repo, net, deploy="prod")
        nn.init.zeros_(net.line.bias)
        commit_model(repo, net, deploy="prod")
    project.forget()
    monkeypatch.setenv("TRAP_MARKER", str(marker))
    monkeypatch.chdir(folder)
    return Mvc(folder, capsys), marker


def test_no_command_runs_it(trapped: tuple[Mvc, Path]) -> None:
    program, marker = trapped
    for command in (
        ("log",), ("log", "--json"), ("log", "--graph"), ("show",), ("show", "-v"),
        ("show", "--code"), ("show", "--code", "--json"), ("ls",), ("diff", "HEAD~1", "HEAD"),
        ("diff", "--environment"), ("diff", "--environment", "HEAD~1", "HEAD"), ("stats",),
        ("report", "-o", "r.html"),
        ("fsck", "--full"), ("repack", "--interval", "1"), ("gc", "--grace", "0"),
        ("checkout", "HEAD~1"), ("checkout", "main"), ("checkout", "HEAD", "-o", "out/"),
        ("checkout", "--model", "HEAD", "-o", "whole"), ("show", "HEAD", "line.bias"),
        ("fsck", "--repair"), ("forget", "HEAD~1", "--force"), ("gc", "--grace", "0"),
    ):  # fmt: skip
        program(*command)
        assert not marker.exists(), command
    assert not any("trapped" in name for name in sys.modules)
    with mvc.Repository.open(program.folder) as repo:
        repo.checkout()
        mvc.load(repo, nn.ModuleDict({"line": nn.Linear(2, 2)}))
        assert (recipes.model(repo).call, *recipes.code(repo)) == (
            "trapped.Net()",
            "code/trapped.py",
        )
        recipes.environment(repo)
        assert not marker.exists()
        with pytest.raises(NotTrusted):
            mvc.load_model(repo)
        assert not marker.exists()
        mvc.load_model(repo, trust=True)
        assert marker.exists()


def test_no_other_command_has_the_option(trapped: tuple[Mvc, Path]) -> None:
    program, marker = trapped
    before = sorted(os.listdir(program.folder))
    program("checkout", "--model", "HEAD", "--trust-code", code=2)
    assert not marker.exists() and sorted(os.listdir(program.folder)) == before


def test_a_state_alone_is_loaded_without_code(repo: mvc.Repository) -> None:
    commit_model(repo, mvc.Architecture(nn.Linear(2, 2), {"in_features": 2, "out_features": 2}))
    assert torch.is_tensor(repo.checkout()["weight"])
