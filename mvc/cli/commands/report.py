"""``mvc report``.

The page is a single HTML file without scripts that loads nothing: versions and
deployments over time, metrics, bytes and chains, and how far each layer moved.
"""

from __future__ import annotations

from pathlib import Path

import click

from mvc.cli.options import FORCE_FILE, CommandOptions, option
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.cli.text import size
from mvc.model.names import printable


class _ReportOptions(CommandOptions, frozen=True, kw_only=True):
    output: str = option(
        "FILE",
        "Where to write it (report.html); - is stdout.",
        "-o",
        default="report.html",
        show_default=True,
    )
    force: bool = FORCE_FILE
    layer_seconds: float = option(
        "S", "Time for the distances of layers; by default 2.", default=2.0, show_default=True
    )


@verb("mvc report -o report.html", _ReportOptions)
def command(session: Session, args: _ReportOptions) -> None:
    if args.output == "-" and not session.as_json:
        session.out.line(session.repository.report(layer_seconds=args.layer_seconds).rstrip("\n"))
        return
    if args.output == "-":
        raise click.UsageError("--json and the page cannot both go to stdout")
    session.check_output(Path(args.output), force=args.force)
    page = session.repository.report(args.output, layer_seconds=args.layer_seconds)
    length = len(page.encode())
    if session.as_json:
        session.out.json("mvc.report/1", {"file": args.output, "bytes": length})
    else:
        session.out.note(f"wrote {printable(args.output)} ({size(length)})")
