"""Writes the parts of ``docs/commands.md`` that come from the program.

``python -m tests.documents.tables`` writes the lists of commands and of global options, and the
sections of the topics of ``mvc help`` that no other page explains.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import click

from mvc.cli.catalog import SECTIONS
from mvc.cli.program import program
from mvc.cli.topics import TOPICS, Topic

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
_TOPICS = ("exit-codes", "revisions", "times", "targets")
_OPTIONS, _COMMANDS = "## Global options\n\n", "# The command line\n\n"


def rendered() -> str:
    """The page with the lists and topics that the program has now."""
    text = _with_list(PAGE.read_text(encoding="utf-8"), _COMMANDS, _commands())
    with click.Context(program, **program.context_settings) as context:
        records = [p.get_help_record(context) for p in program.get_params(context)]
    options = [f"- `{record[0]}`: {record[1]}" for record in records if record]
    text = _with_list(text, _OPTIONS, options)
    for name in _TOPICS:
        text = _with_topic(text, TOPICS[name])
    return text


def _with_topic(text: str, topic: Topic) -> str:
    """The text with the section of this topic."""
    before, heading, after = text.partition(f"\n## {topic.title}\n")
    assert heading, f"the page lacks the section {topic.title!r}"
    rest = after[after.index("\n## ") :] if "\n## " in after else ""
    rows = [
        f"- {', '.join(f'`{form}`' for form in forms.split(', '))}: {meaning}"
        for forms, meaning in topic.forms.items()
    ]
    notes = [textwrap.fill(note, 118, break_on_hyphens=False) for note in topic.notes]
    return before + heading + "\n" + "\n\n".join(["\n".join(rows), *notes]) + "\n" + rest


def _with_list(text: str, heading: str, rows: list[str]) -> str:
    """The text with this list below the heading."""
    before, heading, after = text.partition(heading)
    assert heading, "the page lacks a heading"
    rest = re.sub(r"\A(-.*\n)+", "", after)
    return before + heading + "\n".join(rows) + "\n" + rest


def _commands() -> list[str]:
    """As ``mvc --help``: daily commands with their first lines, and the names of all other ones."""
    (_, daily), *sections = SECTIONS.items()
    rows = [f"- {_link(name)}: {line}" for name, line in daily.items()]
    return rows + [f"- {title}: {', '.join(map(_link, names))}" for title, names in sections]


def _link(name: str) -> str:
    return f"[{name}](commands/{name}.md)"


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")
