"""Writes what ``docs/commands.md`` has in common with the program.

``python -m tests.documents.tables`` writes it into the page: the tables of commands and of global
options, and a section for each topic of ``mvc help``. The options of a command are said by its
``--help`` alone.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

import click

from mvc.cli.catalog import SECTIONS
from mvc.cli.program import program
from mvc.cli.topics import TOPICS, Topic

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
_OPTIONS = "| option | meaning |"
_COMMANDS = "| command | what it does |"


def rendered() -> str:
    """The page with the tables and topics that the program has now."""
    text = _with_table(PAGE.read_text(encoding="utf-8"), _COMMANDS, _command_rows())
    with click.Context(program, **program.context_settings) as context:
        text = _with_table(text, _OPTIONS, option_rows(program.get_params(context)))
    for topic in TOPICS.values():
        text = _with_topic(text, topic)
    return text


def _with_topic(text: str, topic: Topic) -> str:
    """The text with the section of this topic."""
    before, found, after = text.partition(f"\n## {topic.title}\n")
    assert found, f"the page lacks the section {topic.title!r}"
    rest = after[after.index("\n## ") :] if "\n## " in after else ""
    rows = [
        f"| {', '.join(f'`{_cell(form)}`' for form in forms.split(', '))} | {_cell(meaning)} |"
        for forms, meaning in topic.forms.items()
    ]
    table = "\n".join(["| form | meaning |", "|---|---|", *rows])
    notes = [textwrap.fill(note, 118, break_on_hyphens=False) for note in topic.notes]
    return before + found + "\n" + "\n\n".join([table, *notes]) + "\n" + rest


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


def option_rows(parameters: Sequence[click.Parameter]) -> list[str]:
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
