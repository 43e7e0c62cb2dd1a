"""Medians over runs, group by group, and their JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mvc.evaluation.common import results
from mvc.evaluation.provenance.approaches import Approach
from mvc.evaluation.provenance.architectures import ARCHITECTURES
from mvc.evaluation.provenance.flow import BASES, RELATIONS, Experiment
from mvc.evaluation.provenance.measure import Figures, Run
from mvc.io.files import FileSystem

__all__ = ["Group", "Line", "Report", "line_of", "read_report", "report_bytes"]

_SCHEMA = "mvc.evaluation.mmlib/1"


@dataclass(frozen=True)
class Line:
    """One approach on ten models: medians of ``runs`` runs, by use case.

    ``thesis`` is the approach of the thesis whose figures belong beside these.
    """

    name: str
    title: str
    thesis: str | None
    about: str
    runs: int
    cells: Mapping[str, Figures]


@dataclass(frozen=True)
class Group:
    """One network and relation. ``setting``: the experiment's parameters."""

    architecture: str
    relation: str
    setting: Mapping[str, Any]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Report:
    """Everything that was measured by one call. ``machine``: what it ran on."""

    groups: tuple[Group, ...]
    machine: str = ""


def line_of(approach: Approach, measured: Sequence[Run]) -> Line:
    """The medians of an approach's runs."""
    cells = {name: _median([run[name] for run in measured]) for name in BASES}
    return Line(
        *(approach.name, approach.title, approach.thesis, approach.about),
        len(measured),
        cells,
    )


def group_of(experiment: Experiment, lines: Sequence[Line]) -> Group:
    """The lines of an experiment."""
    return Group(
        experiment.architecture.name, experiment.relation, experiment.parameters, tuple(lines)
    )


def _median(figures: Sequence[Figures]) -> Figures:
    values: list[dict[str, Any]] = [asdict(each) for each in figures]
    sizes: dict[str, Any] = {
        name: round(statistics.median(each[name] for each in values))
        for name in ("stored", "payload", "changed", "tensors")
    }
    steps: dict[str, Any] = {
        name: {
            step: statistics.median(each[name][step] for each in values) for step in values[0][name]
        }
        for name in ("save", "recover", "processor")
    }
    return Figures(**sizes, **steps)


def report_bytes(report: Report) -> bytes:
    """A report as JSON, which ``read_report`` takes."""
    return json.dumps({"schema": _SCHEMA, **asdict(report)}, indent=1).encode()


def read_report(fs: FileSystem, path: Path) -> Report:
    """The report in a file of ``report_bytes``. Raises UnknownPath and BadModelFile."""
    return results.read_report(fs, path, _SCHEMA, _report, ("report", "mmlib run"))


def _report(values: Mapping[str, Any]) -> Report:
    return Report(tuple(map(_group, values["groups"])), str(values["machine"]))


def _group(values: Mapping[str, Any]) -> Group:
    if values["architecture"] not in ARCHITECTURES or values["relation"] not in RELATIONS:
        raise ValueError
    return Group(**{**values, "lines": tuple(map(_line, values["lines"]))})


def _line(values: Mapping[str, Any]) -> Line:
    cells = {name: Figures(**values["cells"][name]) for name in BASES}
    return Line(**{**values, "cells": cells})
