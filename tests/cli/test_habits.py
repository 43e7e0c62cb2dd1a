"""Commands and options that users of git type: each works, or a hint names what to use."""

from __future__ import annotations

import pytest

from mvc.cli.catalog import COMMANDS, ELSEWHERE, OPTIONS_ELSEWHERE
from tests.cli.program import Mvc


@pytest.mark.parametrize("command", ELSEWHERE)
def test_a_command_of_git(mvc: Mvc, command: str) -> None:
    assert command not in COMMANDS
    lines = mvc(command, code=2).err.splitlines()
    assert lines == [f"mvc: there is no command {command!r}", f"hint: {ELSEWHERE[command]}"]


@pytest.mark.parametrize("words", OPTIONS_ELSEWHERE)
def test_an_option_of_git(mvc: Mvc, words: str) -> None:
    lines = mvc(*words.split(), code=2).err.splitlines()
    assert lines[1] == f"hint: {OPTIONS_ELSEWHERE[words]}"


def test_a_number_of_the_reflog_is_no_time(mvc: Mvc) -> None:
    mvc.commit(1.0)
    mvc("deploy", "HEAD", "prod")
    for rev, back in (("prod@{1}", "prod~1"), ("HEAD@{12}", "HEAD~12")):
        lines = mvc("diff", rev, "HEAD", code=3).err.splitlines()
        assert "@{...} needs a time" in lines[0] and back in lines[1]
    mvc("show", "HEAD@{now}")


def test_nothing_was_committed_yet(mvc: Mvc) -> None:
    assert "nothing was committed yet" in mvc("checkout", "model.safetensors", code=3).err
    assert "'mvc deploy REV TARGET' records" in mvc("live", "prod", code=3).err


def test_the_branch_of_head(mvc: Mvc) -> None:
    mvc.commit(1.0)
    assert mvc("switch", "main").err.splitlines()[-1] == "Already on main"
    assert "Switched to new branch side" in mvc("switch", "-c", "side").err


def test_swapped_letters(mvc: Mvc) -> None:
    assert "did you mean 'status'?" in mvc("statsu", code=2).err


def test_version(mvc: Mvc) -> None:
    assert mvc("version").out == mvc("--version").out
