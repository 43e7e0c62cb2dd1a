"""``mvc rollback``.

Records that the last version other than the live one went live again. Branches, HEAD
and files stay as they are.
"""

from __future__ import annotations

from mvc.cli.commits import tell_deployed, warn_of_clock
from mvc.cli.options import CommandOptions, argument, option
from mvc.cli.program import verb
from mvc.cli.restored import tell_of_training
from mvc.cli.session import Session


class _RollbackOptions(CommandOptions, frozen=True, kw_only=True):
    target: str = argument("TARGET")
    rev: str | None = option("REV", "Go back to REV, which was live there.", "--to")


@verb("mvc rollback prod", _RollbackOptions)
def command(session: Session, args: _RollbackOptions) -> None:
    done = session.repository.rollback(args.target, args.rev)
    warn_of_clock(session.out, done)
    tell_of_training(session)
    title = session.title(done.commit)
    tell_deployed(session, done, "Rolled back {target} to {commit}", title=title)
