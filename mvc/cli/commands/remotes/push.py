"""``mvc push``.

REF is a branch or tag, by default the current branch. REV:NAME pushes the version REV to the branch
or tag NAME. Tags, data sets, deployments and annotations of the pushed versions are sent, too. All
refs move, or none. If a deployment or purge is not sent, the exit code is 3.
"""

from __future__ import annotations

from mvc.cli.transfers import print_push
from mvc.cli.verb import (
    DRY_RUN,
    CommandOptions,
    Session,
    argument,
    fields,
    flag,
    option,
    verb,
)
from mvc.errors import RemoteRefused


class _PushOptions(CommandOptions, frozen=True, kw_only=True):
    remote: str | None = argument("[REMOTE]")
    refs: tuple[str, ...] = argument("[REF...]")
    every: bool = flag(
        "Send all branches and tags.", "--all", allows="remote force partial dry_run"
    )
    force: bool = flag(
        "Move refs to any version, if they did not move since your last fetch.", "-f"
    )
    delete: tuple[str, ...] = option("REF", "Delete a ref on the remote (repeatable).", "-d")
    states: tuple[str, ...] = option(
        "REV", "Send only the state of REV, which the remote lacks (repeatable).", allows="remote"
    )
    partial: bool = flag(
        "Send versions even if their states are missing. Exit with 0 if data are left out."
    )
    dry_run: bool = DRY_RUN


@verb("mvc push origin main", _PushOptions)
def command(session: Session, args: _PushOptions) -> int:
    remote = session.repo.remotes.find(args.remote)
    done = session.run(
        "sending",
        session.repo.push,
        args.remote,
        refs=args.refs,
        every=args.every,
        force=args.force,
        delete=args.delete,
        states=args.states,
        partial=args.partial,
        dry_run=args.dry_run,
    )
    if not session.answered("mvc.push/1", {"dry_run": args.dry_run, **fields(done)}):
        print_push(session, done, remote.url, dry_run=args.dry_run)
    return RemoteRefused.exit_code if done.is_short and not args.partial else 0
