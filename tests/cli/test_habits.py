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


def test_version(mvc: Mvc) -> None:
    assert mvc("version").out == mvc("--version").out
