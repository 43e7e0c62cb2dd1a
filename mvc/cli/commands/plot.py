"""``mvc plot``."""

from __future__ import annotations

from pathlib import Path

import click

from mvc.cli.options import target_option
from mvc.cli.payload import fields
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.model.names import printable


@verb("plot", "mvc plot acc loss --target prod -o history.svg")
@click.argument("metrics", metavar="[METRIC]...", nargs=-1)
@click.option("--bytes", "stored", is_flag=True, help="The bytes that versions added.")
@click.option("--distance", is_flag=True, help="How far versions are from their parents.")
@target_option("Only the deployments on T.")
@click.option("-o", "--output", metavar="FILE", help="Draw it as .svg or .png.")
@click.option("-f", "--force", is_flag=True, help="Replace FILE if it exists.")
def command(
    session: Session,
    metrics: tuple[str, ...],
    stored: bool,
    distance: bool,
    target: str | None,
    output: str | None,
    force: bool,
) -> None:
    """Draw metrics, sizes, distances and deployments over time.

    Without a METRIC the six that most versions have. A .png needs matplotlib, a .svg nothing.
    """
    if output is not None:
        session.check_output(Path(output), force=force)
    drawn = session.repository.plot(*metrics, target=target, stored=stored, distance=distance)
    if output is not None:
        session.write_output(Path(output), drawn.picture(Path(output)))
        session.out.note(f"drew {printable(output)}")
    if session.as_json:
        payload = {"low_ns": drawn.axis.low, "high_ns": drawn.axis.high, "notes": drawn.notes}
        session.out.json("mvc.plot/1", payload | {"charts": [_json(p) for p in drawn.panels]})
        return
    if output is None:
        for line in drawn.text(min(100, session.out.width or 80)):
            session.out.line(line)
    for note in drawn.notes:
        session.out.note(note)


def _json(panel: object) -> dict[str, object]:
    """A chart: its title, and points of (ns, value), the same by kind, or spans by target."""
    found: dict[str, object] = fields(panel, "title")
    for name in ("points", "kinds"):
        if hasattr(panel, name):
            found[name] = getattr(panel, name)
    spans = getattr(panel, "spans", None)
    if spans is not None:
        found["spans"] = {
            target: [fields(span, "commit", "start_ns", "end_ns") for span in of]
            for target, of in spans.items()
        }
    return found
