"""Matches paths against ``.mvcignore``, in the syntax and with the results of gitignore(5).

A pattern is matched one path part at a time. Within a part, a regular expression never
backtracks behind a ``*`` that it has matched, so that no pattern is slow. Invariant: the last
matching pattern decides, and no path inside an ignored folder can be included again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["IGNORE_FILE", "Ignore"]

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


@dataclass(frozen=True, slots=True)
class _Rule:
    """``parts`` match path parts below ``base``; None stands for ``**``."""

    base: tuple[str, ...]
    parts: tuple[re.Pattern[str] | None, ...]
    negated: bool
    folders_only: bool

    def matches(self, path: Sequence[str], is_dir: bool) -> bool:
        if (self.folders_only and not is_dir) or path[: len(self.base)] != self.base:
            return False
        return _match(self.parts, path[len(self.base) :])


class Ignore:
    """The rules of one or several ignore files.

    >>> Ignore(["*.tmp", "!keep.tmp", "logs/"]).match("a/b.tmp")
    True
    """

    def __init__(self, lines: Iterable[str] = (), base: str = "") -> None:
        """``base``: the folder the file lies in, relative and with '/' between its parts."""
        folder = tuple(base.split("/")) if base else ()
        self._rules = tuple(r for r in (_rule(line, folder) for line in lines) if r is not None)

    def within(self, base: str, lines: Iterable[str]) -> Ignore:
        """These rules, then those of a further file in the folder ``base``."""
        more = Ignore(lines, base)
        more._rules = self._rules + more._rules
        return more

    def match(self, path: str, is_dir: bool = False) -> bool:
        """Whether ``path`` (relative, '/' between parts) or a folder above it is ignored."""
        parts = tuple(path.split("/"))
        if not self._rules:
            return False
        return any(self._last(parts[:n], n < len(parts) or is_dir) for n in _lengths(parts))

    def match_last(self, path: str, is_dir: bool) -> bool:
        """As ``match`` for a path whose folders are known not to be ignored."""
        return self._last(tuple(path.split("/")), is_dir)

    def _last(self, parts: tuple[str, ...], is_dir: bool) -> bool:
        for rule in reversed(self._rules):
            if rule.matches(parts, is_dir):
                return not rule.negated
        return False


def _lengths(parts: Sequence[str]) -> range:
    return range(1, len(parts) + 1)


def _match(pattern: Sequence[re.Pattern[str] | None], path: Sequence[str]) -> bool:
    """Matches path parts; ``**`` matches any number of them, at the end at least one."""
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


def _rule(line: str, base: tuple[str, ...]) -> _Rule | None:
    """The rule of one line; None for a comment, an empty or a malformed line."""
    text = _strip(line.rstrip("\r\n"))
    if not text or text.startswith("#"):
        return None
    negated = text.startswith("!")
    text = text[1:] if negated else text
    folders_only = text.endswith("/")
    text = text[:-1] if folders_only else text
    if not text:
        return None
    names = _unescape_slashes(text.removeprefix("/").split("/"))
    try:
        if "/" in text:
            parts = [None if _any_depth(name) else _compile(name) for name in names]
        else:
            parts = [None, _compile(text)]
    except _Malformed:
        return None
    return _Rule(base, tuple(parts), negated, folders_only)


def _any_depth(name: str) -> bool:
    """``**`` between slashes; like git, more than two stars mean the same."""
    return len(name) > 1 and not name.strip("*")


def _strip(text: str) -> str:
    """Strips trailing spaces, except one after a backslash."""
    while text.endswith(" "):
        before = text[:-1]
        if (len(before) - len(before.rstrip("\\"))) % 2:
            return text
        text = before
    return text


def _unescape_slashes(names: list[str]) -> list[str]:
    r"""``\/`` is a slash like any other."""
    for i, name in enumerate(names[:-1]):
        if (len(name) - len(name.rstrip("\\"))) % 2:
            names[i] = name[:-1]
    return names


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
