"""A command or an option that went is refused in one line that names what takes its place."""

from __future__ import annotations

import pytest

from mvc.cli import gone
from mvc.cli.program import COMMANDS
from tests.cli.program import Mvc


@pytest.mark.parametrize("command", gone.COMMANDS)
def test_a_command_that_went(mvc: Mvc, command: str) -> None:
    assert command not in COMMANDS
    err = mvc(command, code=2).err
    assert err == f"mvc: the command {command} is gone: {gone.COMMANDS[command]}\n"


@pytest.mark.parametrize("words", gone.OPTIONS)
def test_an_option_that_went(mvc: Mvc, words: str) -> None:
    command, option = words.split()
    err = mvc(command, option, code=2).err
    hint = f"hint: see 'mvc {command} --help'"
    assert err.splitlines() == [f"mvc: {option} is gone: {gone.OPTIONS[words]}", hint]


@pytest.mark.parametrize("option", gone.GLOBAL)
def test_an_option_of_all_commands_that_went(mvc: Mvc, option: str) -> None:
    for words in ((option, "x", "log"), ("log", option, "x")):
        assert f"mvc: {option} is gone: {gone.GLOBAL[option]}\n" in mvc(*words, code=2).err
