"""What was measured as JSON, and the means and intervals that the tables print."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mvc.errors import BadModelFile, UnknownPath
from mvc.io.files import FileSystem

__all__ = ["KINDS", "Group", "Mean", "Report", "mean_of", "read_report", "report_bytes"]

KINDS = ("rework", "sizes", "buckets", "overhead")
"""What a report can hold; each is a command."""

_SCHEMA = "mvc.evaluation.rework/1"
_MAX_REPORT = 1 << 24
_RESAMPLES = 10_000


@dataclass(frozen=True)
class Group:
    """One experiment. ``setting``: its parameters; ``lines``: what was measured, row by row."""

    setting: Mapping[str, Any]
    lines: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Report:
    """Everything that one call measured. ``machine``: what it ran on."""

    kind: str
    groups: tuple[Group, ...]
    machine: str = ""


@dataclass(frozen=True)
class Mean:
    """A mean with the bounds of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def mean_of(values: Sequence[float]) -> Mean:
    """The mean; the interval is that of the means of 10,000 resamples, always the same ones."""
    sample = np.asarray(values, np.float64)
    picks = np.random.default_rng(0).integers(0, len(sample), (_RESAMPLES, len(sample)))
    low, high = np.quantile(sample[picks].mean(1), (0.025, 0.975))
    return Mean(float(sample.mean()), float(low), float(high))


def report_bytes(report: Report) -> bytes:
    """A report as JSON, which ``read_report`` takes; rows of numbers are one line each."""
    text = json.dumps({"schema": _SCHEMA, **asdict(report)}, indent=1)
    return re.sub(r"\[[^][{}\"]*\]", lambda row: " ".join(row[0].split()), text).encode()


def read_report(fs: FileSystem, path: Path) -> Report:
    """The report in a file of ``report_bytes``. Raises UnknownPath and BadModelFile."""
    if fs.stat(path) is None:
        raise UnknownPath(f"there is no {path}", hint="name a JSON file of a folder tables/")
    try:
        values = json.loads(fs.read_bytes(path, _MAX_REPORT))
        if values["schema"] != _SCHEMA or values["kind"] not in KINDS:
            raise ValueError
        groups = (Group(dict(each["setting"]), _lines(each)) for each in values["groups"])
        return Report(values["kind"], tuple(groups), str(values["machine"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadModelFile(
            f"{path} is no report", hint="name a JSON file that 'rework' wrote"
        ) from None


def _lines(group: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    return tuple(dict(line) for line in group["lines"])
