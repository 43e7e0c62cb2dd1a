"""Formats tables, times, sizes, percentages, counts and lists for users."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from unicodedata import combining, east_asian_width

from mvc.names import printable
from mvc.times import format_age, format_time

__all__ = [
    "SIZE",
    "cell_width",
    "count",
    "did_you_mean",
    "format_age",
    "format_time",
    "listed",
    "measured",
    "number",
    "one_line",
    "parse_size",
    "percent",
    "printable",
    "seconds",
    "shape",
    "size",
    "stored_for",
    "text_table",
]

SIZE = r"(?i:([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*(?:([kmgt])(i?))?b?)"
"""Pattern of a number of bytes in user input."""
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def parse_size(text: str) -> int | None:
    """The number of bytes in ``40MB``, ``1.5 GiB`` or ``123456``; None if invalid."""
    match = re.fullmatch(SIZE, text.strip())
    if not match:
        return None
    number, prefix, binary = match.groups("")
    unit = (1024 if binary else 1000) ** _POWERS[prefix.lower()] if prefix else 1
    return int(float(number) * unit)


def text_table(
    rows: Iterable[Sequence[str]],
    right: Collection[int] = (),
    painted: Callable[[int, int, str], str] = lambda _row, _column, text: text,
) -> str:
    """Aligned columns, two spaces apart. Columns that are empty in every row are omitted.

    ``right``: the positions of right-aligned columns. ``painted(row, column, text)``: adds colour
    codes to the text of a cell.
    """
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(cell_width, column)) for column in zip(*shown, strict=True)]
    return "\n".join(
        "  ".join(
            painted(number, column, _aligned(cell, width, right=column in right))
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            if width
        ).rstrip()
        for number, row in enumerate(shown)
    )


def _aligned(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - cell_width(text))
    return space + text if right else text + space


def cell_width(text: str) -> int:
    """The width of ``text`` on a terminal, in columns."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def measured(metrics: Mapping[str, float]) -> str:
    """Metrics in one line: ``acc=0.98  loss=0.1``."""
    return "  ".join(f"{printable(k)}={number(v)}" for k, v in sorted(metrics.items()))


def size(nbytes: int) -> str:
    """A number of bytes in decimal units with three digits: ``512 B``, ``3.41 MB``."""
    value, unit = float(nbytes), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{nbytes} B" if unit == 0 else f"{_digits(value)} {_UNITS[unit]}"


def seconds(value: float) -> str:
    """A duration: ``820 us``, ``3.4 ms``, ``12.0 s``."""
    if value < 1e-3:
        return f"{value * 1e6:.0f} us"
    if value < 1:
        return f"{value * 1e3:.1f} ms"
    return f"{value:.1f} s"


def _digits(value: float) -> str:
    """Three significant digits without an exponent, for values below 1000."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def number(value: float) -> str:
    """A number with four significant digits."""
    return f"{value:.4g}"


def percent(part: float, whole: float) -> str:
    """``part`` as a percentage of ``whole``: ``28.7 %``. Never rounds to ``0 %`` or ``100 %``."""
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
    """For example ``8.1 MB stored for 110 MB (7.4 %)``. Omits a percentage above 100."""
    text = f"{size(stored)} stored"
    if not raw:
        return text
    share = f" ({percent(stored, raw)})" if stored <= raw else ""
    return f"{text} for {size(raw)}{share}"


def count(n: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: ``1 tensor``, ``1,234 tensors``."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def did_you_mean(name: str, names: Iterable[str], otherwise: str) -> str:
    """A hint for an unknown name: the most similar of ``names``, or ``otherwise`` if none is
    similar.
    """
    from difflib import get_close_matches  # rarely needed

    close = get_close_matches(name, [*names], n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(printable, close))}?" if close else otherwise


def listed(words: Sequence[str], most: int | None = None, joint: str = ", ") -> str:
    """The first ``most`` words, and how many words follow: ``a, b and 3 more``.

    If ``most`` is None, all words.
    """
    rest = len(words[most:]) if most is not None else 0
    return joint.join(words[:most]) + (f" and {rest:,} more" if rest else "")


def shape(lengths: Sequence[int]) -> str:
    """The lengths of all dimensions: ``64x3x7x7``. ``scalar`` if there are no dimensions."""
    return "x".join(map(str, lengths)) if lengths else "scalar"


def one_line(message: str) -> str:
    """A message's first line, safe to print."""
    return printable(message.strip().partition("\n")[0])
