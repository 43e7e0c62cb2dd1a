"""Means over seeds with intervals, as JSON, Markdown and a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from mvc.dataclasses import dataclass
from mvc.errors import BadModelFile, UnknownPath
from mvc.evaluation.common.render import grid, picture, pyplot
from mvc.evaluation.common.results import read_result
from mvc.evaluation.distributed.thesis import REASONS, SETTINGS, TABLES
from mvc.io.files import FileSystem

__all__ = ["Report", "appendix", "markdown", "plane", "read_report", "report_bytes", "row_of"]

_SCHEMA = "mvc.evaluation.fgm/1"
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # two-sided 95 %
_MEANS = (
    *("accuracy", "cross_entropy", "legacy", "bytes", "up", "down", "rounds", "subrounds"),
    *("balances", "ticks", "accuracy_new", "accuracy_known", "quiet_rounds", "ramp_rounds"),
)


@dataclass(frozen=True)
class Report:
    """``rows``: plain values of each setting, made by ``row_of``."""

    title: str
    about: Mapping[str, Any]
    rows: tuple[dict[str, Any], ...]


def row_of(runs: Sequence[Mapping[str, Any]], tuned: Sequence[float]) -> dict[str, Any]:
    """Means of the runs of a setting, with half the width of their 95 % intervals."""
    first = runs[0]
    row: dict[str, Any] = {
        "setting": first["setting"],
        "workers": first["workers"],
        "parameters": first["parameters"],
        "rate": first["rate"],
        "rates": list(tuned),
        "seeds": len(runs),
        "threshold": first.get("threshold", ""),
        "curve": first.get("curve", []),
    }
    if lost := sum(run.get("lost_workers", 0) for run in runs):
        row["lost_workers"] = lost
    for name in _MEANS:
        values = [float(run[name]) for run in runs if name in run]
        if len(values) == len(runs):
            row[name] = fmean(values)
            row[f"{name}_interval"] = _interval(values)
    return row


def _interval(values: Sequence[float]) -> float:
    if len(values) < 2:
        return math.nan
    freedom = len(values) - 1
    factor = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 2.1
    return factor * stdev(values) / math.sqrt(len(values))


def report_bytes(report: Report) -> bytes:
    """The report as JSON."""
    values = {"title": report.title, "about": dict(report.about), "rows": list(report.rows)}
    return json.dumps({"schema": _SCHEMA, **values}, indent=1).encode()


def read_report(fs: FileSystem, file: Path) -> Report:
    """What ``report_bytes`` made. Raises UnknownPath and BadModelFile."""
    found = read_result(fs, file)
    if found is None:
        raise UnknownPath(f"there is no {file}")
    try:
        rows = tuple(dict(row) for row in found["rows"])
        if found["schema"] == _SCHEMA and all("setting" in row for row in rows):
            return Report(str(found["title"]), dict(found["about"]), rows)
    except (KeyError, TypeError, ValueError):
        pass
    raise BadModelFile(f"{file} is no report of {_SCHEMA}")


def markdown(report: Report) -> str:
    """The report as a table, with thresholds in all three units below it."""
    drift = any("accuracy_new" in row for row in report.rows)
    lines = [f"## {report.title}", "", ", ".join(f"{k} {v}" for k, v in report.about.items()), ""]
    titles = ["protocol", "k", "rate", "rounds", "sub-rounds", "balances", "kB up", "kB down"]
    titles += ["fewer than sync", "accuracy", "cross-entropy", "100-MSE"]
    if drift:
        titles += ["new class", "other classes", "rounds in the ramp / before"]
    base = {row["workers"]: row["bytes"] for row in report.rows if row["setting"] == "sync"}
    lines.append(grid(titles, (_line(row, base.get(row["workers"]), drift) for row in report.rows)))
    lines += ["", "Intervals are 95 %, over seeds. Thresholds at the first model of seed 0:", ""]
    for row in report.rows:
        if row["threshold"]:
            lines.append(f"- {row['setting']}, k = {row['workers']}: {row['threshold']}")
    return "\n".join([*lines, *_losses(report)]) + "\n"


def _losses(report: Report) -> list[str]:
    """Which figures are not those of all workers."""
    lost = [
        f"- {row['setting']}, k = {row['workers']}: {row['lost_workers']} of "
        f"{row['workers'] * row['seeds']}, over all seeds"
        for row in report.rows
        if row.get("lost_workers")
    ]
    return (
        ["", "Workers that were removed, as their models were not finite:", "", *lost]
        if lost
        else []
    )


def _line(row: Mapping[str, Any], base: float | None, drift: bool) -> list[str]:
    def mean(name: str, digits: int) -> str:
        if name not in row:
            return ""
        half = row[f"{name}_interval"]
        return f"{row[name]:.{digits}f}" + ("" if math.isnan(half) else f" ± {half:.{digits}f}")

    fewer = f"{base / row['bytes']:.1f} x" if base and row["bytes"] else ""
    cells = [row["setting"], str(row["workers"]), f"{row['rate']:g}"]
    cells += [mean("rounds", 1), mean("subrounds", 1), mean("balances", 1)]
    cells += [f"{row[name] / 1000:,.0f}" if name in row else "" for name in ("up", "down")]
    cells += [fewer, mean("accuracy", 2), mean("cross_entropy", 4), mean("legacy", 2)]
    if drift:
        ratio = ""
        if row.get("quiet_rounds"):
            ratio = f"{row['ramp_rounds'] / row['quiet_rounds']:.1f}"
        cells += [mean("accuracy_new", 1), mean("accuracy_known", 1), ratio]
    return cells


def appendix(report: Report) -> str:
    """Our rows of the appendix's settings beside the thesis's, and why they differ."""
    ours = {(row["setting"], row["workers"], row["batch_size"]): row for row in report.rows}
    lines = [f"## {report.title}", ""]
    for number, table in TABLES.items():
        rows = list(_beside(table.protocol, table.safe, table.rows, ours))
        if any(row[-1] for row in rows):
            lines += [f"Table {number}: {table.data}, {table.protocol}, {table.safe}", ""]
            columns = ["T", "b", "k", "rounds", "accuracy", "bytes", "2k models a round"]
            columns += ["our rounds", "our accuracy", "our bytes"]
            lines += [grid(columns, rows), ""]
    lines += ["Why the rows of the thesis cannot be reproduced:", ""]
    lines += [f"- {reason}" for reason in REASONS]
    return "\n".join([*lines, *_losses(report)]) + "\n"


def _beside(
    protocol: str, safe: str, rows: Sequence[tuple[int, int, float, int]], ours: Mapping[Any, Any]
) -> Iterator[tuple[str, ...]]:
    for (threshold, batch, workers), (rounds, _, accuracy, sent) in zip(
        SETTINGS, rows, strict=True
    ):
        found = ours.get((f"{protocol}:{safe}@T{threshold:g}", workers, batch))
        own = ("", "", "")
        if found is not None:
            own = f"{found['rounds']:.0f}", f"{found['accuracy']:.2f}", f"{found['bytes']:,.0f}"
        least = f"{sent / (2 * workers * 4 * 3041 * rounds):.2f}" if sent < 1e9 else ""
        stated = (f"{threshold:g}", str(batch), str(workers), str(rounds), f"{accuracy:.2f}")
        yield (*stated, f"{sent:,}", least, *own)


def plane(report: Report, form: str = "png") -> bytes:
    """Bytes against accuracy, one point for each setting; and accuracy as bytes are sent."""
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(15, 6), layout="constrained")
    for number, row in enumerate(report.rows):
        color, label = f"C{number % 10}", f"{row['setting']}, k = {row['workers']}"
        if not row["bytes"]:
            left.axhline(row["accuracy"], color="black", linewidth=0.8, label=label)
            continue
        half = row["accuracy_interval"]
        left.errorbar(
            row["bytes"] / 1000, row["accuracy"], 0 if math.isnan(half) else half,
            fmt="os^v"[number // 10 % 4], color=color, label=label,
        )  # fmt: skip
        points = row.get("curve", [])
        sent = [point["bytes"] / 1000 for point in points]
        right.plot(sent, [point["accuracy"] for point in points], color=color, label=label)
    left.set(xscale="log", xlabel="kB sent", ylabel="accuracy (%)", title=report.title)
    right.set(xscale="log", xlabel="kB sent so far", ylabel="accuracy (%), seed 0")
    for panel in (left, right):
        panel.grid(alpha=0.3)
    left.legend(fontsize=6)
    return picture(figure, form)
