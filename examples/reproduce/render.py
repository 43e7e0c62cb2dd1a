"""Reports as Markdown and as pictures; tables, and what all pictures share."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from mvc.errors import BadModelFile, NotInstalled, WrongUsage, how_to_install

from .workspace import read_json

__all__ = ["SCHEMA", "figure", "grid", "markdown", "notes", "picture", "read_report"]

SCHEMA = "mvc.reproduce.{}/1"
"""With the name of an experiment's folder."""

_MODULES = {
    SCHEMA.format(name): f".{name}.render" for name in ("drift", "derived", "rework", "distributed")
} | {SCHEMA.format("benchmarks"): ".benchmarks"}
T = TypeVar("T")


def read_report(file: Path) -> dict[str, Any]:
    """The report in a JSON file. Raises UnknownPath and BadModelFile."""
    report = read_json(file)
    if isinstance(report, dict):
        schema = report.get("schema")
        if isinstance(schema, str) and schema in _MODULES:
            return report
    raise _no_report(file)


def markdown(report: Mapping[str, Any], of: Path | None = None) -> str:
    """A report as a page. ``of``: the file that it was read from."""
    return _checked(lambda: str(_module(report).markdown(report)), of)


def picture(report: Mapping[str, Any], form: str, of: Path | None = None) -> bytes:
    """A report as png or svg; empty if it has no picture, or WrongUsage if it is from a file."""
    drawn = _checked(lambda: _module(report).picture(report), of)
    if drawn is None and of:
        raise WrongUsage(f"{of} holds a table that has no picture")
    return b"" if drawn is None else _encoded(drawn, form)


def _module(report: Mapping[str, Any]) -> Any:
    return import_module(_MODULES[report["schema"]], __package__)


def _checked(render: Callable[[], T], file: Path | None) -> T:
    """A file may hold anything: what a render module does not find makes it no report."""
    try:
        return render()
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        if file is None:
            raise
        raise _no_report(file) from None


def _no_report(file: Path) -> BadModelFile:
    return BadModelFile(f"{file} is no report", hint="name a JSON file that a command wrote")


def grid(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table with aligned columns: the first is text, the others are numbers."""
    cells = [[text.replace("|", "\\|") for text in row] for row in (titles, *rows)]
    # a rule needs two characters: "-:"
    first, *widths = (max(2, *map(len, column)) for column in zip(*cells, strict=True))
    head, *lines = (
        " | ".join((name.ljust(first), *map(str.rjust, values, widths))) for name, *values in cells
    )
    rule = " | ".join(("-" * first, *("-" * (width - 1) + ":" for width in widths)))
    return "\n".join(f"| {line} |" for line in (head, rule, *lines))


def notes(lines: Iterable[str]) -> str:
    """What to know when reading tables."""
    return "## How to read it\n\n" + "".join(f"- {line}\n" for line in lines)


def figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """A matplotlib figure and its panels, row by row; NotInstalled if matplotlib is missing."""
    drawing, panels = _pyplot().subplots(
        rows, columns, figsize=size, squeeze=False, layout="constrained"
    )
    for panel in panels.flat:
        panel.grid(alpha=0.3)
    return drawing, panels


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


def _encoded(drawing: Any, form: str) -> bytes:
    """Equal figures make equal SVG files."""
    pyplot, buffer = _pyplot(), io.BytesIO()
    with pyplot.rc_context({"svg.hashsalt": "mvc", "svg.fonttype": "none"}):
        undated = {"Date": None} if form == "svg" else None
        drawing.savefig(buffer, format=form, dpi=110, bbox_inches="tight", metadata=undated)
    pyplot.close(drawing)
    return buffer.getvalue()
