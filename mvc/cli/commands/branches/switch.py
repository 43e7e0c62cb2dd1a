"""``mvc switch``.

mvc writes the files of the branch, as 'mvc checkout' does. If the branch is at the version of HEAD,
mvc writes no file, and uncommitted changes stay.
"""

from __future__ import annotations

from mvc.cli.restored import switch_to
from mvc.cli.verb import FORCE_WORK, CommandOptions, Session, argument, flag, verb


class _SwitchOptions(CommandOptions, frozen=True, kw_only=True):
    branch: str = argument("BRANCH")
    start: str | None = argument("[START]", needs="create")
    create: bool = flag("Create the branch at START or HEAD.", "-c")
    force: bool = FORCE_WORK


@verb("mvc switch -c experiment", _SwitchOptions)
def command(session: Session, args: _SwitchOptions) -> None:
    switch_to(session, args.branch, create=args.create, start=args.start, force=args.force)
