"""Sizes that people write: ``40MB``, ``1.5 GiB``, ``123456``."""

from __future__ import annotations

import re

import click

__all__ = ["nbytes"]

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_FORM = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def nbytes(text: str) -> int:
    """Bytes: units of 1000 (kB, MB, GB, TB) or of 1024 (KiB, MiB, GiB, TiB)."""
    found = _FORM.fullmatch(text.strip())
    if not found or (found[3] and not found[2]):
        raise click.UsageError(f"a size is written 40MB, 1.5GiB or 123456, not {text!r}")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** _POWERS[found[2].lower()])
