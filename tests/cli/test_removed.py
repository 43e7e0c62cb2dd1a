"""A command or an option that went is refused in one line that names what takes its place."""

from __future__ import annotations

import pytest

from mvc.cli.catalog import COMMANDS, REMOVED, REMOVED_EVERYWHERE, REMOVED_OPTIONS
from tests.cli.program import Mvc


@pytest.mark.parametrize("command", REMOVED)
def test_a_command_that_went(mvc: Mvc, command: str) -> None:
    assert command not in COMMANDS
    err = mvc(command, code=2).err
    assert err == f"mvc: the command {command} was removed: {REMOVED[command]}\n"


@pytest.mark.parametrize("words", REMOVED_OPTIONS)
def test_an_option_that_went(mvc: Mvc, words: str) -> None:
    command, option = words.split()
    err = mvc(command, option, code=2).err
    hint = f"hint: see 'mvc {command} --help'"
    assert err.splitlines() == [f"mvc: {option} was removed: {REMOVED_OPTIONS[words]}", hint]


@pytest.mark.parametrize("option", REMOVED_EVERYWHERE)
def test_an_option_of_all_commands_that_went(mvc: Mvc, option: str) -> None:
    for words in ((option, "x", "log"), ("log", option, "x")):
        assert (
            f"mvc: {option} was removed: {REMOVED_EVERYWHERE[option]}\n" in mvc(*words, code=2).err
        )
