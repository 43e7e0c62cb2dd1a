"""``mvc tag``."""

from __future__ import annotations

import click

from mvc.cli.listing import print_refs, refs_json
from mvc.cli.verb import CommandOptions, Session, argument, flag, verb


class _TagOptions(CommandOptions, frozen=True, kw_only=True):
    names: tuple[str, ...] = argument("[NAME [REV]]", completes="TAG")
    delete: bool = flag("Delete the tags NAME.", "-d")
    force: bool = flag("Move a tag that exists.", "-f")


@verb("mvc tag v1.2 HEAD~1", _TagOptions)
def command(session: Session, args: _TagOptions) -> None:
    repository, out = session.repository, session.out
    if args.delete:
        if not args.names:
            raise click.UsageError("name the tags to delete")
        for name in args.names:
            repository.delete_tag(name)
            out.note(f"Deleted tag {name}")
    elif args.names:
        if len(args.names) > 2:
            raise click.UsageError("too many arguments: mvc tag NAME [REV]")
        made = repository.tag(*args.names, force=args.force)
        out.note(f"Tag {made.name} is at {made.commit.short}")
    if session.as_json:
        out.json("mvc.tag/1", {"tags": refs_json(session, repository.tags())})
    elif not args.names:
        print_refs(session, repository.tags(), "tag")
