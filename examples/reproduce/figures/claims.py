"""All pages, claims and statements."""

from __future__ import annotations

from pathlib import Path

from . import benchmarks, derived, distributed, drift, rework, settings
from .sources import Claim, Stated

__all__ = ["CLAIMS", "PAGES", "STATED", "Claim", "Stated"]

_ROOT = Path(__file__).parents[3]
_SPECIFIED = (
    *("docs/format.md", "docs/errors.md", "docs/commands", "docs/frameworks"),
    "docs/guides",  # tests run them and compare what is printed
    "docs/reliability.md",  # counters of the suites, each with the commit that they ran on
)
"""Beginnings of pages whose numbers are limits, defaults and sizes of fields, if nothing else."""

_MODULES = (benchmarks, derived, distributed, drift, rework, settings)

_FOUND = (_ROOT / "README.md", *(_ROOT / "docs").rglob("*.md"), *(_ROOT / "examples").rglob("*.md"))
PAGES = tuple(
    name
    for name in sorted(str(path.relative_to(_ROOT)) for path in _FOUND)
    if not name.startswith(_SPECIFIED)
)
CLAIMS: tuple[Claim, ...] = tuple(claim for module in _MODULES for claim in module.CLAIMS)
STATED: tuple[Stated, ...] = tuple(each for module in _MODULES for each in module.STATED)
