"""Tables 4.3 to 4.6: how alike the drift of two networks is, for settings of the split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mvc.errors import WrongUsage
from mvc.evaluation.common.data import Dataset
from mvc.evaluation.drift.experiment import Settings
from mvc.evaluation.drift.measure import Results
from mvc.evaluation.drift.render import grid
from mvc.evaluation.drift.scoring import curve_difference
from mvc.evaluation.drift.thesis.curves import CURVES
from mvc.evaluation.drift.thesis.tables import MODELS

__all__ = ["CurveLine", "Curves", "compare_curves", "curves_markdown", "improvements"]

Run = Callable[[Dataset, Settings], Sequence[Results]]
"""Recorded streams of a data set under settings, one for each label."""


@dataclass(frozen=True)
class CurveLine:
    """Settings of both networks, the difference of their curves, and the thesis's.

    ``conv`` and ``lstm`` stand for the networks for images and texts.
    """

    conv: Mapping[str, Any]
    lstm: Mapping[str, Any]
    difference: float
    stated: float


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
            [results.lossless().last for results in run(by_kind[kind], _settings(settings, own))]
            for kind, own in (("images", cell.conv), ("texts", cell.lstm))
        ]
        lines.append(CurveLine(cell.conv, cell.lstm, curve_difference(*curves), cell.stated))
    return Curves(number, title, tuple(lines))


def _settings(settings: Settings, own: Mapping[str, Any]) -> Settings:
    return replace(settings, model=None, **own)


def improvements(curves: Sequence[Curves]) -> list[tuple[str, float, float, float, float]]:
    """Table 4.6: of each setting, smallest and largest difference, ours and the thesis's."""
    return [
        (
            one.title,
            min(line.difference for line in one.lines),
            max(line.difference for line in one.lines),
            min(line.stated for line in one.lines),
            max(line.stated for line in one.lines),
        )
        for one in curves
    ]


def curves_markdown(curves: Sequence[Curves], *, summary: bool = False) -> str:
    """The tables, or with ``summary`` what they come to (table 4.6)."""
    parts = []
    if summary:
        parts.append("# Table 4.6: what each setting of the split is good for\n")
        titles = ("setting", "least", "most", "most / least", "thesis least", "thesis most")
        parts.append(
            grid(
                titles,
                (
                    (title, f"{low:.3f}", f"{high:.3f}", _times(high, low), f"{a:.3f}", f"{b:.3f}")
                    for title, low, high, a, b in improvements(curves)
                ),
            )
        )
    else:
        for one in curves:
            parts.append(f"# Table {one.number}: {one.title}\n")
            names = list(one.lines[0].conv)
            settings = (f"{role} {name}" for role in MODELS for name in names)
            rows = (_cells(line, names) for line in one.lines)
            parts.append(grid((*settings, "ours", "thesis"), rows))
    parts.append(
        "\nMean difference of the normalised accuracy on the last batch between the networks "
        "for images and texts (NLAccDiff). Data and frameworks are not the thesis's.\n"
    )
    return "\n".join(parts)


def _cells(line: CurveLine, names: Sequence[str]) -> tuple[str, ...]:
    own = (str(settings[name]) for settings in (line.conv, line.lstm) for name in names)
    return (*own, f"{line.difference:.3f}", f"{line.stated:.3f}")


def _times(high: float, low: float) -> str:
    return f"{high / low:.2f}" if low else ""
