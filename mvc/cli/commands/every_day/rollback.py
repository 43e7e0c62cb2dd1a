"""``mvc rollback``.

Records that the version before the live one went live again. Another rollback goes one
further back, never to a version that was just left. Branches, HEAD and files stay as they
are.
"""

from __future__ import annotations

import click

from mvc.cli.commits import tell_deployed
from mvc.cli.verb import CommandOptions, Session, argument, flag, option, reason, sign, verb
from mvc.ids import CommitId


class _RollbackOptions(CommandOptions, frozen=True, kw_only=True):
    target: str = argument("TARGET")
    rev: str | None = option("REV", "Go back to REV, which was live there.", "--to")
    reason: str | None = reason()
    sign: bool | None = sign()
    steps: int | None = option(
        "N",
        "Go N versions back.",
        type=click.IntRange(min=1),
        takes="target reason sign anyway push remote",
    )
    anyway: bool = flag("Also if the target is protected (deploy.protect).")
    push: bool = flag("Send it to the remote first; record nothing if it is refused.")
    remote: str | None = option("REMOTE", "Go by the record of REMOTE, and send it there.")


@verb("mvc rollback prod", _RollbackOptions)
def command(session: Session, args: _RollbackOptions) -> None:
    done = session.repo.rollback(
        args.target,
        args.rev,
        steps=args.steps or 1,
        reason=args.reason or "",
        sign=args.sign,
        anyway=args.anyway,
        push=args.push,
        remote=args.remote,
    )
    left, now_live = _titled(session, done.left), _titled(session, done.commit)
    tell_deployed(
        session,
        "mvc.rollback/1",
        done,
        "Rolled back {target} from {left} to {now_live}",
        left=left,
        now_live=now_live,
    )


def _titled(session: Session, commit: CommitId) -> str:
    """``1a2b3c4d5e (nightly)``."""
    title = session.title(commit)
    return session.paint(commit.short, "id") + (f" ({title})" if title else "")
