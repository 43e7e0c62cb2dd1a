"""``mvc report``.

The page is a single HTML file without scripts that loads nothing: versions and
deployments over time, metrics, bytes and chains, and how far each layer moved. With
--text, --svg, or a FILE that ends in .svg or .png (which needs matplotlib), only charts
are drawn: of each METRIC, by default of the six that most versions have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from mvc.cli.options import (
    FORCE_FILE,
    UNFOLD,
    CommandOptions,
    argument,
    check_alone,
    flag,
    given,
    option,
)
from mvc.cli.payload import fields
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.cli.text import size
from mvc.model.names import printable
from mvc.repo.worktree.worktree import is_report
from mvc.report.figure import Legend

_VIEW = "since until by"
_CHARTS = f"metrics text svg stored distance target output force {_VIEW}"


class _ReportOptions(CommandOptions, frozen=True, kw_only=True):
    metrics: tuple[str, ...] = argument("[METRIC]...")
    text: bool = flag("Print charts as text.")
    svg: bool = flag("Draw charts, by default into report.svg.")
    stored: bool = flag("A chart of the bytes that versions added.", "--bytes")
    distance: bool = flag("A chart of how far versions are from their parents.")
    target: str | None = option("T", "Of the deployments, a chart of those on T alone.")
    since: str | None = option("TIME", "Nothing older than TIME.")
    until: str | None = option("TIME", "Nothing newer than TIME.")
    by: Literal["time", "version"] | None = option(
        None, "The axis: time, or the numbers of versions; by default what shows more."
    )
    output: str | None = option("FILE", "Where to write it (report.html); - is stdout.", "-o")
    force: bool = FORCE_FILE
    unfold: bool = UNFOLD
    layer_seconds: float = option(
        "S", "Time for the distances of layers; by default 2.", default=2.0, show_default=True
    )


@verb("mvc report -o report.html", _ReportOptions)
def command(session: Session, args: _ReportOptions) -> None:
    drawn = args.svg or Path(args.output or "").suffix.lower() in {".svg", ".png"}
    if args.text:
        check_alone("text", takes=f"metrics stored distance target {_VIEW}")
    elif drawn:
        check_alone("svg" if args.svg else "output", takes=_CHARTS)
    elif chart := given(args, "metrics stored distance target"):
        raise click.UsageError(f"{chart} is for charts: add --text or --svg")
    if session.as_json and args.output == "-":
        raise click.UsageError("--json and the page cannot both go to stdout")
    if args.text or drawn:
        _draw(session, args)
    else:
        _write_page(session, args)


def _write_page(session: Session, args: _ReportOptions) -> None:
    settings = fields(args, f"layer_seconds unfold {_VIEW}")
    if args.output == "-":
        session.out.line(session.repository.report(**settings).rstrip("\n"))
        return
    file = args.output or "report.html"
    replaced = is_report(session.fs, Path(file))  # its own earlier page
    session.check_output(file, force=args.force or replaced)
    page = session.repository.report(file, **settings)
    length = len(page.encode())
    if session.as_json:
        session.out.json("mvc.report/1", {"file": file, "bytes": length})
    else:
        session.out.note(f"wrote {printable(file)} ({size(length)})")


def _draw(session: Session, args: _ReportOptions) -> None:
    out, file = session.out, Path("report.svg" if args.output is None else args.output)
    if not args.text and args.output != "-":
        session.check_output(file, force=args.force)
    settings = fields(args, f"target stored distance {_VIEW}")
    drawn = session.repository.plot(*args.metrics, **settings)
    if not args.text and args.output == "-":
        out.line(drawn.picture(Path("-.svg")).decode())
    elif not args.text:
        session.write_output(file, drawn.picture(file))
        out.note(f"drew {printable(str(file))}")
    if session.as_json:
        charts = [panel for panel in drawn.panels if not isinstance(panel, Legend)]
        axis = fields(drawn.axis, "by low high")
        out.json("mvc.report.charts/1", {**axis, "notes": drawn.notes, "charts": charts})
        return
    if args.text:
        for line in drawn.text(min(100, out.width or 80)):
            out.line(line)
    for note in drawn.notes:
        out.note(note)
