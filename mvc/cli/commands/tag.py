"""``mvc tag``."""

from __future__ import annotations

import click

from mvc.cli import complete
from mvc.cli.options import json_option
from mvc.cli.program import Verb
from mvc.cli.refnames import print_refs, refs_json
from mvc.cli.session import Session
from mvc.model.names import printable
from mvc.repo import refs


@click.command("tag", cls=Verb, example="mvc tag v1.2 HEAD~1")
@click.argument("names", metavar="[NAME [REV]]", nargs=-1, shell_complete=complete.tags)
@click.option("-d", "--delete", is_flag=True, help="Delete the tags NAME.")
@click.option("-f", "--force", is_flag=True, help="Move a tag that exists.")
@json_option
@click.pass_obj
def command(
    session: Session, names: tuple[str, ...], delete: bool, force: bool, as_json: bool
) -> None:
    """List, make or delete tags."""
    context, out = session.context, session.out
    if delete:
        if not names:
            raise click.UsageError("name the tags to delete")
        for name in names:
            refs.delete_tag(context, name)
            out.note(f"Deleted tag {printable(name)}")
    elif names:
        if len(names) > 2:
            raise click.UsageError("too many arguments: mvc tag NAME [REV]")
        rev = names[1] if len(names) == 2 else "HEAD"
        made = refs.create_tag(context, names[0], rev, force=force)
        out.note(f"Tag {printable(made.name)} is at {made.commit.short}")
    if as_json:
        out.json("mvc.tag/1", {"tags": refs_json(context, refs.tags(context))})
    elif not names:
        print_refs(session, refs.tags(context), "tag")
