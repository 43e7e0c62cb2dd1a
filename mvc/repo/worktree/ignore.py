"""Matches paths against ``.mvcignore``, in the syntax and with the results of gitignore(5).

A pattern is matched one path part at a time. Within a part, a regular expression never
backtracks behind a ``*`` that it has matched, so that no pattern is slow. Patterns and paths are
compared in Unicode form NFC. The last matching pattern decides. Whoever walks a tree skips ignored
folders, so that no path inside one can be included again.
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
_CLASS = re.compile(r"\[:([a-z]*):\]")


class _Malformed(Exception):
    """A pattern that matches nothing: it ends with a backslash, or a bracket is not closed."""


class _Rule(Struct, frozen=True):
    """``parts`` match path parts below ``base``; None stands for ``**``."""

    base: tuple[str, ...]
    parts: tuple[re.Pattern[str] | None, ...]
    negated: bool
    folders_only: bool

    def matches(self, path: Sequence[str], is_dir: bool) -> bool:
        """``**`` matches any number of path parts, at the end at least one."""
        if (self.folders_only and not is_dir) or path[: len(self.base)] != self.base:
            return False
        pattern, path = self.parts, path[len(self.base) :]
        at = here = 0
        star = restart = -1
        while here < len(path):
            wanted = pattern[at] if at < len(pattern) else None
            if at < len(pattern) and wanted is None:
                if at == len(pattern) - 1:
                    return True
                star, restart = at, here
                at += 1
            elif wanted is not None and wanted.fullmatch(path[here]):
                at, here = at + 1, here + 1
            elif star >= 0:
                restart += 1
                at, here = star + 1, restart
            else:
                return False
        return at == len(pattern)


class Ignore:
    """The rules of one or several ignore files.

    >>> Ignore(["*.tmp", "!keep.tmp", "logs/"]).match("a/b.tmp")
    True
    """

    def __init__(self, lines: Iterable[str] = (), base: str = "") -> None:
        """``base``: the folder the file lies in, relative and with '/' between its parts."""
        folder = tuple(unicodedata.normalize("NFC", base).split("/")) if base else ()
        self._rules = tuple(r for r in (_rule(line, folder) for line in lines) if r is not None)

    def within(self, base: str, lines: Iterable[str]) -> Ignore:
        """These rules, then those of a further file in the folder ``base``."""
        more = Ignore(lines, base)
        more._rules = self._rules + more._rules
        return more

    def match(self, path: str, is_dir: bool = False) -> bool:
        """Whether ``path`` (relative, '/' between parts) is ignored, if no folder above it is."""
        parts = tuple(unicodedata.normalize("NFC", path).split("/"))
        for rule in reversed(self._rules):
            if rule.matches(parts, is_dir):
                return not rule.negated
        return False


def _rule(line: str, base: tuple[str, ...]) -> _Rule | None:
    """The rule of one line; None for a comment, an empty or a malformed line."""
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
    # A slash after a backslash separates like any other; more than two stars mean ``**``.
    names = text.removeprefix("/").split("/")
    names = [name[:-1] if _escapes(name) else name for name in names[:-1]] + names[-1:]
    try:
        if "/" in text:
            parts = [None if len(n) > 1 and not n.strip("*") else _compile(n) for n in names]
        else:
            parts = [None, _compile(text)]
    except _Malformed:
        return None
    return _Rule(base, tuple(parts), negated, folders_only)


def _escapes(text: str) -> bool:
    """Whether the backslashes at the end escape what follows: their number is odd."""
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


def _compile(glob: str) -> re.Pattern[str]:
    """A pattern for one part of a path: ``*``, ``?``, ``[...]`` and backslash."""
    runs: list[list[str]] = [[]]  # between stars
    at = 0
    while at < len(glob):
        char = glob[at]
        at += 1
        if char == "*":
            runs.append([])
        elif char == "?":
            runs[-1].append(".")
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
    # The text after a star is matched at its first place: a later place never helps.
    middle = "".join(f"(?>.*?{run})" for run in rest[:-1] if run)
    last = f".*{rest[-1]}" if rest else ""
    return re.compile(first + middle + last, re.DOTALL)


def _bracket(glob: str, at: int) -> tuple[str, int]:
    """A set such as ``[!a-z]``, whose '[' has been read; (expression, position after it)."""
    negated = glob[at : at + 1] in {"!", "^"}
    at += negated
    items: list[str] = []
    first = True
    while first or glob[at : at + 1] != "]":
        first = False
        if found := _CLASS.match(glob, at):
            if found[1] not in _CLASSES:
                raise _Malformed
            items.append(_CLASSES[found[1]])
            at = found.end()
            continue
        low, at = _member(glob, at)
        high = low
        if glob[at : at + 1] == "-" and glob[at + 1 : at + 2] not in {"]", ""}:
            high, at = _member(glob, at + 1)
        if low <= high:
            items.append(f"{re.escape(low)}-{re.escape(high)}")
    if not items:
        return (".", at + 1) if negated else ("(?!)", at + 1)
    return f"[{'^' if negated else ''}{''.join(items)}]", at + 1


def _member(glob: str, at: int) -> tuple[str, int]:
    """One character of a set, escaped or not."""
    if glob[at : at + 1] == "\\":
        at += 1
    if at >= len(glob):
        raise _Malformed
    return glob[at], at + 1
