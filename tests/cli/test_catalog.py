from __future__ import annotations

from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

import mvc.cli.commands
from mvc.cli.catalog import COMMANDS, module_of
from mvc.cli.verb import Verb


@pytest.mark.parametrize("name", COMMANDS)
def test_command_agrees_with_its_line_in_the_table(name: str) -> None:
    command = import_module(module_of(name)).command
    assert isinstance(command, Verb)
    assert command.name == name
    assert command.help is not None
    assert command.help.splitlines()[0] == COMMANDS[name]
    assert command.example.startswith("mvc ")
    assert f"mvc {name}" in command.example


def test_every_module_is_in_the_table() -> None:
    folder = Path(mvc.cli.commands.__file__).parent
    found = {".".join(p.relative_to(folder).with_suffix("").parts) for p in folder.glob("*/*.py")}
    named = {module_of(name).removeprefix("mvc.cli.commands.") for name in COMMANDS}
    assert {each for each in found if not each.endswith("__init__")} == named


READING = [n for n in COMMANDS if n not in {"completion", "help", "switch"}]


@pytest.mark.parametrize("name", READING)
def test_takes_json(name: str) -> None:
    command = import_module(module_of(name)).command
    assert "--json" in {option for p in command.params for option in p.opts}


def test_options_and_arguments_are_counted() -> None:
    """Those that every command has, and ``--json``, do not count."""
    parameters = [p for name in COMMANDS for p in import_module(module_of(name)).command.params]
    counted = Counter(p.param_type_name for p in parameters if p.expose_value)
    assert counted["option"] <= 215 and counted["argument"] <= 55
