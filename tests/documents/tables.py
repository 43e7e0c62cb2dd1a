"""Writes the tables of the documentation that say what the commands' definitions say.

``python -m tests.documents.tables`` writes them into the pages: the options of each command into
``docs/commands``, the commands and the global options into ``docs/commands.md``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import click

from mvc.cli.program import COMMANDS, SECTIONS, module_of, program

DOCS = Path(__file__).parents[2] / "docs"
_OPTIONS = "| option | meaning |"
_COMMANDS = "| command | what it does |"


def rendered(page: Path) -> str:
    """The page with the tables that its command has now."""
    text = page.read_text(encoding="utf-8")
    if page == DOCS / "commands.md":
        text = _with_table(text, _COMMANDS, _command_rows())
        with click.Context(program, **program.context_settings) as context:
            return _with_table(text, _OPTIONS, _option_rows(program.get_params(context)))
    command = import_module(module_of(page.stem)).command
    rows = [row for row in _option_rows(command.params) if not row.startswith("| `--json` |")]
    if not rows:  # --json is explained once, in commands.md
        assert _OPTIONS not in text, f"{page.name} lists options that the command lacks"
        return text
    return _with_table(text, _OPTIONS, rows)


def pages() -> list[Path]:
    return [DOCS / "commands.md", *(DOCS / "commands" / f"{name}.md" for name in COMMANDS)]


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
    for path in pages():
        path.write_text(rendered(path), encoding="utf-8")
