"""A table of the thesis with our figures beside its own, averaged over the labels run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mvc.codecs.pipeline import PRESETS
from mvc.errors import InvalidPipeline, NotInstalled
from mvc.evaluation.drift.measure import Measured, Results
from mvc.evaluation.drift.names import BASELINES, Configuration
from mvc.evaluation.drift.stream import Tell
from mvc.evaluation.drift.thesis.curves import LEARNING
from mvc.evaluation.drift.thesis.tables import MODELS, Figures, Row, Table

__all__ = ["Cell", "Compared", "Line", "compare", "own_row", "role_of"]


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


def own_row(name: str, configuration: Configuration) -> Row:
    """A row of which the thesis says nothing."""
    return Row(name, configuration, {})


def compare(table: Table, runs: Sequence[Results], tell: Tell | None = None) -> Compared:
    """Measures every row of a table that is not known yet, on every stream."""
    by_role: dict[str, list[Results]] = {}
    for results in runs:
        by_role.setdefault(role_of(results), []).append(results)
    measured: dict[str, dict[str, list[Measured]]] = {}
    missing: dict[str, str] = {}
    wanted = _wanted(table)
    for position, (name, configuration) in enumerate(wanted.items(), start=1):
        said = _named(tell, f"{position}/{len(wanted)} {name}")
        try:
            measured[name] = {
                role: [results.measured(configuration, said) for results in group]
                for role, group in by_role.items()
            }
        except (InvalidPipeline, NotInstalled) as error:
            missing[name] = error.message
    stated = {row.name: row.stated for row in table.rows}
    first = table.rows[0].name
    lines = []
    for name, configuration in wanted.items():
        cells = {
            role: _cell(name, role, measured, first) for role in by_role if name not in missing
        }
        text, interval = configuration.pipeline, configuration.interval
        text = PRESETS.get(text, text)
        lines.append(Line(name, text, interval, cells, stated.get(name, {}), missing.get(name)))
    deltas = max(line.interval for line in lines) // 2
    return Compared(
        table.number,
        table.title,
        tuple(lines),
        {role: [r.stream.experiment.parameters for r in group] for role, group in by_role.items()},
        {role: _learning(measured, role) for role in by_role},
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

    mean = statistics.fmean
    return Cell(
        ratio=ratio(first) or 1.0,
        to_zstd=ratio("BL-GeneralCompr"),
        to_lossless=ratio("BL-LosslessCompr"),
        to_raw=ratio("BL-NoCompression"),
        accuracy=mean(one.difference for one in own),
        target=mean(100 * (one.target - one.lossless_target) for one in own),
        differences=tuple(one.difference for one in own),
        save=mean(one.save for one in own),
        save_max=mean(one.save_max for one in own),
        load=mean(one.load for one in own),
        load_max=mean(one.load_max for one in own),
        saved=mean(one.saved for one in own),
        folder=mean(one.folder for one in own),
        delta_bytes=mean(one.bytes["delta"] for one in own),
        full_bytes=mean(one.bytes["full"] for one in own),
        other_bytes=mean(one.other_bytes for one in own),
    )


def _learning(
    measured: Mapping[str, Mapping[str, Sequence[Measured]]], role: str
) -> tuple[float, float]:
    any_row = next(iter(measured.values()))[role]
    return (
        statistics.fmean(one.learn for one in any_row),
        statistics.fmean(one.learn_max for one in any_row),
    )


def _plain(group: Sequence[Results], deltas: int) -> tuple[int, float]:
    fewest = min(deltas, *(len(results.stream.versions) - 1 for results in group))
    return fewest, statistics.fmean(results.plain_seconds(fewest) for results in group)


def _named(tell: Tell | None, name: str) -> Tell | None:
    if tell is None:
        return None
    return lambda what, done, total: tell(f"{name}: {what}", done, total)
