"""Writes the tables of ``docs/commands.md`` that say what the commands' definitions say.

``python -m tests.documents.tables`` writes them into the page: the commands, and the global
options. The options of a command are said by its ``--help`` alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import click

from mvc.cli.program import SECTIONS, program

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
_OPTIONS = "| option | meaning |"
_COMMANDS = "| command | what it does |"


def rendered() -> str:
    """The page with the tables that the commands have now."""
    text = _with_table(PAGE.read_text(encoding="utf-8"), _COMMANDS, _command_rows())
    with click.Context(program, **program.context_settings) as context:
        return _with_table(text, _OPTIONS, _option_rows(program.get_params(context)))


def _with_table(text: str, header: str, rows: list[str]) -> str:
    """The text with these rows below the first table of this header."""
    before, found, after = text.partition(header + "\n")
    assert found, f"the page lacks the table {header!r}"
    rest = re.sub(r"\A(\|.*\n)+", "", after)
    return before + "\n".join([header, "|---|---|", *rows]) + "\n" + rest


def _command_rows() -> list[str]:
    rows = []
    for section, commands in SECTIONS.items():
        rows.append(f"| **{section}** | |")
        rows += [f"| [{name}](commands/{name}.md) | {line} |" for name, line in commands.items()]
    return rows


def _option_rows(parameters: Sequence[click.Parameter]) -> list[str]:
    return [
        f"| {_names(option)} | {_cell(option.help or '')} |"
        for option in parameters
        if isinstance(option, click.Option) and not option.hidden
    ]


def _names(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    if option.secondary_opts:
        names += " / " + ", ".join(f"`{name}`" for name in option.secondary_opts)
    if option.is_flag or option.count:
        return names
    if option.metavar is None:
        assert isinstance(option.type, click.Choice), f"{option.name} needs a metavar"
        return f"{names} `{_cell('|'.join(option.type.choices))}`"
    return f"{names} `{_cell(option.metavar)}`"


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")
