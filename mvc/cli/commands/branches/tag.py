"""``mvc tag``.

Without NAME, mvc lists the tags. REV is HEAD by default.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import partial

from mvc.cli.listing import delete_refs, make_ref, print_refs, refs_json
from mvc.cli.verb import CommandOptions, Session, argument, flag, verb


class _TagOptions(CommandOptions, frozen=True, kw_only=True):
    names: tuple[str, ...] = argument("[NAME [REV]]", completes="TAG")
    listing: bool = flag(
        "List all tags, or those that match a NAME with wildcards.", "-l", "--list"
    )
    delete: bool = flag("Delete tags.", "-d")
    force: bool = flag("Move an existing tag.", "-f")


@verb("mvc tag v1.2 HEAD~1", _TagOptions)
def command(session: Session, args: _TagOptions) -> None:
    if args.listing or not (args.names or args.delete):
        patterns = args.names or ("*",)
        tags = session.repo.refs("tag")
        listed = [tag for tag in tags if any(fnmatchcase(tag.name, p) for p in patterns)]
        if not session.answered("mvc.tag/1", {"tags": refs_json(session, listed)}):
            print_refs(session, listed, "tag")
        return
    if args.delete:
        delete_refs(session, "tag", args.names, force=args.force)
    else:
        make_ref(session, "tag", args.names, partial(session.repo.tag, force=args.force))
    if session.as_json:
        session.json("mvc.tag/1", {"tags": refs_json(session, session.repo.refs("tag"))})
