"""Labelled texts out of JSON lines, as rows of word numbers.

Words as the thesis's tokenizer finds them: lower case, cut at punctuation and spaces,
numbered by how often they occur in all texts, the most frequent first; rarer ones are left
out. A row is the last ``LENGTH`` words, with zeros before them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mvc.errors import BadModelFile, WrongUsage
from mvc.evaluation.common.idx import unpacked
from mvc.io.files import FileSystem

__all__ = ["LENGTH", "VOCABULARY", "pick_classes", "read_lines", "rows_of", "words_of"]

VOCABULARY = 10_000
"""Numbers of words, the zero of the padding included."""

LENGTH = 100
"""Words of a row."""

CLASSES = 10

FORMS = frozenset(
    [
        "cli-mono",
        "debug",
        "devel",
        "doc",
        "introspection",
        "libdevel",
        "libs",
        "localization",
        "metapackages",
        "misc",
        "oldlibs",
        "tasks",
        "utils",
    ]
)
"""Debian sections that say what kind of package it is rather than what it is about."""

_SEPARATORS = re.compile(r"[\s!\"#$%&()*+,\-./:;<=>?@\[\\\]^_`{|}~]+")


def read_lines(
    fs: FileSystem, path: Path, label_field: str, text_fields: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Labels and texts of a file of JSON objects, one a line, packed with gzip or not.

    Several text fields are joined by a space, as the thesis joins title and description.
    """
    labels, texts = [], []
    for number, line in enumerate(_lines(unpacked(fs, path), path), start=1):
        try:
            entry = json.loads(line)
            labels.append(str(entry[label_field]))
            texts.append(" ".join(str(entry[field]) for field in text_fields))
        except (ValueError, KeyError, TypeError, RecursionError):
            wanted = ", ".join((label_field, *text_fields))
            raise BadModelFile(
                f"{path}, line {number}: no JSON object with {wanted}",
                hint="name the fields with --label-field and --text-field",
            ) from None
    if not labels:
        raise BadModelFile(f"{path} is empty", hint="it must be JSON objects, one a line")
    return labels, texts


def _lines(data: bytes, path: Path) -> Iterator[str]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise BadModelFile(f"{path} is not UTF-8") from None
    return (line for line in text.splitlines() if line.strip())


def pick_classes(labels: Sequence[str], wanted: Sequence[str] = ()) -> tuple[str, ...]:
    """The classes to tell apart: those that are named, else the ten largest by topic.

    Sections of packages that name a form (``FORMS``: libs, doc, devel, ...) are no topic.
    Equally large classes go by name.
    """
    counts = Counter(labels)
    if missing := [name for name in wanted if name not in counts]:
        raise WrongUsage(f"no text has the label {missing[0]}")
    if not wanted:
        topical = [(-count, name) for name, count in counts.items() if name not in FORMS]
        wanted = [name for _, name in sorted(topical)[:CLASSES]]
    if len(set(wanted)) < 2:
        raise WrongUsage("a drift needs at least two labels")
    return tuple(dict.fromkeys(wanted))


def words_of(text: str) -> list[str]:
    """The words of a text."""
    return [word for word in _SEPARATORS.split(text.lower()) if word]


def rows_of(texts: Sequence[str]) -> NDArray[np.int32]:
    """Word numbers int32 ``(texts, LENGTH)``; 0 is padding. Equally frequent words: first come."""
    split = [words_of(text) for text in texts]
    counts = Counter(word for words in split for word in words)
    kept = counts.most_common(VOCABULARY - 1)
    numbers = {word: number for number, (word, _) in enumerate(kept, start=1)}
    rows = np.zeros((len(split), LENGTH), np.int32)
    for row, words in zip(rows, split, strict=True):
        known = [numbers[word] for word in words if word in numbers][-LENGTH:]
        if known:
            row[-len(known) :] = known
    return rows
