"""``mvc rollback``.

Records that the last version other than the live one went live again. Branches, HEAD
and files stay as they are.
"""

from __future__ import annotations

from mvc.cli.commits import warn_of_clock
from mvc.cli.options import CommandOptions, argument, option
from mvc.cli.program import verb
from mvc.cli.restored import tell_of_training
from mvc.cli.session import Session
from mvc.model.names import printable
from mvc.repo.times import format_time


class _RollbackOptions(CommandOptions, frozen=True, kw_only=True):
    target: str = argument("TARGET")
    rev: str | None = option("REV", "Go back to REV, which was live there.", "--to")


@verb("mvc rollback prod", _RollbackOptions)
def command(session: Session, args: _RollbackOptions) -> None:
    out, done = session.out, session.repository.rollback(args.target, args.rev)
    warn_of_clock(out, done)
    tell_of_training(session)
    if session.as_json:
        out.json("mvc.rollback/1", {"deployment": done})
    elif session.verbosity >= 0:
        name, id_ = out.paint(printable(args.target), "target"), out.paint(done.commit.short, "id")
        title = session.title(done.commit)
        what = f"{id_} ({title})" if title else id_
        out.line(f"Rolled back {name} to {what} at {format_time(done.time_ns)}")
