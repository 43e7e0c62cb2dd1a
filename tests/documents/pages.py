"""How a page of Markdown is taken apart."""

from __future__ import annotations

import re
from collections.abc import Callable

_BLOCK = re.compile(r"(^```.*?^```$)", re.M | re.S)
_NO_LETTER = re.compile(r"[^\w\s-]")


def outside_of_code(text: str, change: Callable[[str], str]) -> str:
    """The text, with what stands outside of its blocks of code changed."""
    parts = _BLOCK.split(text)
    return "".join(part if i % 2 else change(part) for i, part in enumerate(parts))


def prose(text: str) -> str:
    """The text without its blocks of code."""
    return _BLOCK.sub("", text)


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it: of its text without links and code marks."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return _NO_LETTER.sub("", text.lower()).strip().replace(" ", "-")
