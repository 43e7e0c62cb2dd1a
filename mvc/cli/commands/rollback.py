"""``mvc rollback``."""

from __future__ import annotations

import click

from mvc.cli.commits import warn_of_clock
from mvc.cli.completing import complete_revisions, complete_targets
from mvc.cli.payload import deployed_json
from mvc.cli.program import verb
from mvc.cli.restored import tell_of_training
from mvc.cli.session import Session
from mvc.model.names import printable
from mvc.repo.times import format_time


@verb("rollback", "mvc rollback prod")
@click.argument("target", metavar="TARGET", shell_complete=complete_targets)
@click.option(
    "--to", "rev", metavar="REV", shell_complete=complete_revisions,
    help="Go back to REV, which was live there.",
)  # fmt: skip
def command(session: Session, target: str, rev: str | None) -> None:
    """Deploy what was live on a target before.

    Records that the last version other than the live one went live again. Branches, HEAD
    and files stay as they are.
    """
    out, done = session.out, session.repository.rollback(target, rev)
    warn_of_clock(out, done)
    tell_of_training(session)
    if session.as_json:
        out.json("mvc.rollback/1", {"deployment": deployed_json(done)})
    elif session.verbosity >= 0:
        name, id_ = out.paint(printable(target), "target"), out.paint(done.commit.short, "id")
        title = session.title(done.commit)
        what = f"{id_} ({title})" if title else id_
        out.line(f"Rolled back {name} to {what} at {format_time(done.time_ns)}")
