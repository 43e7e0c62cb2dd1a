"""``mvc deploy``.

With --retract, its newest deployment there, or the one at TIME, no longer counts;
it stays on record.
"""

from __future__ import annotations

from mvc.cli.commits import tell_deployed, warn_of_clock, warn_of_time
from mvc.cli.options import CommandOptions, argument, flag, option
from mvc.cli.program import verb
from mvc.cli.restored import tell_of_training
from mvc.cli.session import Session


class _DeployOptions(CommandOptions, frozen=True, kw_only=True):
    rev: str = argument("REV")
    target: str = argument("TARGET")
    at: str | None = option("TIME", "When it went live, if not now.")
    retract: bool = flag("Record that this deployment did not happen.")


@verb("mvc deploy HEAD prod --at 2026-11-20T10:00", _DeployOptions)
def command(session: Session, args: _DeployOptions) -> None:
    repository, out = session.repository, session.out
    done = (repository.retract if args.retract else repository.deploy)(
        args.rev, args.target, at=args.at
    )
    tell_of_training(session)
    if not args.retract:
        warn_of_clock(out, done)
        warn_of_time(out, done, session.commit(done.commit))
    words = "Retracted {commit} on {target}" if args.retract else "Deployed {commit} to {target}"
    tell_deployed(session, done, words)
