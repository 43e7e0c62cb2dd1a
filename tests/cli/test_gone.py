"""A command or an option that went is refused in one line that names what takes its place."""

from __future__ import annotations

import pytest

from mvc.cli.catalog import COMMANDS, GONE, GONE_EVERYWHERE, GONE_OPTIONS
from tests.cli.program import Mvc


@pytest.mark.parametrize("command", GONE)
def test_a_command_that_went(mvc: Mvc, command: str) -> None:
    assert command not in COMMANDS
    err = mvc(command, code=2).err
    assert err == f"mvc: the command {command} is gone: {GONE[command]}\n"


@pytest.mark.parametrize("words", GONE_OPTIONS)
def test_an_option_that_went(mvc: Mvc, words: str) -> None:
    command, option = words.split()
    err = mvc(command, option, code=2).err
    hint = f"hint: see 'mvc {command} --help'"
    assert err.splitlines() == [f"mvc: {option} is gone: {GONE_OPTIONS[words]}", hint]


@pytest.mark.parametrize("option", GONE_EVERYWHERE)
def test_an_option_of_all_commands_that_went(mvc: Mvc, option: str) -> None:
    for words in ((option, "x", "log"), ("log", option, "x")):
        assert f"mvc: {option} is gone: {GONE_EVERYWHERE[option]}\n" in mvc(*words, code=2).err
