"""``mvc branch``.

Without arguments, mvc lists the branches. REV is HEAD by default.
"""

from __future__ import annotations

from functools import partial

import click

from mvc.cli.listing import delete_refs, make_ref, print_refs, refs_json
from mvc.cli.verb import CommandOptions, Session, argument, flag, verb


class _BranchOptions(CommandOptions, frozen=True, kw_only=True):
    names: tuple[str, ...] = argument("[NAME [REV]]", completes="BRANCH")
    delete: bool = flag(
        "Delete branches. Without -f, refuse if no other branch or tag reaches the newest version.",
        "-d",
        allows="names force",
    )
    move: bool = flag("Rename a branch: 'mvc branch -m [OLD] NEW'.", "-m")
    every: bool = flag("List the branches of remotes, too.", "-a", "--all", allows="")
    force: bool = flag("Move or replace an existing branch. With -d: delete it in any case.", "-f")


@verb("mvc branch experiment HEAD~3", _BranchOptions)
def command(session: Session, args: _BranchOptions) -> None:
    if args.delete:
        delete_refs(session, "branch", args.names, force=args.force)
    elif args.move:
        _rename(session, args.names, args.force)
    elif args.names:
        make_ref(session, "branch", args.names, partial(session.repo.branch, force=args.force))
    if session.as_json or not args.names:
        _list(session, remote=args.every)


def _rename(session: Session, names: tuple[str, ...], force: bool) -> None:
    if len(names) not in {1, 2}:
        raise click.UsageError("rename with: mvc branch -m [OLD] NEW")
    old = names[0] if len(names) == 2 else session.repo.head().branch
    if old is None:
        raise click.UsageError("HEAD is detached: name the branch to rename")
    session.repo.rename_branch(old, names[-1], force=force)
    session.note(f"Renamed branch {old} to {names[-1]}")


def _list(session: Session, *, remote: bool) -> None:
    branches, current = session.repo.refs(), session.repo.head().branch
    branches += session.repo.refs("remote") if remote else []
    if not session.answered(
        "mvc.branch/1", {"current": current, "branches": refs_json(session, branches)}
    ):
        print_refs(session, branches, "branch", current=current)
