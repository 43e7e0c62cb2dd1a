"""Tables as Markdown, with the limits of their comparison; plots as PNG or SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from mvc.evaluation.common.render import grid, picture, pyplot
from mvc.evaluation.drift.measure import normalised
from mvc.evaluation.drift.tables import (
    Cell,
    Compared,
    CurveLine,
    Curves,
    CurveTable,
    Learning,
    Line,
    Made,
)
from mvc.evaluation.drift.thesis import IMPROVEMENTS, MODELS, Figures

__all__ = ["LIMITS", "accuracy_curves", "markdown", "scatter"]

LIMITS = (
    "Seconds of the thesis are from another machine (GeForce GTX 970, i7-4790K, Windows, "
    "TensorFlow 2.10) and compare only with each other, as ours do.",
    "The thesis trains with TensorFlow on a GPU, where equal runs differ by about 0.04 points "
    "of accuracy; here every pipeline sees the same recorded weights, so differences are exact.",
    "Saving is durable here: processing, commit and flush to disk. Loading is checked against "
    "hashes.",
)

_RATIO = (
    "ratio: bytes of the folder of `{}` to bytes of this one's. R: versions between reset points."
)
_MEANINGS = (
    "accuracy: prequential accuracy of the deployed weights against the lossless run, in "
    "percentage points; the thesis prints it under 'Last Accuracy'.",
    "Of several labels: the mean, and in brackets each of them.",
    "save, load: seconds a batch, mean / longest; load is of one version, from disk. x learning: "
    "mean seconds to save a batch by mean seconds to learn one.",
    "versions: how many were saved; bytes of deltas, of reset points (full), and of all else: "
    "manifests, headers, journal, index.",
)
_FRONTIER = (
    "frontier lines: bytes of deltas beside those of `vsol-...-fast` or `-slow` of the same "
    "bound, whichever has fewer; their ratio says nothing where accuracies differ."
)

_TITLES = (
    *("configuration", "R", "ratio", "thesis", "accuracy", "thesis"),
    *("versions", "deltas MB", "full MB", "other MB"),
)
_SECONDS = (
    *("configuration", "save s", "x learning", "thesis save s", "x learning"),
    *("load s", "thesis load s"),
)
_BASELINES = ("configuration", "to zstd", "to lossless, R=28", "to raw")
_NAMED = 16  # points that still find room for their names


def markdown(made: Made) -> str:
    """The whole table, then what to know when reading it."""
    if isinstance(made, Learning):
        return _learning(made)
    if isinstance(made, CurveTable):
        return _curve_table(made)
    parts = [f"# Table {made.number}: {made.title}\n"]
    if made.origin:
        parts.append(made.origin + "\n")
    for role in made.setting:
        parts.extend(_part(made, role))
    meanings = [_RATIO.format(made.lines[0].name), *_MEANINGS]
    if any(line.name.startswith("frontier-") for line in made.lines):
        meanings.append(_FRONTIER)
    parts.append("## How to read it\n")
    parts.append("".join(f"- {line}\n" for line in (*meanings, *LIMITS)))
    return "\n".join(parts)


def _part(compared: Compared, role: str) -> Iterator[str]:
    settings = compared.setting[role]
    first = settings[0]
    labels = ", ".join(str(setting["label"]) for setting in settings)
    yield (
        f"## {first['model']} on {first['data']}\n\n"
        f"Labels {labels}; {first['epochs']} epochs offline, then {first['batches']} batches of "
        f"{first['batch_size']}.\n"
    )
    if first["model"] != role:
        yield f"The thesis's columns are those of its {role} net: another net, other data.\n"
    lines = [line for line in compared.lines if role in line.cells or line.missing]
    yield grid(_TITLES, (_row(line, role) for line in lines))
    yield ""
    known = [line for line in lines if line.cells]
    if any(line.cells[role].save for line in known):
        yield (
            f"One batch takes {_pair(*compared.learning[role])} s to learn "
            f"(thesis, its {role}: {_pair(*compared.learning_stated[role])} s).\n"
        )
        yield grid(_SECONDS, (_seconds(compared, line, role) for line in known))
        yield ""
    if role in compared.plain:
        deltas, seconds = compared.plain[role]
        yield (
            f"{deltas} deltas of `vsol` decoded one after the other in plain numpy: "
            f"{seconds:.3f} s.\n"
        )
    if any(line.cells[role].to_raw for line in known):
        yield grid(_BASELINES, (_baselines(line, role) for line in known))
        yield ""
    if beside := "".join(_frontier(compared, role)):
        yield beside
    yield "Pipelines:\n"
    yield "\n".join(f"- {line.name}: `{line.pipeline}`" for line in lines) + "\n"


def _row(line: Line, role: str) -> tuple[str, ...]:
    stated = line.stated.get(role, Figures())
    if line.missing is not None:
        return (f"{line.name} ({line.missing})", str(line.interval), *("",) * 8)
    cell = line.cells[role]
    return (
        *(line.name, str(line.interval)),
        *(_each(cell.ratio, _ratio), _number(stated.ratio)),
        *(_each(cell.accuracy, _points), _number(stated.accuracy, "+.2f")),
        _each(cell.saved, "{:.4g}".format),
        *(_each(cell.delta_bytes, _megabytes), _megabytes_of(cell, "full_bytes")),
        _megabytes_of(cell, "other_bytes"),
    )


def _seconds(compared: Compared, line: Line, role: str) -> tuple[str, ...]:
    cell, stated = line.cells[role], line.stated.get(role, Figures())
    save = cell.mean("save")
    return (
        line.name,
        _pair(save, cell.mean("save_max")),
        "" if save is None else f"{save / compared.learning[role][0]:.2f}",
        _pair(stated.save, stated.save_max),
        "" if stated.save is None else f"{stated.save / compared.learning_stated[role][0]:.2f}",
        _pair(cell.mean("load"), cell.mean("load_max")),
        _pair(stated.load, stated.load_max),
    )


def _baselines(line: Line, role: str) -> tuple[str, ...]:
    cell = line.cells[role]
    return (line.name, *(_number(cell.mean(n)) for n in ("to_zstd", "to_lossless", "to_raw")))


def _frontier(compared: Compared, role: str) -> Iterator[str]:
    """Each of our lossy presets beside the better one of the thesis's for the same bound."""
    cells = {line.name: line.cells[role] for line in compared.lines if role in line.cells}
    deltas = {name: fmean(cell.delta_bytes) for name, cell in cells.items() if cell.delta_bytes}
    for name in deltas:
        bound = name.removeprefix("frontier-")
        base = bound.removesuffix("-slow")
        rivals = [r for r in (f"vsol-{base}-fast", f"vsol-{base}-slow") if r in deltas]
        if bound == name or not rivals:
            continue
        best = min(rivals, key=lambda rival: deltas[rival])
        beside = f"{deltas[name] / 1e3:.1f} kB of deltas, {best} none"
        if deltas[best]:  # else it found no version worth saving after the first
            beside = f"{deltas[name] / deltas[best]:.3f} x the bytes of deltas of {best}"
        points = (_points(cells[each].mean("accuracy") or 0.0) for each in (name, best))
        yield f"- {name}: {beside}, accuracy {' and '.join(points)} points\n"


def _each(values: Sequence[float], text: Callable[[float], str]) -> str:
    """The mean over labels, and each label's figure unless they print alike."""
    texts = [text(value) for value in values]
    if len(set(texts)) <= 1:
        return texts[0] if texts else ""
    return f"{text(fmean(values))} ({', '.join(texts)})"


def _megabytes_of(cell: Cell, name: str) -> str:
    size = cell.mean(name)
    return "" if size is None else _megabytes(size)


def _ratio(value: float) -> str:
    """Four digits, without zeros at the end: published ratios may have fewer."""
    return f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


def _points(value: float) -> str:
    """A difference with its sign; what rounds to nothing has a plus."""
    return f"{round(value, 3) + 0.0:+.3f}"


def _megabytes(size: float) -> str:
    """Small nets store kilobytes: these keep their digits."""
    return f"{size / 1e6:.2f}" if size >= 1e6 or not size else f"{size / 1e6:.4f}"


def _number(value: float | None, form: str = ".3f") -> str:
    return "" if value is None else format(value, form)


def _pair(mean: float | None, longest: float | None) -> str:
    return " / ".join(f"{value:.3f}" for value in (mean, longest) if value is not None)


def _learning(made: Learning) -> str:
    titles = tuple(made.rows[0])
    rows = ((name, *(f"{value:.3f}" for value in values)) for name, *values in _values(made.rows))
    table = grid(titles, rows)
    return f"# Table {made.number}: one batch of training\n\n{table}\n\n{LIMITS[0]}\n"


def _values(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Any]]:
    return (list(row.values()) for row in rows)


def _curve_table(made: CurveTable) -> str:
    """One of tables 4.3 to 4.5, or the range of their differences (table 4.6)."""
    if made.number == "4.6":
        parts = ["# Table 4.6: what each setting of the split is good for\n", _ranges(made.parts)]
    else:
        (one,) = made.parts
        names = {role: list(getattr(one.lines[0], role)) for role in MODELS}
        titles = (
            f"{one.networks[role]['model']} {name}" for role in MODELS for name in names[role]
        )
        rows = (_cells(line) for line in one.lines)
        parts = [
            f"# Table {one.number}: {one.title}\n",
            grid((*titles, "ours", "thesis"), rows),
        ]
    parts.append("")
    parts.extend(_common(one) for one in made.parts)
    parts.append(
        "\nMean difference of the normalised accuracy on the last batch between the two networks "
        "(NLAccDiff), over all pairs of labels. Data and frameworks are not the thesis's.\n"
    )
    return "\n".join(parts)


def _ranges(curves: Sequence[Curves]) -> str:
    titles = (
        *("setting", "least", "most", "most / least"),
        *("thesis least", "thesis most", "thesis"),
    )
    rows = []
    for one in sorted(curves, key=lambda one: list(IMPROVEMENTS).index(one.number)):
        least, most, percent = IMPROVEMENTS[one.number]
        ours = [line.difference for line in one.lines]
        low, high = min(ours), max(ours)
        share = f"{high / low:.0%}" if low else ""
        stated = (f"{least:.3f}", f"{most:.3f}", f"{percent}%")
        rows.append((one.title, f"{low:.3f}", f"{high:.3f}", share, *stated))
    return grid(titles, rows)


def _common(one: Curves) -> str:
    """What all rows of a table share: it is not what makes their figures differ."""
    labels = ", ".join(map(str, one.labels))
    networks = "; ".join(
        f"{own['model']} on {own['data']}, {own['epochs']} epochs, batches of "
        f"{own['batch_size']}, {own['others_offline']} offline samples of other labels"
        for own in one.networks.values()
    )
    return f"- Table {one.number}, all rows: labels {labels}; {networks}."


def _cells(line: CurveLine) -> tuple[str, ...]:
    own = (str(value) for role in MODELS for value in getattr(line, role).values())
    return (*own, f"{line.difference:.3f}", f"{line.stated:.3f}")


def scatter(compared: Compared, form: str = "png") -> bytes:
    """A picture with a row for each network: accuracy over ratio, and over bytes of deltas.

    Right and up is better. Hollow points are the thesis's own figures. The second panel
    leaves reset points out. Points have their names, or numbers in the order of the table if
    there are many. ``form`` is png or svg; equal tables make equal SVG files.
    """
    roles = list(compared.setting)
    figure, panels = pyplot().subplots(
        len(roles), 2, figsize=(16, 6 * len(roles)), squeeze=False, layout="constrained"
    )
    few = len(compared.lines) <= _NAMED
    names = [line.name if few else str(n) for n, line in enumerate(compared.lines, start=1)]
    for (whole, deltas), role in zip(panels, roles, strict=True):
        setting = compared.setting[role][0]
        lines = [each for each in zip(names, compared.lines, strict=True) if role in each[1].cells]
        cells = [(name, line.cells[role]) for name, line in lines if line.cells[role].accuracy]
        by_ratio = [(name, cell.mean("ratio"), cell) for name, cell in cells]
        by_deltas = [(name, (cell.mean("delta_bytes") or 0) / 1e6, cell) for name, cell in cells]
        for panel, points in ((whole, by_ratio), (deltas, by_deltas)):
            _points_of(panel, [(n, x, fmean(cell.accuracy)) for n, x, cell in points if x])
        for _, line in lines:
            stated = line.stated.get(role, Figures())
            if stated.ratio is not None and stated.accuracy is not None:
                whole.plot(stated.ratio, stated.accuracy, "o", color="grey", fillstyle="none")
        whole.set(
            xlabel=f"ratio to {compared.lines[0].name}",
            ylabel="accuracy against lossless, points",
            title=f"{setting['model']} on {setting['data']} (hollow: the thesis's own figures)",
        )
        deltas.set(xlabel="MB of deltas (smaller to the right)", title="without reset points")
        deltas.invert_xaxis()
    if not few:
        text = "\n".join(f"{n}  {line.name}" for n, line in enumerate(compared.lines, start=1))
        figure.text(1.005, 0.98, text, va="top", size=8)
    figure.suptitle(f"Table {compared.number}: {compared.title}")
    return picture(figure, form)


def _points_of(panel: Any, points: Sequence[tuple[str, float, float]]) -> None:
    """Points with their names; those that print at one place share a label."""
    panel.set_xscale("log")
    panel.margins(x=0.15)  # for names beside the outermost points
    panel.grid(alpha=0.3, which="both")
    places: dict[tuple[float, float], list[str]] = {}
    for name, x, y in points:
        panel.plot(x, y, "o", color="tab:blue" if "frontier" in name else "tab:grey")
        place = (float(f"{math.log10(x):.2f}"), float(f"{y:.2f}"))
        places.setdefault(place, []).append(name)
    for (x, y), names in places.items():
        text = ", ".join(names)
        panel.annotate(text, (10**x, y), xytext=(5, 4), textcoords="offset points", size=8)


def accuracy_curves(curves: Mapping[str, Sequence[float]]) -> bytes:
    """A PNG: accuracy on the last batch after each batch, as it is and normalised."""
    figure, (plain, scaled) = pyplot().subplots(1, 2, figsize=(14, 5), layout="constrained")
    for name, curve in curves.items():
        batches = range(1, len(curve) + 1)
        plain.plot(batches, curve, label=name)
        scaled.plot(batches, normalised(curve), label=name)
    plain.set(xlabel="batch", ylabel="accuracy on the last batch")
    scaled.set(xlabel="batch", ylabel="normalised")
    plain.legend(fontsize=7)
    for panel in (plain, scaled):
        panel.grid(alpha=0.3)
    return picture(figure, "png")
