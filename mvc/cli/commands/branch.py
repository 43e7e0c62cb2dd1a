"""``mvc branch``."""

from __future__ import annotations

import click

from mvc.cli import complete
from mvc.cli.options import json_option
from mvc.cli.program import Verb
from mvc.cli.refnames import print_refs, refs_json
from mvc.cli.session import Session
from mvc.model.names import printable
from mvc.repo import refs


@click.command("branch", cls=Verb, example="mvc branch experiment HEAD~3")
@click.argument("names", metavar="[NAME [REV]]", nargs=-1, shell_complete=complete.branches)
@click.option("-d", "--delete", is_flag=True, help="Delete NAME; refuse if versions would be lost.")
@click.option("-m", "--move", is_flag=True, help="Rename: 'mvc branch -m [OLD] NEW'.")
@click.option(
    "-f", "--force", is_flag=True, help="Move or replace an existing branch; delete in any case."
)
@json_option
@click.pass_obj
def command(
    session: Session, names: tuple[str, ...], delete: bool, move: bool, force: bool, as_json: bool
) -> None:
    """List, make, rename or delete branches."""
    if delete and move:
        raise click.UsageError("delete or rename, not both")
    if delete:
        _delete(session, names, force)
    elif move:
        _rename(session, names, force)
    elif names:
        if len(names) > 2:
            raise click.UsageError("too many arguments: mvc branch NAME [REV]")
        rev = names[1] if len(names) == 2 else "HEAD"
        made = refs.create_branch(session.context, names[0], rev, force=force)
        session.out.note(f"Branch {printable(made.name)} is at {made.commit.short}")
    if as_json or not names:
        _list(session, as_json)


def _delete(session: Session, names: tuple[str, ...], force: bool) -> None:
    if not names:
        raise click.UsageError("name the branches to delete")
    for name in names:
        refs.delete_branch(session.context, name, force=force)
        session.out.note(f"Deleted branch {printable(name)}")


def _rename(session: Session, names: tuple[str, ...], force: bool) -> None:
    if len(names) not in {1, 2}:
        raise click.UsageError("rename with: mvc branch -m [OLD] NEW")
    old = names[0] if len(names) == 2 else refs.head(session.context).branch
    if old is None:
        raise click.UsageError("HEAD is on no branch: name the branch to rename")
    refs.rename_branch(session.context, old, names[-1], force=force)
    session.out.note(f"Renamed branch {printable(old)} to {printable(names[-1])}")


def _list(session: Session, as_json: bool) -> None:
    found = refs.branches(session.context)
    current = refs.head(session.context).branch
    if as_json:
        rows = refs_json(session.context, found, current=current)
        session.out.json("mvc.branch/1", {"current": current, "branches": rows})
    else:
        print_refs(session, found, "branch", current=current)
