"""What claims are made of: phrases of pages, and values of results."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "Claim", "NotMeasured", "Stated", "report"]

RESULTS = Path(__file__).parents[1] / "results"


class NotMeasured(Exception):
    """There is no result of this name; says which command makes it, if it is a benchmark's."""

    def __init__(self, file: Path) -> None:
        benchmark = file.name.startswith("bench_")
        command = f": python examples/reproduce benchmark {file.stem}" if benchmark else ""
        super().__init__(f"{file.name}{command}")


@dataclass(frozen=True)
class Claim:
    """A phrase of a page, with ``{}`` for each number; any white space is like any other."""

    page: str
    says: str
    values: Callable[[], Sequence[float]]
    """What the numbers are rounded from, to as many digits as the page has."""


@dataclass(frozen=True)
class Stated:
    """A phrase of a page with numbers that are no measurement: settings, limits, another's."""

    page: str
    says: str


@cache
def report(name: str) -> dict[str, Any]:
    """A result: ``report("drift-presets")``."""
    file = RESULTS / f"{name}.json"
    if not file.exists():
        raise NotMeasured(file)
    result: dict[str, Any] = json.loads(file.read_bytes())
    return result
