"""Means over seeds with intervals, pairs of protocols, and the thesis's rows beside ours."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ..render import figure, grid

__all__ = ["SETTINGS", "THESIS", "markdown", "pairs", "picture", "row_of"]

THESIS = json.loads(Path(__file__).with_name("thesis.json").read_text())
SETTINGS = tuple((threshold, batch, workers) for threshold, batch, workers in THESIS["settings"])
"""Threshold T, batch size, workers: those of every table of the thesis."""

Report = Mapping[str, Any]
Row = Mapping[str, Any]
_STUDENT = (
    *(12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23),
    *(2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09, 2.09),
    *(2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05, 2.04),
)  # two-sided 95 %, by degrees of freedom
_QUALITY = ("accuracy", "cross_entropy", "legacy", "accuracy_new", "accuracy_known")
_MEANS = (
    *_QUALITY,
    *("bytes", "up", "down", "rounds", "subrounds", "balances", "ticks"),
    *("quiet_rounds", "quiet_ticks", "ramp_rounds", "ramp_ticks"),
)
_DRIFT = (
    "Rounds before the class comes and in the ramp are sums over seeds, in so many updates of a",
    "worker; the average at the end of the stream is not counted. The rate in the ramp is a",
    "multiple of that before, with an exact 95 % interval as if rounds were a Poisson process.",
)
_PAIRS = (
    "",
    "Pairs of runs with equal seeds: how many times the bytes of the first the other sends, and by",
    "how many points the first's accuracy is higher.",
)
_NEAR = 0.5  # points of accuracy below central training


def row_of(runs: Sequence[Mapping[str, Any]], tried: Sequence[float]) -> dict[str, Any]:
    """Means of the runs of a setting, with half the width of their 95 % intervals.

    ``tried``: the learning rates among which the runs' was chosen. If a run has diverged, the row
    has no figures of quality.
    """
    first = runs[0]
    diverged = [not math.isfinite(run.get("cross_entropy", 0)) for run in runs]
    row: dict[str, Any] = {
        "setting": first["setting"],
        "workers": first["workers"],
        "parameters": first["parameters"],
        "rate": first["rate"],
        "rates": list(tried),
        "seeds": len(runs),
        "threshold": first.get("threshold", ""),
        "curve": [] if any(diverged) else first.get("curve", []),
    }
    if any(diverged):
        row["diverged"] = sum(diverged)
    row["runs"] = {"seed": [run.get("seed", at) for at, run in enumerate(runs)]}
    for name in _MEANS:
        if any(name not in run for run in runs) or (any(diverged) and name in _QUALITY):
            continue
        values = [float(run[name]) for run in runs]
        row["runs"][name] = values
        row[name], row[f"{name}_interval"] = _mean(values)
    return row


def _mean(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and half the width of Student's 95 % interval, which one value does not have."""
    if len(values) < 2:
        return fmean(values), None
    factor = _STUDENT[min(len(values) - 1, len(_STUDENT)) - 1]
    return fmean(values), factor * stdev(values) / math.sqrt(len(values))


def pairs(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Bytes of other protocols as multiples of those of FGM or of a codec, seed by seed.

    ``ratios`` are of runs with equal seeds, none for central training, which sends nothing;
    ``accuracy`` is how much higher the first one's is, in points. Rows without figures of single
    runs have no pairs.
    """
    compared = []
    for row in rows:
        for other, why in _others(row, rows):
            runs, theirs = row["runs"], other["runs"]
            both = zip(theirs["bytes"], runs["bytes"], strict=True)
            ratios = [a / b for a, b in both] if other["bytes"] else []
            gains = [a - b for a, b in zip(runs["accuracy"], theirs["accuracy"], strict=True)]
            pair = {name: row[name] for name in ("setting", "workers", "rate")}
            pair |= {"against": other["setting"], "against_rate": other["rate"], "why": why}
            pair |= {"seeds": runs["seed"], "ratios": ratios}
            if ratios:
                pair["ratio"], pair["ratio_interval"] = _mean(ratios)
            pair["accuracy"], pair["accuracy_interval"] = _mean(gains)
            compared.append(pair)
    return compared


def _others(
    row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """With which rows one is compared, and why."""
    alike = {
        each["setting"]: each
        for each in rows
        if each.get("batch_size") == row.get("batch_size")
        and each["workers"] == row["workers"]
        and not each.get("diverged")
        and each.get("runs", {}).get("seed") == row.get("runs", {}).get("seed", ())
    }
    if row["setting"] not in alike or not row["bytes"]:
        return
    plain, plus, codec = row["setting"].partition("+")
    head, _, number = plain.partition("@")
    name = head.partition(":")[0]
    if codec and plain in alike:
        yield alike[plain], "no codec"
    if not name.startswith("fgm"):
        return
    simpler = ["gm", "gm-full", "gm-hedge"] if name == "fgm" else ["fgm", "gm-full"]
    safe = head.removeprefix("fgm") if name == "fgm" else ""
    at = f"@{number}" if number else ""
    for base in simpler:
        other = f"{base}{safe}{at}{plus}{codec}"
        if other in alike:
            yield alike[other], "equal threshold"
    if "sync" in alike and not codec:
        yield alike["sync"], "synchronous"
    central = alike.get("central")
    if central and not codec:
        yield central, "accuracy"
        periods = [
            each
            for setting, each in alike.items()
            if setting.startswith("local-sgd@")
            and "+" not in setting
            and each["accuracy"] >= central["accuracy"] - _NEAR
        ]
        if periods:
            yield min(periods, key=lambda each: each["bytes"]), "best period"


def markdown(report: Report) -> str:
    """The report as a table, with pairs of protocols and thresholds in all three units below it;
    of the appendix's settings the thesis's rows beside ours.
    """
    about = ", ".join(f"{name} {value}" for name, value in report["about"].items())
    body = _appendix if "beside" in report["about"] else _compared
    lines = [f"## {report['title']}", "", about, "", *body(report)]
    return "\n".join(lines) + "\n"


def _compared(report: Report) -> Iterator[str]:
    rows = report["rows"]
    drift = any("accuracy_new" in row for row in rows)
    titles = ["protocol", "k", "rate", "rounds", "sub-rounds", "balances", "kB up", "kB down"]
    titles += ["fewer than sync", "accuracy", "cross-entropy", "100-MSE"]
    if drift:
        titles += ["new class", "other classes", "rounds before", "in the ramp", "rate of rounds"]
    base = {row["workers"]: row for row in rows if row["setting"] == "sync"}
    yield grid(titles, (_line(row, base.get(row["workers"]), drift) for row in rows))
    yield from ("", "Figures are means over seeds with 95 % intervals (Student's t).")
    if drift:
        yield from _DRIFT
    if compared := pairs(rows):
        titles = ["first", "k", "rate", "other", "its rate", "chosen for", "bytes", "accuracy"]
        yield from (*_PAIRS, "", grid(titles, map(_pair, compared)))
    if thresholds := [row for row in rows if row["threshold"]]:
        yield from ("", "Thresholds at the first model of seed 0:", "")
    for row in thresholds:
        yield f"- {row['setting']}, k = {row['workers']}: {row['threshold']}"
    yield from _edges(report)


def _edges(report: Report) -> list[str]:
    """Where a rate that was not tried might be better."""
    edges = [
        f"- {row['setting']}, k = {row['workers']}: {row['rate']:g} of "
        + ", ".join(f"{rate:g}" for rate in row["rates"])
        for row in report["rows"]
        if len(row["rates"]) > 1 and row["rate"] in {min(row["rates"]), max(row["rates"])}
    ]
    title = "Rates at the edge of those that were tried: one further out might serve better."
    return ["", title, "", *edges] if edges else []


def _line(row: Mapping[str, Any], base: Row | None, drift: bool) -> list[str]:
    def mean(name: str, digits: int) -> str:
        if "diverged" in row and name == "accuracy":
            return f"diverged ({row['diverged']} of {row['seeds']})"
        return _cell(row[name], row.get(f"{name}_interval"), digits) if name in row else ""

    fewer = ""
    if base and row["bytes"] and not {"diverged"} & {*base, *row}:
        ratio, half = base["bytes"] / row["bytes"], None
        if base.get("runs", {}).get("seed", 0) == row.get("runs", {}).get("seed", 1):
            both = zip(base["runs"]["bytes"], row["runs"]["bytes"], strict=True)
            ratio, half = _mean([a / b for a, b in both])
        fewer = _cell(ratio, half, 1) + " x"
    cells = [row["setting"], str(row["workers"]), f"{row['rate']:g}"]
    cells += [mean("rounds", 1), mean("subrounds", 1), mean("balances", 1)]
    cells += [f"{row[name] / 1000:,.0f}" if name in row else "" for name in ("up", "down")]
    cells += [fewer, mean("accuracy", 2), mean("cross_entropy", 4), mean("legacy", 2)]
    if drift:
        cells += [mean("accuracy_new", 1), mean("accuracy_known", 1), *_rounds(row)]
    return cells


def _cell(value: float, half: float | None, digits: int) -> str:
    known = half is not None and not math.isnan(half)
    return f"{value:.{digits}f}" + (f" ± {half:.{digits}f}" if known else "")


def _pair(pair: Mapping[str, Any]) -> list[str]:
    gain = _cell(pair["accuracy"], pair["accuracy_interval"], 2)
    return [
        *(pair["setting"], str(pair["workers"]), f"{pair['rate']:g}"),
        *(pair["against"], f"{pair['against_rate']:g}", pair["why"]),
        _cell(pair["ratio"], pair["ratio_interval"], 2) if pair["ratios"] else "",
        gain if gain.startswith("-") else f"+{gain}",
    ]


def _rounds(row: Mapping[str, Any]) -> list[str]:
    """Rounds before the class comes and in the ramp, and the ratio of their rates."""
    if not row.get("quiet_ticks") or not row.get("ramp_ticks"):
        return ["", "", ""]
    names = ("quiet_rounds", "quiet_ticks", "ramp_rounds", "ramp_ticks")
    before, quiet, after, ramp = (round(row[name] * row["seeds"]) for name in names)
    low, high = (share / (1 - share) if share < 1 else math.inf for share in _shares(after, before))
    scale = quiet / ramp
    ratio = f"{after / before * scale:.1f}" if before else "∞"
    most = f"{high * scale:.1f}" if high < math.inf else "∞"
    cell = f"{ratio} ({low * scale:.1f} to {most})" if before + after else ""
    return [f"{before} in {quiet:,}", f"{after} in {ramp:,}", cell]


def _shares(hits: int, others: int) -> tuple[float, float]:
    """The exact 95 % interval (Clopper and Pearson) of a share of which this many were seen."""

    def least(count: int, total: int) -> float:
        """The share at which so many hits or more have a probability of 2.5 %."""
        low, high = 0.0, 1.0
        ways = [_log_ways(total, seen) for seen in range(count, total + 1)]
        for _ in range(50):
            share = (low + high) / 2
            hit, miss = math.log(share), math.log1p(-share)
            tail = sum(
                math.exp(each + seen * hit + (total - seen) * miss)
                for seen, each in enumerate(ways, start=count)
            )
            low, high = (share, high) if tail < 0.025 else (low, share)
        return low

    total = hits + others
    return least(hits, total) if hits else 0.0, 1 - least(others, total) if others else 1.0


def _log_ways(total: int, chosen: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)


def _appendix(report: Report) -> Iterator[str]:
    """Our rows of the appendix's settings beside the thesis's, and why they differ.

    Texts stand beside its reviews (AFFR), everything else beside its crimes (SFCC).
    """
    ours = _by_setting(report)
    for number, table in THESIS["tables"].items():
        if table["data"] != report["about"]["beside"]:
            continue
        rows = list(_beside(table, ours))
        if any(row[-1] for row in rows):
            yield from (
                f"Table {number}: {table['data']}, {table['protocol']}, {table['safe']}",
                "",
            )
            columns = ["T", "b", "k", "rounds", "100-MSE", "bytes", "2k models a round"]
            columns += ["our rounds", "our accuracy", "our 100-MSE", "our bytes"]
            yield from (grid(columns, rows), "")
    yield from ("Why the rows of the thesis cannot be reproduced:", "")
    yield from (f"- {reason}" for reason in THESIS["reasons"])


def _by_setting(report: Report) -> dict[tuple[str, int, int], Row]:
    return {(row["setting"], row["workers"], row["batch_size"]): row for row in report["rows"]}


def _beside(table: Row, ours: Mapping[Any, Row]) -> Iterator[tuple[str, ...]]:
    parameters = THESIS["parameters"][table["data"]]
    for (threshold, batch, workers), (rounds, _, quality, sent) in zip(
        SETTINGS, table["rows"], strict=True
    ):
        name = f"{table['protocol']}:{table['safe']}@T{threshold:g}"
        row = ours.get((name, workers, batch))
        own: tuple[str, ...] = ("", "", "", "")
        if row is not None:
            good = [f"{row[name]:.2f}" if name in row else "diverged" for name in _QUALITY[:3:2]]
            own = f"{row['rounds']:.0f}", *good, f"{row['bytes']:,.0f}"
        least = f"{sent / (2 * workers * 4 * parameters * rounds):.2f}"
        stated = (f"{threshold:g}", str(batch), str(workers), str(rounds), f"{quality:.2f}")
        yield (*stated, f"{sent:,}", least, *own)


_SWEEPS = ("threshold T", "batch size", "workers")
_SWEPT = (slice(0, 7), slice(7, 13), slice(13, 19))
_DRAWN = {"accuracy": "accuracy (%)", "rounds": "rounds", "bytes": "bytes sent"}


def picture(report: Report) -> Any:
    """Bytes against accuracy; of the appendix's settings what the thesis's figures show."""
    return (_sweeps if "beside" in report["about"] else _plane)(report)


def _sweeps(report: Report) -> Any:
    """Accuracy, rounds and bytes over thresholds, batch sizes and workers, as in the thesis's
    figures 4.3 to 4.12.
    """
    ours = _by_setting(report)
    names = dict.fromkeys(row["setting"].partition("@")[0] for row in report["rows"])
    drawing, panels = figure(3, 3, (12, 9))
    for column, (label, part) in enumerate(zip(_SWEEPS, _SWEPT, strict=True)):
        for line, (metric, title) in enumerate(_DRAWN.items()):
            panel = panels[line][column]
            for number, name in enumerate(names):
                points = [
                    (setting[(0, 1, 2)[column]], row[metric])
                    for setting in SETTINGS[part]
                    if (row := ours.get((f"{name}@T{setting[0]:g}", setting[2], setting[1])))
                    and metric in row
                ]
                at, values = zip(*points, strict=True) if points else ((), ())
                panel.plot(at, values, marker="osv^"[number % 4], label=name, alpha=0.8)
            panel.set(xlabel=label, ylabel=title if not column else "")
            if column:
                panel.set_xscale("log", base=2)
            if line:
                panel.set_yscale("log")
    panels[0][0].legend(fontsize=8)
    drawing.suptitle(report["title"])
    return drawing


def _plane(report: Report) -> Any:
    """One point for each setting; and accuracy as bytes are sent."""
    drawing, ((left, right),) = figure(1, 2, (15, 6))
    for number, row in enumerate(report["rows"]):
        color, label = f"C{number % 10}", f"{row['setting']}, k = {row['workers']}"
        if "diverged" in row:
            continue
        if not row["bytes"]:
            left.axhline(row["accuracy"], color="black", linewidth=0.8, label=label)
            continue
        half = row.get("accuracy_interval")
        left.errorbar(
            row["bytes"] / 1000, row["accuracy"], 0 if half is None or math.isnan(half) else half,
            fmt="os^v"[number // 10 % 4], color=color, label=label,
        )  # fmt: skip
        points = row.get("curve", [])
        sent = [point["bytes"] / 1000 for point in points]
        right.plot(sent, [point["accuracy"] for point in points], color=color, label=label)
    left.set(xscale="log", xlabel="kB sent", ylabel="accuracy (%)", title=report["title"])
    right.set(xscale="log", xlabel="kB sent so far", ylabel="accuracy (%), seed 0")
    drawing.legend(*left.get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    return drawing
