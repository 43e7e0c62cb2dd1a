"""``mvc rollback``.

A second rollback goes back by one more version, not to the version that the first rollback
replaced. Branches, HEAD and files do not change.
"""

from __future__ import annotations

import click

from mvc.cli.commits import print_deployed
from mvc.cli.verb import CommandOptions, Session, argument, flag, option, reason, sign, verb
from mvc.ids import CommitId


class _RollbackOptions(CommandOptions, frozen=True, kw_only=True):
    target: str = argument("TARGET")
    rev: str | None = option("REV", "Deploy REV, a version that was live on TARGET before.", "--to")
    reason: str | None = reason()
    sign: bool | None = sign()
    steps: int | None = option(
        "N",
        "Go N versions back.",
        type=click.IntRange(min=1),
        allows="target reason sign anyway push remote",
    )
    anyway: bool = flag("Deploy even if the target is protected (deploy.protect).")
    push: bool = flag("Push the deployment first. If the remote refuses it, record nothing.")
    remote: str | None = option(
        "REMOTE", "Roll back TARGET as REMOTE has it, and send the rollback to REMOTE."
    )


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
    print_deployed(
        session,
        "mvc.rollback/1",
        done,
        "Rolled back {target} from {left} to {now_live}",
        left=_titled(session, done.left),
        now_live=_titled(session, done.commit),
    )


def _titled(session: Session, commit: CommitId) -> str:
    """The short id of a version, with its title: ``1a2b3c4d5e (nightly)``."""
    title = session.title(commit)
    return session.paint(commit.short, "id") + (f" ({title})" if title else "")
