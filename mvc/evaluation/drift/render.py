"""Tables as Markdown, with the limits of their comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mvc.evaluation.drift.tables import Cell, Compared, Line
from mvc.evaluation.drift.thesis.tables import Figures

__all__ = ["LIMITS", "grid", "markdown"]

LIMITS = (
    "Seconds of the thesis are from another machine (GeForce GTX 970, i7-4790K, Windows, "
    "TensorFlow 2.10) and compare only with each other, as ours do.",
    "The thesis trains with TensorFlow on a GPU, where equal runs differ by about 0.04 points "
    "of accuracy; here every pipeline sees the same recorded weights, so differences are exact.",
    "Saving is durable here: processing, commit and flush to disk. Loading is checked against "
    "hashes.",
)

_TITLES = (
    *("configuration", "R", "ratio", "thesis", "accuracy", "thesis", "save s", "thesis"),
    *("load s", "thesis", "versions", "deltas MB", "full MB", "other MB"),
)


def grid(titles: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """A Markdown table with aligned columns; the first ``left`` columns are text."""
    cells = [[text.replace("|", "\\|") for text in row] for row in (titles, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(titles))]
    lines = []
    for row in cells:
        padded = (
            text.ljust(width) if i < left else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append(f"| {' | '.join(padded)} |")
    rule = ("-" * width if i < left else "-" * (width - 1) + ":" for i, width in enumerate(widths))
    lines.insert(1, f"| {' | '.join(rule)} |")
    return "\n".join(lines)


def markdown(compared: Compared) -> str:
    """The whole table: a part for each network, then what to know when reading it."""
    parts = [f"# Table {compared.number}: {compared.title}\n"]
    for role in compared.setting:
        parts.extend(_part(compared, role))
    parts.append("## How to read it\n")
    parts.append("".join(f"- {line}\n" for line in (*_meanings(compared), *LIMITS)))
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
    yield grid(
        _TITLES,
        (_row(line, role) for line in compared.lines),
    )
    yield ""
    if any(line.cells and line.cells[role].to_raw is not None for line in compared.lines):
        yield grid(
            ("configuration", "to zstd", "to lossless, R=28", "to raw", "by label, points"),
            (_baselines(line, role) for line in compared.lines if line.cells),
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
        line.name,
        str(line.interval),
        f"{cell.ratio:.3f}",
        _number(stated.ratio),
        _points(cell.accuracy),
        _number(stated.accuracy, "+.2f"),
        _pair(cell.save, cell.save_max),
        _pair(stated.save, stated.save_max),
        _pair(cell.load, cell.load_max),
        _pair(stated.load, stated.load_max),
        f"{cell.saved:g}",
        _megabytes(cell.delta_bytes),
        _megabytes(cell.full_bytes),
        _megabytes(cell.other_bytes),
    )


def _baselines(line: Line, role: str) -> tuple[str, ...]:
    cell: Cell = line.cells[role]
    return (
        line.name,
        _number(cell.to_zstd),
        _number(cell.to_lossless),
        _number(cell.to_raw),
        " ".join(map(_points, cell.differences)),
    )


def _meanings(compared: Compared) -> Iterator[str]:
    yield (
        f"ratio: bytes of the folder of `{compared.lines[0].name}` to bytes of this one's. "
        "R: versions between reset points."
    )
    yield (
        "accuracy: prequential accuracy of the deployed weights against the lossless run, in "
        "percentage points; the thesis prints it under 'Last Accuracy'."
    )
    yield "save, load: seconds a batch, mean / longest; load is of one version, from disk."
    yield (
        "versions: how many were saved; bytes of deltas, of reset points (full), and of all "
        "else: manifests, headers, journal, index."
    )
    if any(line.name.startswith("frontier-") for line in compared.lines):
        yield (
            "frontier lines: bytes of deltas beside those of `vsol-...-fast` or `-slow` of the "
            "same bound, whichever has fewer; their ratio says nothing where accuracies differ."
        )


def _frontier(compared: Compared, role: str) -> Iterator[str]:
    """Each of our lossy presets beside the better one of the thesis's for the same bound."""
    cells = {line.name: line.cells[role] for line in compared.lines if line.cells}
    for name, cell in cells.items():
        bound = name.removeprefix("frontier-")
        rivals = [r for r in (f"vsol-{bound}-fast", f"vsol-{bound}-slow") if r in cells]
        if bound == name or not rivals:
            continue
        best = min(rivals, key=lambda rival: cells[rival].delta_bytes)
        yield (
            f"- {name}: {_against(cell, cells[best], best)}, accuracy "
            f"{_points(cell.accuracy)} and {_points(cells[best].accuracy)} points\n"
        )


def _against(cell: Cell, rival: Cell, name: str) -> str:
    if not rival.delta_bytes:  # it found no version worth saving after the first
        return f"{cell.delta_bytes / 1e3:.1f} kB of deltas, {name} none"
    return f"{cell.delta_bytes / rival.delta_bytes:.3f} x the bytes of deltas of {name}"


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
