"""Plain English: how often texts of the package and pages use words of a private language.

``python -m tests.documents.test_words [FOLDER|FILE]...`` prints each of these places.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.documents.pages import ROOT

LIMIT = 300
LINES, WORDS = 6_000, 60_000
"""Of the README and of all pages below docs/."""

PRIVATE = (
    r"aside",
    r"whoever",
    r"who (?:has|have|is|are|was|were|asks?|reads?|writes?|calls?|wants?)",
    r"told|tells?",
    r"held",
    r"kept",
    r"stands?|stood",
    r"lies?",
    r"(?:the|a|on the|one) ways? (?:to|back|of|that|there)",
    r"giv(?:en|es?|ing) up",
    r"(?:here|there|made|makes?) again",
    r"what (?:is|are|was|were|has|have|had|it|they|one|no|nobody|else|each|somebody|every|others?)",
    r"of (?:it|them)",
    r"besides?",
    r"gone",
    r"(?:no|some)body",
    r"the others?(?=[.,;:)]|$)",
    r"look(?:s|ed|ing)? at",
    r"tak(?:en|es?|ing) (?:over|away|back|up)",
    r"made (?:of|by|from)",
    r"as (?:it|they) (?:is|are|was|were|stands?)",
    r"(?:is|are|was|were) (?:not )?there(?=[.,;:)]|$)",
    r"vouch\w*|court|buried|banned|phantoms?",
    r"where (?:it|they) (?:is|are|comes?|stands?|lies?)",
)
"""Patterns of everyday words where a standard term belongs."""

_PRIVATE = re.compile("|".join(rf"\b(?:{pattern})\b" for pattern in PRIVATE), re.I | re.M)
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.M | re.S)


def _texts(file: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, message and comment of a module; a page as a whole."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        yield 1, _CODE.sub(lambda code: "\n" * code[0].count("\n"), text)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _private(files: list[Path]) -> Iterator[str]:
    """``FILE:LINE: word`` of each private word, in the order of the files."""
    for file in files:
        for line, text in _texts(file):
            for match in _PRIVATE.finditer(text):
                at = line + text.count("\n", 0, match.start())
                yield f"{file.relative_to(ROOT)}:{at}: {match[0]}"


def test_private_words_are_few() -> None:
    found = list(_private([*_pages(), *sorted((ROOT / "mvc").rglob("*.py"))]))
    assert len(found) <= LIMIT, found[-20:]


def test_the_pages_are_short() -> None:
    texts = [page.read_text(encoding="utf-8") for page in _pages()]
    assert sum(text.count("\n") for text in texts) <= LINES
    assert sum(len(text.split()) for text in texts) <= WORDS


if __name__ == "__main__":
    roots = [Path(each).resolve() for each in sys.argv[1:]] or [ROOT / "mvc", *_pages()]
    files = [file for root in roots for file in ([root] if root.is_file() else root.rglob("*"))]
    places = list(_private([file for file in sorted(files) if file.suffix in (".py", ".md")]))
    print(*places, f"{len(places)} private words", sep="\n")
