"""Writes the reference pages of the commands, ``docs/commands/NAME.md``.

``python -m tests.documents.commands [NAME]...`` takes title, usage, text, arguments and options
from the command, fields of JSON from recorded answers, their meanings from ``fields.md``, and the
rest from ``notes.md`` in this folder: sections, links and examples. The first uses of the terms
of ``docs/commands.md#words`` are links. The lines of a block ``run`` are those of a scene of
``tests.cli.screens``; the page shows the ones that begin with ``$``, with what they print.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from mvc.cli.catalog import COMMANDS, module_of
from mvc.cli.program import program
from mvc.cli.verb import Verb
from tests.cli import screens
from tests.cli.screens import Scene
from tests.documents.pages import ROOT

FOLDER = ROOT / "docs" / "commands"
_NOTES = Path(__file__).with_name("notes.md")
_MEANINGS = Path(__file__).with_name("fields.md")
_TERM = re.compile(
    r"```.*?^```|`[^`]*`|\w+\([^)]*\)|\[[^]]*\]\([^)]*\)|^#.*?$|"  # code, links, headings stay
    r"\b(state|absent|forgotten|dropped|purged|target|reset point|recovery time|"
    r"production weights)(s?)\b(?![=(])",
    re.M | re.S,
)
_PARAGRAPH = re.compile(r"^```.*?^```|^((?:(?!\||#|- |```)[^\n]+(?:\n|\Z))+)", re.M | re.S)
_RECORDED = [ROOT / "tests/cli/json_outputs.txt", *sorted((ROOT / "tests/cli/screens").glob("*"))]
_RUN = re.compile(r"^```run\n(.*?)^```$", re.M | re.S)
_BLOCK = re.compile(r"\n(\n```[^`]*?^```\n)(?:\n(?!#))?", re.M)
_OBJECT = re.compile(r'^schema: "(mvc[^"]+)"\n((?:\w+: .*\n)*)', re.M)
_MOST_FIELDS = 6
_OF_COMMIT = "the fields of [a version](../commands.md#a-commit-in-json)"
_TIMES = {
    10: "2026-11-21",
    25: "2026-11-21T09:21:33+00:00",
}


def page(name: str) -> str:
    """The page of a command."""
    verb = import_module(module_of(name)).command
    assert isinstance(verb, Verb) and verb.help is not None
    line, _, text = verb.help.partition("\n\n")
    with click.Context(program, info_name="mvc") as parent:
        context = click.Context(verb, parent=parent, info_name=name)
        usage = verb.get_usage(context).removeprefix("Usage: ")
        records = [record for p in verb.params if (record := p.get_help_record(context))]
    records = [(names, text) for names, text in records if text and names != "--json"]
    options = [f"- `{names}`: {_code(text.partition('  [')[0])}" for names, text in records[:-1]]
    notes = _notes().get(name, "")
    printed = list[tuple[str, str]]()
    body = _RUN.sub(lambda block: _run(name, block[1], printed), notes)
    if "```" not in body:
        body = f"```\n$ {verb.example}\n```\n\n{body}".rstrip()
    parts = [
        f"# mvc {name}", _plain(f"`{' '.join(usage.split())}`: {line} {text}".strip()),
        "\n".join(options), body,
    ]  # fmt: skip
    parts = [*_linked(parts), _json(name, printed)]
    return _BLOCK.sub(r"\1", "\n\n".join(part for part in parts if part) + "\n")


def _linked(parts: list[str]) -> Iterator[str]:
    """The parts of a page; the first use of each term is a link. Help is wrapped afterwards."""
    linked = set[str]()

    def link(match: re.Match[str]) -> str:
        if match[1] is None or match[1] in linked:
            return match[0]
        linked.add(match[1])
        return f"[{match[1]}{match[2]}](../commands.md#words)"

    for number, part in enumerate(parts):
        text = _TERM.sub(link, part)
        yield _filled(text) if number == 1 else _PARAGRAPH.sub(_narrow, text)


def _narrow(match: re.Match[str]) -> str:
    """A paragraph of the notes, wrapped again if a link made a line longer than 120 columns."""
    text = match[0].rstrip("\n")
    wide = any(len(line) > 120 for line in text.splitlines())
    if match[1] is None or not wide or text.startswith("JSON: "):
        return match[0]
    return _wrapped(text) + match[0][len(text) :]


def _code(text: str) -> str:
    return re.sub(r"'((?:mvc|token|remote) [^']+)'", r"`\1`", text)


def _plain(text: str) -> str:
    """The text of a help as Markdown: commands and settings in code, formulas as blocks."""
    text = _code(text)
    text = re.sub(r"(?<![\w`-])(--?[a-zA-Z][a-z-]*)(?![\w`])", r"`\1`", text)
    return re.sub(r"(?<![\w`./'])([a-z]+\.[a-z]+_?[a-z_]*)(?![\w`.(/])", _setting, text)


def _filled(text: str) -> str:
    """Paragraphs in lines of 120 columns, never broken inside code."""
    return "\n\n".join(
        f"    {each.strip()}" if each.startswith("  ") else _wrapped(each)
        for each in re.split(r"\n\n+", text)
    )


def _wrapped(text: str) -> str:
    whole = re.sub(r"`[^`]*`", lambda code: re.sub(r"\s+", "\0", code[0]), text)
    return textwrap.fill(whole, 120, break_long_words=False, break_on_hyphens=False).replace(
        "\0", " "
    )


def _setting(found: re.Match[str]) -> str:
    from mvc.api import KEYS

    return f"`{found[1]}`" if found[1] in KEYS else found[1]


@cache
def _notes() -> dict[str, str]:
    """The notes of each command."""
    parts = re.split(r"^# (?=[a-z-]+$)", _NOTES.read_text(encoding="utf-8"), flags=re.M)[1:]
    return {name: text.strip() for name, _, text in (part.partition("\n") for part in parts)}


# -- examples ------------------------------------------------------------------------------------


class _Example(Scene):
    """A scene that prints plausible values of the same width in the place of those of this run."""

    def __init__(self, title: str, lines: list[str]) -> None:
        super().__init__(title, [line.removeprefix("$ ") for line in lines])
        self._visible = {line[2:] for line in lines if line.startswith("$ ")}

    def shown(self, folder: Path, printed: list[tuple[str, str]]) -> Iterator[str]:
        for entry in re.split(r"^(?=\$ )", self.played(folder), flags=re.M)[1:]:
            line, _, output = entry.partition("\n")
            printed += _OBJECT.findall(output)
            if line[2:] in self._visible:
                yield re.sub(r"^! |^\[\d+\]\n", "", f"{line}\n{output}", flags=re.M)

    def _steady(self, text: str) -> str:
        text = text.replace(str(Path.cwd()), "/home/ada/net").replace(
            str(Path.cwd().parent), "/home/ada"
        )
        if screens.SIZE_OF_RECORDS.search(text):
            text = screens.SHARE.sub(_digits, screens.SIZE.sub(_digits, text))
        text = screens.AGE.sub("(3 days ago)", screens.TIME.sub(_time, text))
        text = screens.DURATION.sub(_digits, text)
        return screens.ID.sub(self._number, text).rstrip()

    def _number(self, found: re.Match[str]) -> str:
        place = self._ids.index(found[0][:10])
        return sha256(f"{self.title} {place}".encode()).hexdigest()[: len(found[0])]


def _time(found: re.Match[str]) -> str:
    """A fixed time in the place of that of this run, with as many digits."""
    if screens.moment(found) != "<now>":
        return found[0]
    return _TIMES.get(len(found[0]), "2026-11-21T09:21:33.044013446+00:00")


def _digits(found: re.Match[str]) -> str:
    """Other digits, as many as there are."""
    digits = iter("2468135790")
    return re.sub(r"\d", lambda _: next(digits), found[0])


def _run(name: str, block: str, printed: list[tuple[str, str]]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        example = _Example(name, block.splitlines())
        return "```\n" + "".join(example.shown(Path(folder).resolve(), printed)) + "```"


# -- fields of JSON ------------------------------------------------------------------------------


@cache
def _recorded() -> list[tuple[str, str]]:
    """Schema and fields of each recorded answer."""
    return [m for file in _RECORDED for m in _OBJECT.findall(file.read_text(encoding="utf-8"))]


def _json(name: str, printed: list[tuple[str, str]]) -> str:
    """Schemas of the command, each with the fields of all its answers."""
    own = re.compile(rf"mvc\.{re.escape(name)}(\.\w+)?/\d+")
    schemas = dict[str, dict[str, Any]]()
    for schema, text in [*_recorded(), *printed]:
        if own.fullmatch(schema):
            fields = schemas.setdefault(schema, {})
            for key, _, value in (line.partition(": ") for line in text.splitlines()):
                fields[key] = fields.get(key) or json.loads(value)
    lines = [f"`{schema}`: {_listed(name, fields)}" for schema, fields in sorted(schemas.items())]
    return "JSON: " + "; ".join(lines) + "." if lines else ""


def _listed(name: str, fields: dict[str, Any]) -> str:
    commit, meanings = _fields_of_commits(), _meanings().get(name, {})
    keys = [key for key in fields if key not in commit or not commit <= {*fields}]
    named = [
        f"`{key}`" + (f" ({meanings[key]})" if key in meanings else _inner(fields[key], meanings))
        for key in keys
    ]
    return ", ".join([_OF_COMMIT] * (len(keys) < len(fields)) + named)


@cache
def _meanings() -> dict[str, dict[str, str]]:
    """By command and field, the meaning of fields whose names do not say it."""
    parts = re.split(r"^# ", _MEANINGS.read_text(encoding="utf-8"), flags=re.M)[1:]
    return {
        name: dict(re.findall(r"^- `(\w+)`: (.*)$", text, re.M))
        for names, _, text in (part.partition("\n") for part in parts)
        for name in names.split(", ")
    }


@cache
def _fields_of_commits() -> set[str]:
    text = next(text for schema, text in _recorded() if schema == "mvc.log/1")
    return {*json.loads(text.partition(": ")[2])[0]}


def _inner(value: Any, meanings: dict[str, str]) -> str:
    """The fields of the objects in a list, unless they are many."""
    first = value[0] if isinstance(value, list) and value else None
    if not isinstance(first, dict) or len(first) > _MOST_FIELDS:
        return ""
    named = [f"`{key}`" + (f": {meanings[key]}" if key in meanings else "") for key in first]
    return f" ({', '.join(named)})"


if __name__ == "__main__":
    for each in sys.argv[1:] or COMMANDS:
        (FOLDER / f"{each}.md").write_text(page(each), encoding="utf-8")
