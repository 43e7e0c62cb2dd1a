"""``mvc report``.

The page is one HTML file without scripts and external resources. It shows versions and deployments
over time, metrics, storage, bounds of recovery times, and how much each layer's weights
changed. Earlier reports are replaced even without -f.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import click

from mvc.cli.verb import FORCE_FILE, CommandOptions, PathText, Session, option, verb
from mvc.files import is_report
from mvc.report.page import write_report
from mvc.text import size


class _ReportOptions(CommandOptions, frozen=True, kw_only=True):
    since: str | None = option("TIME", "Show only versions and deployments since TIME.")
    until: str | None = option("TIME", "Show only versions and deployments until TIME.")
    by: Literal["time", "version"] | None = option(
        None, "The horizontal axis of the charts. By default, mvc chooses one."
    )
    output: PathText | None = option(
        "FILE", "The output, by default report.html. FILE - is stdout.", "-o"
    )
    force: bool = FORCE_FILE
    layers: float = option(
        "SECONDS", "Spend at most SECONDS on the changes of layers; by default 2.", default=2.0
    )


@verb("mvc report -o report.html", _ReportOptions)
def command(session: Session, args: _ReportOptions) -> None:
    if session.as_json and args.output == "-":
        raise click.UsageError("-o - and --json both write to stdout")
    write = partial(
        session.run,
        "comparing versions",
        write_report,
        session.repo,
        layer_seconds=args.layers,
        since=args.since,
        until=args.until,
        by=args.by,
        counted=True,
    )
    if args.output == "-":
        session.line(write().rstrip("\n"))
        return
    file = args.output or "report.html"
    replaced = is_report(session.fs, Path(file))  # an earlier report
    session.check_output(file, force=args.force or replaced)
    length = len(write(file).encode())
    if not session.answered("mvc.report/1", {"file": file, "bytes": length}):
        session.note(f"wrote {file} ({size(length)})")
