"""Matches paths against ``.mvcignore``, with the syntax and semantics of gitignore(5).

The last matching pattern decides. Each pattern is compiled to a regular expression that is fast for
every path, because a matched ``*`` or ``**`` is never tried again. Patterns and paths are compared
in Unicode form NFC. As in git, callers do not look into ignored folders.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from msgspec import Struct

IGNORE_FILE = ".mvcignore"

_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": r"\x21-\x7e",
    "lower": "a-z",
    "print": r"\x20-\x7e",
    "punct": r"!-/:-@\[-`{-~",
    "space": r" \t\n\r\f\v",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}
_NOTHING = "(?!)"  # matches nothing
_NAMES = "(?:[^/]++/)*"  # any number of folders
_CLASS = re.compile(r"\[:([a-z]*):\]")


class _Malformed(Exception):
    """A pattern that matches nothing: a backslash is at its end, or a bracket is not closed."""


class _Rule(Struct, frozen=True):
    pattern: re.Pattern[str]
    negated: bool
    folders_only: bool


class Ignore:
    """The rules of one or several ignore files.

    >>> Ignore(["*.tmp", "!keep.tmp", "logs/"]).match("a/b.tmp")
    True
    """

    def __init__(self, lines: Iterable[str] = (), base: str = "") -> None:
        """``base``: the folder of the file, relative, with '/' between its parts."""
        folder = unicodedata.normalize("NFC", base) + "/" if base else ""
        self._rules = tuple(r for r in (_rule(line, folder) for line in lines) if r is not None)

    def within(self, base: str, lines: Iterable[str]) -> Ignore:
        """These rules, followed by the rules of another ignore file in the folder ``base``."""
        more = Ignore(lines, base)
        more._rules = self._rules + more._rules
        return more

    def match(self, path: str, is_dir: bool = False) -> bool:
        """Whether ``path`` (relative, with '/' between its parts) is ignored.

        The caller has checked that no folder above ``path`` is ignored.
        """
        name = unicodedata.normalize("NFC", path)
        rules = (rule for rule in reversed(self._rules) if is_dir or not rule.folders_only)
        return next((not rule.negated for rule in rules if rule.pattern.fullmatch(name)), False)


def _rule(line: str, base: str) -> _Rule | None:
    """The rule of one line. None if the line is a comment, empty or malformed."""
    text = unicodedata.normalize("NFC", line.rstrip("\r\n"))
    while text.endswith(" ") and not _escapes(text[:-1]):
        text = text[:-1]
    if not text or text.startswith("#"):
        return None
    negated = text.startswith("!")
    text = text[1:] if negated else text
    folders_only = text.endswith("/")
    text = text[:-1] if folders_only else text
    if not text:
        return None
    # A slash after a backslash is a separator, too.
    names = text.removeprefix("/").split("/")
    names = [name[:-1] if _escapes(name) else name for name in names[:-1]] + names[-1:]
    if "/" not in text:
        names = ["**", *names]
    try:
        pattern = re.compile(re.escape(base) + _path(names), re.DOTALL)
    except _Malformed:
        return None
    return _Rule(pattern, negated, folders_only)


def _path(names: Sequence[str]) -> str:
    """The regular expression for a path. Two or more stars match any number of names. At the end of
    the path, they match at least one name.
    """
    runs: list[list[str]] = [[]]  # names between ``**``
    for name in names:
        if len(name) > 1 and not name.strip("*"):
            runs.append([])
        else:
            runs[-1].append(_name(name) or _NOTHING)
    first, *rest = ("/".join(run) for run in runs)
    if not rest:
        return first
    # The names after ``**`` are matched at the first possible place: a later place never helps.
    middle = "".join(f"(?>{_NAMES}?{run}/)" for run in rest[:-1] if run)
    last = _NAMES + rest[-1] if rest[-1] else ".+"
    return (first and first + "/") + middle + last


def _escapes(text: str) -> bool:
    """Whether the last backslash escapes the next character: the number of backslashes is odd."""
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


def _name(glob: str) -> str:
    """The regular expression for one name, with ``*``, ``?``, ``[...]`` and backslash."""
    runs: list[list[str]] = [[]]  # parts between stars
    at = 0
    while at < len(glob):
        char = glob[at]
        at += 1
        if char == "*":
            runs.append([])
        elif char == "?":
            runs[-1].append("[^/]")
        elif char == "[":
            text, at = _bracket(glob, at)
            runs[-1].append(text)
        elif char == "\\":
            if at == len(glob):
                raise _Malformed
            runs[-1].append(re.escape(glob[at]))
            at += 1
        else:
            runs[-1].append(re.escape(char))
    first, *rest = ("".join(run) for run in runs)
    # The text after a star is matched at the first possible place: a later place never helps.
    middle = "".join(f"(?>[^/]*?{run})" for run in rest[:-1] if run)
    last = f"[^/]*{rest[-1]}" if rest else ""
    return first + middle + last


def _bracket(glob: str, at: int) -> tuple[str, int]:
    """The expression for a set such as ``[!a-z]``, and the position after the set.

    ``at``: the position after the '['.
    """
    negated = glob[at : at + 1] in {"!", "^"}
    at += negated
    items: list[str] = []
    first = True
    while first or glob[at : at + 1] != "]":
        first = False
        if named_class := _CLASS.match(glob, at):
            if named_class[1] not in _CLASSES:
                raise _Malformed
            items.append(_CLASSES[named_class[1]])
            at = named_class.end()
            continue
        low, at = _member(glob, at)
        high = low
        if glob[at : at + 1] == "-" and glob[at + 1 : at + 2] not in {"]", ""}:
            high, at = _member(glob, at + 1)
        if low <= high:
            items.append(f"{re.escape(low)}-{re.escape(high)}")
    if not items:
        return ("[^/]", at + 1) if negated else (_NOTHING, at + 1)
    return f"(?!/)[{'^' if negated else ''}{''.join(items)}]", at + 1


def _member(glob: str, at: int) -> tuple[str, int]:
    """One character of a set, escaped or not."""
    if glob[at : at + 1] == "\\":
        at += 1
    if at >= len(glob):
        raise _Malformed
    return glob[at], at + 1
