"""How a page of Markdown is taken apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for folder in ("*.md", ".github/[A-Z]*.md", "docs/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(folder)
)

_BLOCK = re.compile(r"^```(\w*).*?\n(.*?)^```$", re.M | re.S)
_NO_LETTER = re.compile(r"[^\w\s-]")


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """The language and the text of each block of code."""
    for found in _BLOCK.finditer(text):
        yield found[1], found[2]


def outside_of_code(text: str, change: Callable[[str], str]) -> str:
    """The text, with what stands outside of its blocks of code changed."""
    parts, end = [], 0
    for found in _BLOCK.finditer(text):
        parts += [change(text[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*parts, change(text[end:])])


def prose(text: str) -> str:
    """The text without its blocks of code."""
    return _BLOCK.sub("", text)


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it: of its text without links and code marks."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return _NO_LETTER.sub("", text.lower()).strip().replace(" ", "-")
