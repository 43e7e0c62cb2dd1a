"""``mvc switch``.

The files of the branch are written, as by 'mvc checkout'. If the branch is at the version of
HEAD, no file is written, and uncommitted changes stay.
"""

from __future__ import annotations

from mvc.cli.restored import note_training, print_restored, warn_of_unreached
from mvc.cli.verb import FORCE_WORK, CommandOptions, Session, argument, flag, verb


class _SwitchOptions(CommandOptions, frozen=True, kw_only=True):
    branch: str = argument("BRANCH")
    start: str | None = argument("[START]", needs="create")
    create: bool = flag("Create the branch at START or HEAD.", "-c")
    force: bool = FORCE_WORK


@verb("mvc switch -c experiment", _SwitchOptions)
def command(session: Session, args: _SwitchOptions) -> None:
    before = session.repo.head(if_known=True).branch
    existing = {ref.name for ref in session.repo.refs()}
    done = session.run(
        "restoring",
        session.repo.switch,
        args.branch,
        create=args.create,
        start=args.start,
        force=args.force,
    )
    created = args.create or args.branch not in {*existing, before}
    if not session.as_json:
        if done is not None and (done.written or done.deleted or done.unchanged):
            print_restored(session, done)
        session.note(f"Switched to {'new ' if created else ''}branch {args.branch}")
    note_training(session, before, args.branch)
    if done is not None:
        warn_of_unreached(session, done)
    payload = {"restored": done, "branch": args.branch, "created": created}
    session.answered("mvc.switch/1", payload)
