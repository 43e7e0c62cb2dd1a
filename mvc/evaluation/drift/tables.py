"""Tables of the thesis with our figures beside its own.

Tables 4.8 to 4.26 compare pipelines, averaged over the labels run; tables 4.3 to 4.6 compare the
drift of two networks under settings of the split.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mvc.codecs.pipeline import PRESETS
from mvc.errors import InvalidPipeline, NotInstalled, WrongUsage
from mvc.evaluation.common.data import Dataset
from mvc.evaluation.drift.experiment import Settings
from mvc.evaluation.drift.measure import Measured, Results, curve_difference
from mvc.evaluation.drift.stream import Tell, named
from mvc.evaluation.drift.thesis import (
    BASELINES,
    CURVES,
    LEARNING,
    MODELS,
    Configuration,
    Curve,
    Figures,
    Table,
)

__all__ = [
    *("Cell", "Compared", "CurveLine", "Curves", "Line"),
    *("compare", "compare_curves", "improvements", "role_of"),
]

Run = Callable[[Dataset, Settings], Sequence[Results]]
"""Recorded streams of a data set under settings, one for each label."""


@dataclass(frozen=True)
class Cell:
    """One pipeline on one network, mean over labels; None where it could not be measured.

    ``ratio``: bytes of the table's first row to bytes of this one, folders as they are.
    ``to_zstd``, ``to_lossless``, ``to_raw``: against the three baselines of section 4.3.2
    (every version with zstd; the best lossless pipeline with a reset point every 28; the
    bare weights), where the table has them. ``differences`` has the accuracy difference of
    each label. The bytes are those of deltas, of reset points and of all else.
    """

    ratio: float
    to_zstd: float | None
    to_lossless: float | None
    to_raw: float | None
    accuracy: float
    target: float
    differences: tuple[float, ...]
    save: float
    save_max: float
    load: float
    load_max: float
    saved: float
    folder: float
    delta_bytes: float
    full_bytes: float
    other_bytes: float


@dataclass(frozen=True)
class Line:
    """A row: the thesis's name or a preset of mvc, its pipeline, and figures by network."""

    name: str
    pipeline: str
    interval: int
    cells: Mapping[str, Cell]
    stated: Mapping[str, Figures]
    missing: str | None = None


@dataclass(frozen=True)
class Compared:
    """A table. ``learning``: seconds of a training batch (mean, longest) by network, ours
    and the thesis's; ``plain``: seconds to decode half an interval of deltas in plain numpy.
    """

    number: str
    title: str
    lines: tuple[Line, ...]
    setting: Mapping[str, Sequence[Mapping[str, Any]]]
    learning: Mapping[str, tuple[float, float]]
    learning_stated: Mapping[str, tuple[float, float]]
    plain: Mapping[str, tuple[int, float]]


def role_of(results: Results) -> str:
    """Which network of the thesis a stream stands for: the conv net, or the LSTM."""
    return MODELS[results.stream.experiment.data.kind == "texts"]


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
    first = table.rows[0].name
    lines = tuple(
        Line(
            name,
            PRESETS.get(configuration.pipeline, configuration.pipeline),
            configuration.interval,
            {role: _cell(name, role, measured, first) for role in by_role if name in measured},
            stated.get(name, {}),
            missing.get(name),
        )
        for name, configuration in wanted.items()
    )
    deltas = max(line.interval for line in lines) // 2
    any_row = next(iter(measured.values()))
    return Compared(
        table.number,
        table.title,
        lines,
        {role: [r.stream.experiment.parameters for r in group] for role, group in by_role.items()},
        {
            role: (_mean(any_row[role], "learn"), _mean(any_row[role], "learn_max"))
            for role in by_role
        },
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

    def ratio(baseline: str) -> float | None:
        if baseline not in measured:
            return None
        pairs = zip(measured[baseline][role], own, strict=True)
        return statistics.fmean(base.folder / one.folder for base, one in pairs)

    same = ("save", "save_max", "load", "load_max", "saved", "folder", "other_bytes")
    return Cell(
        ratio=ratio(first) or 1.0,
        to_zstd=ratio("BL-GeneralCompr"),
        to_lossless=ratio("BL-LosslessCompr"),
        to_raw=ratio("BL-NoCompression"),
        accuracy=_mean(own, "difference"),
        target=_mean(own, "target_difference"),
        differences=tuple(one.difference for one in own),
        delta_bytes=statistics.fmean(one.bytes["delta"] for one in own),
        full_bytes=statistics.fmean(one.bytes["full"] for one in own),
        **{name: _mean(own, name) for name in same},
    )


def _mean(group: Sequence[Measured], name: str) -> float:
    return statistics.fmean(getattr(one, name) for one in group)


def _plain(group: Sequence[Results], deltas: int) -> tuple[int, float]:
    fewest = min(deltas, *(len(results.stream.versions) - 1 for results in group))
    return fewest, statistics.fmean(results.plain_seconds(fewest) for results in group)


@dataclass(frozen=True)
class CurveLine(Curve):
    """A cell of the thesis and how far apart the curves of our two networks are."""

    difference: float


@dataclass(frozen=True)
class Curves:
    """One of tables 4.3 to 4.5."""

    number: str
    title: str
    lines: tuple[CurveLine, ...]


def compare_curves(number: str, data: Sequence[Dataset], settings: Settings, run: Run) -> Curves:
    """Trains both networks under every setting of a table and compares their curves.

    Settings that the table leaves open are those of ``settings``. WrongUsage unless there
    are images and texts.
    """
    by_kind: dict[str, Dataset] = {dataset.kind: dataset for dataset in data}
    if len(data) != 2 or len(by_kind) != 2:
        raise WrongUsage(
            f"table {number} compares two networks: it takes one data set of images and one of "
            "texts",
            hint="name both with --data",
        )
    title, cells = CURVES[number]
    lines = []
    for cell in cells:
        curves = [
            [
                results.lossless().last
                for results in run(by_kind[kind], replace(settings, model=None, **own))
            ]
            for kind, own in (("images", cell.conv), ("texts", cell.lstm))
        ]
        lines.append(CurveLine(cell.conv, cell.lstm, cell.stated, curve_difference(*curves)))
    return Curves(number, title, tuple(lines))


def improvements(curves: Sequence[Curves]) -> list[tuple[str, float, float, float, float]]:
    """Table 4.6: of each setting, smallest and largest difference, ours and the thesis's."""
    found = []
    for one in curves:
        ours, thesis = zip(*((line.difference, line.stated) for line in one.lines), strict=True)
        found.append((one.title, min(ours), max(ours), min(thesis), max(thesis)))
    return found
