"""Every command line that a page shows names a command, and options, that there are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest

from mvc.cli.program import program
from mvc.errors import WrongUsage
from tests.documents.pages import PAGES, ROOT, blocks

_END = {"|", "||", "&&", "&", ";", ">", ">>", "2>"}


def command_lines(page: Path) -> Iterator[list[str]]:
    """The words of each; those of a synopsis, with its brackets and choices, are left out."""
    before = ""
    for language, text in blocks(page.read_text(encoding="utf-8")):
        printed, before = before == "python" and not text.startswith("$ "), language
        if language not in {"", "sh"} or printed:
            continue
        for line in re.sub(r"\\\n\s*", " ", text).splitlines():
            shown = line.removeprefix("$ ").strip()
            if not shown.startswith("mvc ") or re.search(r"[\[\]]|\.\.\.", shown):
                continue
            words = shlex.split(shown, comments=True)
            ends = [i for i, word in enumerate(words) if word in _END or word.endswith(";")]
            yield words[1 : min(ends, default=len(words))]


def parse(words: list[str]) -> None:
    """Raises click's errors for what is not there; values may be wrong."""
    with click.Context(program, **program.context_settings) as context:
        context.allow_interspersed_args = False
        _, rest, _ = program.make_parser(context).parse_args(list(words))
        if not rest:
            return
        name, command, rest = program.resolve_command(context, rest)
        assert command is not None
        with suppress(click.BadParameter, click.exceptions.Exit):
            command.make_context(name, rest, parent=context).close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_shows_can_be_called(page: Path) -> None:
    wrong = []
    for words in command_lines(page):
        try:
            parse(words)
        except (click.UsageError, WrongUsage) as error:
            wrong.append(f"mvc {' '.join(words)}: {error}")
    assert not wrong


def test_what_is_not_there_is_found() -> None:
    parse(["-C", "x", "log", "-5", "--oneline"])
    for words in (["log", "--online"], ["lug"], ["-X"]):
        with pytest.raises((click.UsageError, WrongUsage)):
            parse(words)
