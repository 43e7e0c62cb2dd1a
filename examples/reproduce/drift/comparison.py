"""Reports of the thesis's tables: its rows and presets of mvc with our figures, as plain values.

A line of tables 4.8 to 4.26 is a pipeline. For each network it has a cell: of every figure one
value for each label. ``ratio``: bytes of the table's first row to bytes of this one, folders as
they are. ``to_zstd``, ``to_lossless``, ``to_raw``: against the three baselines of section 4.3.2,
where the table has them. ``accuracy`` and ``target``: differences to the lossless run in points.
Tables 4.3 to 4.6 compare the drift of two networks under settings of the split.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from mvc.errors import WrongUsage
from mvc.pipelines.table import PRESETS

from ..data import Dataset
from ..experiment import Report, Row
from ..networks import recipe_for
from .measure import Figures, curve_difference
from .split import Experiment, Settings
from .thesis import BASELINES, CURVES, LEARNING, MODELS, STATED, Configuration, Table

__all__ = ["compared", "curve_line", "curve_settings", "role_of", "sides", "wanted"]

_BATCHES = 150  # of the thesis's experiments
_BASES = {
    "to_zstd": "BL-GeneralCompr",
    "to_lossless": "BL-LosslessCompr",
    "to_raw": "BL-NoCompression",
}


def role_of(experiment: Experiment) -> str:
    """Which network of the thesis an experiment stands for: the conv net, or the LSTM."""
    return MODELS[experiment.recipe.recurrent]


def wanted(table: Table) -> dict[str, Configuration]:
    """Rows of the thesis, and where presets of ours are compared, these and all baselines."""
    rows = {row.name: row.configuration for row in table.rows}
    if table.ours:
        rows |= {name: BASELINES[name] for name in BASELINES if name not in rows}
        presets = [name for name in table.ours if name in PRESETS]
        rows |= {name: Configuration(name, table.interval) for name in presets}
    return rows


def compared(table: Table, experiments: Sequence[Experiment], rows: Iterable[Row]) -> Report:
    """The report of a table. A row has a ``name``, and why it is ``missing``; or ``measured``:
    figures by network and label, and ``plain``: by network, how many deltas plain numpy decoded,
    and how long it took.
    """
    by_name = {row["name"]: row for row in rows}
    measured = {name: row["measured"] for name, row in by_name.items() if "measured" in row}
    stated = {row.name: row.stated for row in table.rows}
    first = table.rows[0]
    comparable = first.configuration == BASELINES["BL-GeneralCompr"]
    lines = []
    for name, configuration in wanted(table).items():
        text = PRESETS.get(configuration.pipeline, configuration.pipeline)
        same = STATED.get(Configuration(text, configuration.interval), {}) if comparable else {}
        cells = {role: _cell(name, role, measured, first.name) for role in measured.get(name, {})}
        lines.append({
            "name": name, "pipeline": text, "interval": configuration.interval, "cells": cells,
            "stated": stated.get(name) or same, "missing": by_name[name].get("missing"),
        })  # fmt: skip
    setting: dict[str, list[Any]] = {}
    for experiment in experiments:
        setting.setdefault(role_of(experiment), []).append(experiment.parameters)
    known = next(iter(measured.values()))
    return {
        "number": table.number,
        "title": table.title,
        "lines": lines,
        "setting": setting,
        "learning": {role: _learned(known[role]) for role in setting},
        "learning_stated": {role: LEARNING[role] for role in setting},
        "plain": next((row["plain"] for row in by_name.values() if "plain" in row), {}),
    }


Measured = Mapping[str, Mapping[str, Sequence[Figures]]]
"""By the name of a row, by network, for each label."""


def _cell(name: str, role: str, measured: Measured, first: str) -> dict[str, list[float]]:
    own = measured[name][role]

    def ratio(baseline: str) -> list[float]:
        pairs = zip(measured[baseline][role] if baseline in measured else (), own, strict=False)
        return [base["folder"] / one["folder"] for base, one in pairs]

    same = ("save", "save_max", "load", "load_max", "saved", "folder")
    return {
        "ratio": ratio(first),
        **{each: ratio(baseline) for each, baseline in _BASES.items()},
        "accuracy": [100 * (one["accuracy"] - one["lossless"]) for one in own],
        "target": [100 * (one["target"] - one["lossless_target"]) for one in own],
        **{each: [one[each] for one in own] for each in same},
        "delta_bytes": [one["bytes"]["delta"] for one in own],
        "full_bytes": [one["bytes"]["full"] for one in own],
        "other_bytes": [
            one["folder"] - one["bytes"]["delta"] - one["bytes"]["full"] for one in own
        ],
    }


def _learned(figures: Sequence[Figures]) -> tuple[float, float]:
    mean, longest = ([one[name] for one in figures] for name in ("learn", "learn_max"))
    return statistics.fmean(mean), statistics.fmean(longest)


def sides(number: str, data: Sequence[Dataset], settings: Settings) -> dict[str, Any]:
    """By network its data and settings: those for images and for texts, or for images alone the
    default and one that reads them row by row. WrongUsage for other data, and if ``settings`` name
    a network.
    """
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
        other = by_kind["texts"], settings
    else:
        other = images, replace(settings, model="rows")
    return dict(zip(MODELS, ((images, settings), other), strict=True))


def curve_settings(
    number: str, data: Sequence[Dataset], settings: Settings
) -> list[dict[str, tuple[Dataset, Settings]]]:
    """For each cell of a table, by network its data and settings.

    Settings that the table leaves open are those of ``settings``, and the same in every row.
    """
    cells = CURVES[number]["cells"]
    rows = {
        role: [(dataset, row) for row in _rows(dataset, own, [cell[side] for cell in cells])]
        for side, (role, (dataset, own)) in enumerate(sides(number, data, settings).items())
    }
    return [{role: rows[role][position] for role in MODELS} for position in range(len(cells))]


def _rows(data: Dataset, settings: Settings, given: Sequence[Mapping[str, Any]]) -> list[Settings]:
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


def curve_line(
    number: str,
    position: int,
    networks: Mapping[str, tuple[Dataset, Settings]],
    curves: Mapping[str, Sequence[Sequence[float]]],
) -> dict[str, Any]:
    """A cell of the thesis and how far apart the curves of our two networks are, label by label."""
    *settings, stated = CURVES[number]["cells"][position]
    own = {
        role: {name: getattr(networks[role][1], name) for name in names}
        for role, names in zip(MODELS, settings, strict=True)
    }
    return {**own, "stated": stated, "difference": curve_difference(*curves.values())}
