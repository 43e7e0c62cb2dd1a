"""``mvc plot``.

Without a METRIC the six that most versions have. A .png needs matplotlib, a .svg nothing.
"""

from __future__ import annotations

from pathlib import Path

from mvc.cli.options import FORCE_FILE, CommandOptions, argument, flag, option
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.model.names import printable


class _PlotOptions(CommandOptions, frozen=True, kw_only=True):
    metrics: tuple[str, ...] = argument("[METRIC]...")
    stored: bool = flag("The bytes that versions added.", "--bytes")
    distance: bool = flag("How far versions are from their parents.")
    target: str | None = option("T", "Only the deployments on T.")
    output: str | None = option("FILE", "Draw it as .svg or .png.", "-o")
    force: bool = FORCE_FILE


@verb("mvc plot acc loss --target prod -o history.svg", _PlotOptions)
def command(session: Session, args: _PlotOptions) -> None:
    if args.output is not None:
        session.check_output(Path(args.output), force=args.force)
    drawn = session.repository.plot(
        *args.metrics, target=args.target, stored=args.stored, distance=args.distance
    )
    if args.output is not None:
        session.write_output(Path(args.output), drawn.picture(Path(args.output)))
        session.out.note(f"drew {printable(args.output)}")
    if session.as_json:
        payload = {"low_ns": drawn.axis.low, "high_ns": drawn.axis.high, "notes": drawn.notes}
        session.out.json("mvc.plot/1", payload | {"charts": drawn.panels})
        return
    if args.output is None:
        for line in drawn.text(min(100, session.out.width or 80)):
            session.out.line(line)
    for note in drawn.notes:
        session.out.note(note)
