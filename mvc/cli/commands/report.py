"""``mvc report``."""

from __future__ import annotations

from pathlib import Path

import click

from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.cli.text import size
from mvc.model.names import printable


@verb("report", "mvc report -o report.html")
@click.option(
    "-o", "--output", metavar="FILE", default="report.html", show_default=True,
    help="Where to write it (report.html); - is stdout.",
)  # fmt: skip
@click.option("-f", "--force", is_flag=True, help="Replace FILE if it exists.")
@click.option(
    "--layer-seconds", metavar="S", type=float, default=2.0, show_default=True,
    help="Time for the distances of layers; by default 2.",
)  # fmt: skip
def command(session: Session, output: str, force: bool, layer_seconds: float) -> None:
    """Write the history as one page to look at.

    The page is a single HTML file without scripts that loads nothing: versions and
    deployments over time, metrics, bytes and chains, and how far each layer moved.
    """
    if output == "-" and not session.as_json:
        session.out.line(session.repository.report(layer_seconds=layer_seconds).rstrip("\n"))
        return
    if output == "-":
        raise click.UsageError("--json and the page cannot both go to stdout")
    session.check_output(Path(output), force=force)
    page = session.repository.report(output, layer_seconds=layer_seconds)
    length = len(page.encode())
    if session.as_json:
        session.out.json("mvc.report/1", {"file": output, "bytes": length})
    else:
        session.out.note(f"wrote {printable(output)} ({size(length)})")
