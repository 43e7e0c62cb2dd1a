"""Tables of the thesis with our figures beside its own, and their JSON.

Tables 4.8 to 4.26 compare pipelines, for each label that was run; tables 4.3 to 4.6 compare the
drift of two networks under settings of the split; table 4.7 has the seconds of a training batch.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from mvc.codecs.pipeline import PRESETS
from mvc.errors import InvalidPipeline, NotInstalled, WrongUsage
from mvc.evaluation.common.data import Dataset
from mvc.evaluation.common.models import recipe_for
from mvc.evaluation.common.progress import Tell, named
from mvc.evaluation.common.results import read_report
from mvc.evaluation.drift.experiment import Experiment, Settings
from mvc.evaluation.drift.measure import Measured, Results, curve_difference
from mvc.evaluation.drift.thesis import (
    BASELINES,
    CURVES,
    LEARNING,
    MODELS,
    STATED,
    Configuration,
    Curve,
    Figures,
    Setting,
    Table,
)
from mvc.io.files import FileSystem

__all__ = [
    *("Cell", "Compared", "CurveLine", "CurveTable", "Curves", "Learning", "Line", "Made"),
    *("compare", "compare_curves", "read_table", "role_of", "table_bytes"),
]

Run = Callable[[Dataset, Settings], Sequence[Results]]
"""Recorded streams of a data set under settings, one for each label."""

_SCHEMA = "mvc.evaluation.table/1"
_BATCHES = 150  # of the thesis's experiments


@dataclass(frozen=True)
class Cell:
    """One pipeline on one network: of every figure one for each label, none if not known.

    ``ratio``: bytes of the table's first row to bytes of this one, folders as they are.
    ``to_zstd``, ``to_lossless``, ``to_raw``: against the three baselines of section 4.3.2
    (every version with zstd; the best lossless pipeline with a reset point every 28; the
    bare weights), where the table has them. ``accuracy`` and ``target``: differences to the
    lossless run in points. Seconds of a batch, mean and longest. ``saved``: versions. The
    bytes are those of the folder, and in it of deltas, of reset points and of all else.
    """

    ratio: tuple[float, ...] = ()
    to_zstd: tuple[float, ...] = ()
    to_lossless: tuple[float, ...] = ()
    to_raw: tuple[float, ...] = ()
    accuracy: tuple[float, ...] = ()
    target: tuple[float, ...] = ()
    save: tuple[float, ...] = ()
    save_max: tuple[float, ...] = ()
    load: tuple[float, ...] = ()
    load_max: tuple[float, ...] = ()
    saved: tuple[float, ...] = ()
    folder: tuple[float, ...] = ()
    delta_bytes: tuple[float, ...] = ()
    full_bytes: tuple[float, ...] = ()
    other_bytes: tuple[float, ...] = ()

    def mean(self, name: str) -> float | None:
        """The mean over labels of a figure; None if it is not known."""
        values = getattr(self, name)
        return statistics.fmean(values) if values else None


@dataclass(frozen=True)
class Line:
    """A row: the thesis's name or a preset of mvc, its pipeline, and figures by network.

    A network on which the row was not measured has no cell.
    """

    name: str
    pipeline: str
    interval: int
    cells: Mapping[str, Cell]
    stated: Mapping[str, Figures]
    missing: str | None = None


@dataclass(frozen=True)
class Compared:
    """A table. ``setting``: by network the parameters of each label's experiment. ``learning``:
    seconds of a training batch (mean, longest) by network, ours and the thesis's; ``plain``:
    seconds to decode half an interval of deltas in plain numpy. ``origin``: where the figures
    are from, if the program did not write them itself.
    """

    number: str
    title: str
    lines: tuple[Line, ...]
    setting: Mapping[str, Sequence[Mapping[str, Any]]]
    learning: Mapping[str, tuple[float, float]]
    learning_stated: Mapping[str, tuple[float, float]]
    plain: Mapping[str, tuple[int, float]]
    origin: str = ""


def role_of(results: Results) -> str:
    """Which network of the thesis a stream stands for: the conv net, or the LSTM."""
    return MODELS[results.stream.experiment.recipe.recurrent]


def compare(table: Table, runs: Sequence[Results], tell: Tell | None = None) -> Compared:
    """Measures every row of a table that is not known yet, on every stream."""
    by_role: dict[str, list[Results]] = {}
    for results in runs:
        by_role.setdefault(role_of(results), []).append(results)
    measured: dict[str, dict[str, list[Measured]]] = {}
    missing: dict[str, str] = {}
    wanted = _wanted(table)
    for position, (name, configuration) in enumerate(wanted.items(), start=1):
        said = named(tell, f"{position}/{len(wanted)} {name}")
        try:
            measured[name] = {
                role: [results.measured(configuration, said) for results in group]
                for role, group in by_role.items()
            }
        except (InvalidPipeline, NotInstalled) as error:
            missing[name] = error.message
    stated = {row.name: row.stated for row in table.rows}
    first = table.rows[0]
    comparable = first.configuration == BASELINES["BL-GeneralCompr"]
    lines = []
    for name, configuration in wanted.items():
        text = PRESETS.get(configuration.pipeline, configuration.pipeline)
        same = STATED.get(Configuration(text, configuration.interval), {}) if comparable else {}
        known = by_role if name in measured else ()
        cells = {role: _cell(name, role, measured, first.name) for role in known}
        shown = stated.get(name) or same
        lines.append(Line(name, text, configuration.interval, cells, shown, missing.get(name)))
    deltas = max(line.interval for line in lines) // 2
    any_row = next(iter(measured.values()))
    return Compared(
        table.number,
        table.title,
        tuple(lines),
        {role: [r.stream.experiment.parameters for r in group] for role, group in by_role.items()},
        {role: _learned(any_row[role]) for role in by_role},
        {role: LEARNING[role] for role in by_role},
        {role: _plain(group, deltas) for role, group in by_role.items() if deltas},
    )


def _wanted(table: Table) -> dict[str, Configuration]:
    """Rows of the thesis, and where presets of ours are compared, these and all baselines."""
    wanted = {row.name: row.configuration for row in table.rows}
    if table.ours:
        wanted |= {name: BASELINES[name] for name in BASELINES if name not in wanted}
        known = [name for name in table.ours if name in PRESETS]
        wanted |= {name: Configuration(name, table.interval) for name in known}
    return wanted


def _cell(
    name: str, role: str, measured: Mapping[str, Mapping[str, Sequence[Measured]]], first: str
) -> Cell:
    own = measured[name][role]

    def ratio(baseline: str) -> tuple[float, ...]:
        if baseline not in measured:
            return ()
        pairs = zip(measured[baseline][role], own, strict=True)
        return tuple(base.folder / one.folder for base, one in pairs)

    same = ("save", "save_max", "load", "load_max", "saved", "folder", "other_bytes")
    return Cell(
        ratio=ratio(first),
        to_zstd=ratio("BL-GeneralCompr"),
        to_lossless=ratio("BL-LosslessCompr"),
        to_raw=ratio("BL-NoCompression"),
        accuracy=tuple(one.difference for one in own),
        target=tuple(one.target_difference for one in own),
        delta_bytes=tuple(one.bytes["delta"] for one in own),
        full_bytes=tuple(one.bytes["full"] for one in own),
        **{name: tuple(getattr(one, name) for one in own) for name in same},
    )


def _learned(group: Sequence[Measured]) -> tuple[float, float]:
    return (
        statistics.fmean(one.learn for one in group),
        statistics.fmean(one.learn_max for one in group),
    )


def _plain(group: Sequence[Results], deltas: int) -> tuple[int, float]:
    fewest = min(deltas, *(len(results.stream.versions) - 1 for results in group))
    return fewest, statistics.fmean(results.plain_seconds(fewest) for results in group)


@dataclass(frozen=True)
class CurveLine(Curve):
    """A cell of the thesis and how far apart the curves of our two networks are.

    ``conv`` and ``lstm`` are the settings that ours were trained with.
    """

    difference: float


@dataclass(frozen=True)
class Curves:
    """One of tables 4.3 to 4.5. ``networks`` has what all its rows have in common, by network."""

    number: str
    title: str
    labels: tuple[int, ...]
    networks: Mapping[str, Setting]
    lines: tuple[CurveLine, ...]


@dataclass(frozen=True)
class CurveTable:
    """One of tables 4.3 to 4.5, or 4.6, which sums them up."""

    number: str
    parts: tuple[Curves, ...]


@dataclass(frozen=True)
class Learning:
    """Table 4.7. ``rows`` has for each training its figures by their titles."""

    number: str
    rows: tuple[Mapping[str, Any], ...]


Made = Compared | CurveTable | Learning


def compare_curves(number: str, data: Sequence[Dataset], settings: Settings, run: Run) -> Curves:
    """Trains both networks under every setting of a table and compares their curves.

    Settings that the table leaves open are those of ``settings``, and the same in every row.
    The networks are those for images and for texts, or for images alone the default and one
    that reads them row by row. WrongUsage for other data, and if ``settings`` name a network.
    """
    title, cells = CURVES[number]
    sides = dict(zip(MODELS, _sides(number, data, settings), strict=True))
    rows = {
        role: _rows(*side, [getattr(cell, role) for cell in cells]) for role, side in sides.items()
    }
    labels: tuple[int, ...] = ()
    networks: dict[str, Setting] = {}
    lines = []
    for position, cell in enumerate(cells):
        curves, own = [], {}
        for role, (dataset, _) in sides.items():
            results = run(dataset, rows[role][position])
            experiments = [one.stream.experiment for one in results]
            labels = tuple(one.label for one in experiments)
            networks.setdefault(role, _common(experiments[0]))
            curves.append([one.lossless().last for one in results])
            own[role] = {name: getattr(rows[role][position], name) for name in getattr(cell, role)}
        lines.append(CurveLine(**own, stated=cell.stated, difference=curve_difference(*curves)))
    return Curves(number, title, labels, networks, tuple(lines))


def _sides(
    number: str, data: Sequence[Dataset], settings: Settings
) -> tuple[tuple[Dataset, Settings], tuple[Dataset, Settings]]:
    if settings.model is not None:
        raise WrongUsage(f"table {number} has its two networks", hint="leave out --model")
    by_kind: dict[str, Dataset] = {dataset.kind: dataset for dataset in data}
    if len(by_kind) != len(data) or "images" not in by_kind:
        raise WrongUsage(
            f"table {number} compares two networks: it takes one data set of images, or one of "
            "images and one of texts",
            hint="name them with --data",
        )
    images = by_kind["images"]
    if "texts" in by_kind:
        return (images, settings), (by_kind["texts"], settings)
    return (images, settings), (images, replace(settings, model="rows"))


def _rows(data: Dataset, settings: Settings, given: Sequence[Setting]) -> list[Settings]:
    """The settings of a table's rows, which differ in what the table varies and in nothing else.

    The batch size is the largest that every row can have, and all rows train offline with as
    many samples of the other labels as the row that has the fewest. Where an experiment has
    fewer than 150 batches, or more, so has every row, in proportion.
    """
    usual = recipe_for(settings.model, data).batches
    whole = usual if settings.batches is None else settings.batches
    rows = [
        replace(settings, **{**own, "batches": round(own["batches"] * whole / _BATCHES)})
        for own in given
    ]
    size = min(Experiment.of(data, row, 0).plan.batch_size for row in rows)
    rows = [replace(row, batch_size=size) for row in rows]
    if settings.offline is not None:
        return rows
    plans = [Experiment.of(data, row, 0).plan for row in rows]
    others = min(plan.others_offline for plan in plans)
    return [
        replace(row, offline=Fraction(plan.drifting_offline + others, len(data.labels)))
        for row, plan in zip(rows, plans, strict=True)
    ]


def _common(experiment: Experiment) -> Setting:
    """What all rows of a table have in common, as plain values."""
    named = ("data", "model", "epochs", "seed", "batch_size")
    common = {name: experiment.parameters[name] for name in named}
    return {**common, "others_offline": experiment.plan.others_offline}


def table_bytes(made: Made) -> bytes:
    """A table as JSON, which ``read_table`` takes."""
    return json.dumps({"schema": _SCHEMA, **asdict(made)}, indent=1).encode()


def read_table(fs: FileSystem, path: Path) -> Made:
    """The table in a file of ``table_bytes``. Raises UnknownPath and BadModelFile."""
    return read_report(fs, path, _SCHEMA, _made, ("table", "drift table or drift run"))


def _made(values: Mapping[str, Any]) -> Made:
    if "rows" in values:
        return Learning(values["number"], tuple(values["rows"]))
    if "parts" in values:
        parts = [
            Curves(**{**one, "lines": tuple(CurveLine(**line) for line in one["lines"])})
            for one in values["parts"]
        ]
        return CurveTable(values["number"], tuple(parts))
    return Compared(**{**values, "lines": tuple(map(_line, values["lines"]))})


def _line(values: Mapping[str, Any]) -> Line:
    cells = {
        role: Cell(**{name: tuple(figures) for name, figures in cell.items()})
        for role, cell in values["cells"].items()
    }
    stated = {role: Figures(**figures) for role, figures in values["stated"].items()}
    return Line(**{**values, "cells": cells, "stated": stated})
