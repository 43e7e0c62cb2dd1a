"""``mvc tag``."""

from __future__ import annotations

import click

from mvc.cli.completing import complete_tags
from mvc.cli.program import verb
from mvc.cli.refnames import print_refs, refs_json
from mvc.cli.session import Session
from mvc.model.names import printable


@verb("tag", "mvc tag v1.2 HEAD~1")
@click.argument("names", metavar="[NAME [REV]]", nargs=-1, shell_complete=complete_tags)
@click.option("-d", "--delete", is_flag=True, help="Delete the tags NAME.")
@click.option("-f", "--force", is_flag=True, help="Move a tag that exists.")
def command(session: Session, names: tuple[str, ...], delete: bool, force: bool) -> None:
    """List, make or delete tags."""
    repository, out = session.repository, session.out
    if delete:
        if not names:
            raise click.UsageError("name the tags to delete")
        for name in names:
            repository.delete_tag(name)
            out.note(f"Deleted tag {printable(name)}")
    elif names:
        if len(names) > 2:
            raise click.UsageError("too many arguments: mvc tag NAME [REV]")
        made = repository.tag(*names, force=force)
        out.note(f"Tag {printable(made.name)} is at {made.commit.short}")
    if session.as_json:
        out.json("mvc.tag/1", {"tags": refs_json(session, repository.tags())})
    elif not names:
        print_refs(session, repository.tags(), "tag")
