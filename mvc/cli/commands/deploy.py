"""``mvc deploy``."""

from __future__ import annotations

import click

from mvc.cli.commits import warn_of_clock, warn_of_time
from mvc.cli.completing import complete_targets
from mvc.cli.options import revision
from mvc.cli.payload import deployed_json
from mvc.cli.program import verb
from mvc.cli.restored import tell_of_training
from mvc.cli.session import Session
from mvc.model.names import printable
from mvc.repo.times import format_time


@verb("deploy", "mvc deploy HEAD prod --at 2026-11-20T10:00")
@revision("REV")
@click.argument("target", metavar="TARGET", shell_complete=complete_targets)
@click.option("--at", metavar="TIME", help="When it went live, if not now.")
@click.option("--retract", is_flag=True, help="Record that this deployment did not happen.")
def command(session: Session, rev: str, target: str, at: str | None, retract: bool) -> None:
    """Record that a version went live on a target.

    With --retract, its newest deployment there, or the one at TIME, no longer counts;
    it stays on record.
    """
    repository, out = session.repository, session.out
    done = (repository.retract if retract else repository.deploy)(rev, target, at=at)
    tell_of_training(session)
    if not retract:
        warn_of_clock(out, done)
        warn_of_time(out, done, session.commit(done.commit))
    if session.as_json:
        out.json("mvc.deploy/1", {"deployment": deployed_json(done)})
    elif session.verbosity >= 0:
        name, id_ = out.paint(printable(target), "target"), out.paint(done.commit.short, "id")
        words = f"Retracted {id_} on" if retract else f"Deployed {id_} to"
        out.line(f"{words} {name} at {format_time(done.time_ns)}")
