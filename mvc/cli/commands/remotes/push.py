"""``mvc push``.

REF is a branch or tag, by default the current branch. Tags, data sets, deployments and annotations
of what is sent go along. All refs move, or none. If something is left out, the exit code is 3.
"""

from __future__ import annotations

from mvc.cli.transfers import tell_of_push
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
    every: bool = flag("Send all branches and tags.", "--all", takes="remote force partial dry_run")
    force: bool = flag("Let refs move back, from where the last fetch saw them.", "-f")
    delete: tuple[str, ...] = option("REF", "Delete a branch or tag there (repeatable).", "-d")
    states: tuple[str, ...] = option(
        "REV", "Send the state of a version that is there without it (repeatable).", takes="remote"
    )
    partial: bool = flag(
        "Go on without states that neither side has, and exit with 0 if something is left out."
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
        tell_of_push(session, done, remote.url, dry_run=args.dry_run)
    return RemoteRefused.exit_code if done.is_short and not args.partial else 0
