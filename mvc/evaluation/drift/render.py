"""Tables as Markdown, with the limits of their comparison; plots as PNG."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mvc.errors import NotInstalled, how_to_install
from mvc.evaluation.drift.measure import normalised
from mvc.evaluation.drift.tables import Compared, CurveLine, Curves, Line, improvements
from mvc.evaluation.drift.thesis import MODELS, Figures

__all__ = [
    *("LIMITS", "accuracy_curves", "curves_markdown", "grid", "markdown"),
    "ratio_against_accuracy",
]

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
    "save, load: seconds a batch, mean / longest; load is of one version, from disk.",
    "versions: how many were saved; bytes of deltas, of reset points (full), and of all else: "
    "manifests, headers, journal, index.",
)
_FRONTIER = (
    "frontier lines: bytes of deltas beside those of `vsol-...-fast` or `-slow` of the same "
    "bound, whichever has fewer; their ratio says nothing where accuracies differ."
)

_TITLES = (
    *("configuration", "R", "ratio", "thesis", "accuracy", "thesis", "save s", "thesis"),
    *("load s", "thesis", "versions", "deltas MB", "full MB", "other MB"),
)


def grid(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table with aligned columns: the first is text, the others are numbers."""
    cells = [[text.replace("|", "\\|") for text in row] for row in (titles, *rows)]
    first, *widths = (max(map(len, column)) for column in zip(*cells, strict=True))
    head, *lines = (
        " | ".join((name.ljust(first), *map(str.rjust, values, widths))) for name, *values in cells
    )
    rule = " | ".join(("-" * first, *("-" * (width - 1) + ":" for width in widths)))
    return "\n".join(f"| {line} |" for line in (head, rule, *lines))


def markdown(compared: Compared) -> str:
    """The whole table: a part for each network, then what to know when reading it."""
    parts = [f"# Table {compared.number}: {compared.title}\n"]
    for role in compared.setting:
        parts.extend(_part(compared, role))
    meanings = [_RATIO.format(compared.lines[0].name), *_MEANINGS]
    if any(line.name.startswith("frontier-") for line in compared.lines):
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
        f"{first['batch_size']}. One batch takes {_pair(*compared.learning[role])} s to learn "
        f"(thesis, its {role}: {_pair(*compared.learning_stated[role])} s).\n"
    )
    if first["model"] != role:
        yield f"The thesis's columns are those of its {role} net: another net, other data.\n"
    if role in compared.plain:
        deltas, seconds = compared.plain[role]
        yield (
            f"{deltas} deltas of `vsol` decoded one after the other in plain numpy: "
            f"{seconds:.3f} s.\n"
        )
    yield grid(_TITLES, (_row(line, role) for line in compared.lines))
    yield ""
    lines = [line for line in compared.lines if line.cells]
    if any(line.cells[role].to_raw is not None for line in lines):
        yield grid(
            ("configuration", "to zstd", "to lossless, R=28", "to raw", "by label, points"),
            (_baselines(line, role) for line in lines),
        )
        yield ""
    if beside := "".join(_frontier(compared, role)):
        yield beside
    yield "Pipelines:\n"
    yield "\n".join(f"- {line.name}: `{line.pipeline}`" for line in compared.lines) + "\n"


def _row(line: Line, role: str) -> tuple[str, ...]:
    stated = line.stated.get(role, Figures())
    if line.missing is not None:
        return (f"{line.name} ({line.missing})", str(line.interval), *("",) * 12)
    cell = line.cells[role]
    return (
        *(line.name, str(line.interval)),
        *(f"{cell.ratio:.3f}", _number(stated.ratio)),
        *(_points(cell.accuracy), _number(stated.accuracy, "+.2f")),
        *(_pair(cell.save, cell.save_max), _pair(stated.save, stated.save_max)),
        *(_pair(cell.load, cell.load_max), _pair(stated.load, stated.load_max)),
        f"{cell.saved:g}",
        *map(_megabytes, (cell.delta_bytes, cell.full_bytes, cell.other_bytes)),
    )


def _baselines(line: Line, role: str) -> tuple[str, ...]:
    cell = line.cells[role]
    ratios = map(_number, (cell.to_zstd, cell.to_lossless, cell.to_raw))
    return (line.name, *ratios, " ".join(map(_points, cell.differences)))


def _frontier(compared: Compared, role: str) -> Iterator[str]:
    """Each of our lossy presets beside the better one of the thesis's for the same bound."""
    cells = {line.name: line.cells[role] for line in compared.lines if line.cells}
    for name, cell in cells.items():
        bound = name.removeprefix("frontier-")
        rivals = [r for r in (f"vsol-{bound}-fast", f"vsol-{bound}-slow") if r in cells]
        if bound == name or not rivals:
            continue
        best = min(rivals, key=lambda rival: cells[rival].delta_bytes)
        rival = cells[best]
        beside = f"{cell.delta_bytes / 1e3:.1f} kB of deltas, {best} none"
        if rival.delta_bytes:  # else it found no version worth saving after the first
            ratio = cell.delta_bytes / rival.delta_bytes
            beside = f"{ratio:.3f} x the bytes of deltas of {best}"
        yield (
            f"- {name}: {beside}, accuracy {_points(cell.accuracy)} and "
            f"{_points(rival.accuracy)} points\n"
        )


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


def curves_markdown(curves: Sequence[Curves], *, summary: bool = False) -> str:
    """The tables, or with ``summary`` the range of their differences (table 4.6)."""
    parts = []
    if summary:
        parts.append("# Table 4.6: what each setting of the split is good for\n")
        titles = ("setting", "least", "most", "most / least", "thesis least", "thesis most")
        rows = (
            (title, f"{low:.3f}", f"{high:.3f}", f"{high / low:.2f}" if low else "",
             f"{a:.3f}", f"{b:.3f}")
            for title, low, high, a, b in improvements(curves)
        )  # fmt: skip
        parts.append(grid(titles, rows))
    for one in () if summary else curves:
        parts.append(f"# Table {one.number}: {one.title}\n")
        names = list(one.lines[0].conv)
        settings = (f"{role} {name}" for role in MODELS for name in names)
        cells = (_cells(line, names) for line in one.lines)
        parts.append(grid((*settings, "ours", "thesis"), cells))
    parts.append(
        "\nMean difference of the normalised accuracy on the last batch between the networks "
        "for images and texts (NLAccDiff). Data and frameworks are not the thesis's.\n"
    )
    return "\n".join(parts)


def _cells(line: CurveLine, names: Sequence[str]) -> tuple[str, ...]:
    own = (str(settings[name]) for settings in (line.conv, line.lstm) for name in names)
    return (*own, f"{line.difference:.3f}", f"{line.stated:.3f}")


def ratio_against_accuracy(compared: Compared) -> bytes:
    """A PNG with a row for each network: accuracy over ratio, and over bytes of deltas.

    Right and up is better. Numbers name pipelines, in the order of the table; hollow points
    are the thesis's own figures. The second panel leaves reset points out.
    """
    pyplot = _pyplot()
    roles = list(compared.setting)
    figure, panels = pyplot.subplots(
        len(roles), 2, figsize=(16, 6 * len(roles)), squeeze=False, layout="constrained"
    )
    for (whole, deltas), role in zip(panels, roles, strict=True):
        setting = compared.setting[role][0]
        lines = [(n, line) for n, line in enumerate(compared.lines, start=1) if line.cells]
        cells = [(n, line.cells[role]) for n, line in lines]
        _scatter(whole, [(n, cell.ratio, cell.accuracy) for n, cell in cells])
        coded = [(n, cell) for n, cell in cells if cell.delta_bytes]
        _scatter(deltas, [(n, cell.delta_bytes / 1e6, cell.accuracy) for n, cell in coded])
        for _, line in lines:
            stated = line.stated.get(role, Figures())
            if stated.ratio is not None and stated.accuracy is not None:
                whole.plot(stated.ratio, stated.accuracy, "o", color="grey", fillstyle="none")
        whole.set(
            xlabel=f"ratio to {compared.lines[0].name}",
            ylabel="accuracy against lossless, points",
            title=f"{setting['model']} on {setting['data']}",
        )
        deltas.set(xlabel="MB of deltas", title="without reset points")
        deltas.invert_xaxis()
    names = "\n".join(f"{n}  {line.name}" for n, line in enumerate(compared.lines, start=1))
    figure.text(1.005, 0.98, names, va="top", size=8)
    figure.suptitle(f"Table {compared.number}: {compared.title}")
    return _png(pyplot, figure)


def _scatter(panel: Any, points: Sequence[tuple[int, float, float]]) -> None:
    """Points with their numbers; those that print at one place share a label."""
    panel.set_xscale("log")
    panel.grid(alpha=0.3, which="both")
    places: dict[tuple[float, float], list[int]] = {}
    for number, x, y in points:
        panel.plot(x, y, "o", color="tab:blue")
        place = (float(f"{math.log10(x):.2f}"), float(f"{y:.2f}"))
        places.setdefault(place, []).append(number)
    for (x, y), numbers in places.items():
        text = ", ".join(map(str, numbers))
        panel.annotate(text, (10**x, y), xytext=(5, 4), textcoords="offset points", size=8)


def accuracy_curves(curves: Mapping[str, Sequence[float]]) -> bytes:
    """A PNG: accuracy on the last batch after each batch, as it is and normalised."""
    pyplot = _pyplot()
    figure, (plain, scaled) = pyplot.subplots(1, 2, figsize=(14, 5), layout="constrained")
    for name, curve in curves.items():
        batches = range(1, len(curve) + 1)
        plain.plot(batches, curve, label=name)
        scaled.plot(batches, normalised(curve), label=name)
    plain.set(xlabel="batch", ylabel="accuracy on the last batch")
    scaled.set(xlabel="batch", ylabel="normalised")
    plain.legend(fontsize=7)
    for panel in (plain, scaled):
        panel.grid(alpha=0.3)
    return _png(pyplot, figure)


def _pyplot() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise NotInstalled(
            "plots need matplotlib, which is not installed",
            hint=f"{how_to_install('plots')}, or leave them out with --no-plot",
        ) from None
    return pyplot


def _png(pyplot: Any, figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
    pyplot.close(figure)
    return buffer.getvalue()
