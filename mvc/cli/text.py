"""Numbers and words for people: sizes, shares, counts, times, shapes, lists (pure functions)."""

from __future__ import annotations

from collections.abc import Sequence

import click

from mvc.names import printable
from mvc.repo.config import parse_size
from mvc.repo.display import number, seconds, size

__all__ = [
    "count", "listed", "nbytes", "number", "one_line", "percent", "seconds", "shape", "size",
    "stored_for",
]  # fmt: skip


def nbytes(text: str) -> int:
    """Reads ``40MB``, ``1.5 GiB`` (units of 1000 or of 1024) or ``123456``. Raises UsageError."""
    found = parse_size(text)
    if found is None:
        raise click.UsageError(f"a size is written 40MB, 1.5GiB or 123456, not {text!r}")
    return found


def percent(part: float, whole: float) -> str:
    """``28.7 %``; a share that is neither none nor all is never shown as 0 or 100."""
    if not whole:
        return "0 %"
    share = 100 * part / whole
    if share in (0.0, 100.0):
        return f"{share:.0f} %"
    if share < 0.05:
        return "< 0.1 %"
    if 99.95 <= share < 100:
        return "> 99.9 %"
    return f"{share:.1f} %"


def stored_for(stored: int, raw: int) -> str:
    """``8.1 MB stored for 110 MB (7.4 %)``; without the share if it exceeds 100 %."""
    text = f"{size(stored)} stored"
    if not raw:
        return text
    share = f" ({percent(stored, raw)})" if stored <= raw else ""
    return f"{text} for {size(raw)}{share}"


def count(n: int, noun: str, plural: str | None = None) -> str:
    """``1 tensor``, ``1,234 tensors``."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def listed(words: Sequence[str], most: int | None = None, joint: str = ", ") -> str:
    """The first ``most`` words (None: all), and how many more there are."""
    rest = len(words[most:]) if most is not None else 0
    return joint.join(words[:most]) + (f" and {rest:,} more" if rest else "")


def shape(lengths: Sequence[int]) -> str:
    """``64x3x7x7``; ``scalar`` for no dimensions."""
    return "x".join(map(str, lengths)) if lengths else "scalar"


def one_line(message: str) -> str:
    """A message's first line, safe to print."""
    return printable(message.strip().partition("\n")[0])
