"""``mvc rev-parse``.

A REV is an id (4 digits or more), a branch, a tag or HEAD, with ~N for the Nth
ancestor, ^N for the Nth parent, and @{TIME} for what a branch pointed to at TIME.
"""

from __future__ import annotations

from mvc.cli.options import CommandOptions, argument, flag, option
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.errors import WrongUsage


class _RevParseOptions(CommandOptions, frozen=True, kw_only=True):
    rev: tuple[str, ...] = argument("REV...")
    at: str | None = option("TIME", "The version that was live at TIME, instead of REV.")
    target: str | None = option(
        "T", "The target of --at; needed where there are several.", needs="at"
    )
    short: bool = flag("Ten digits instead of all 64.")


@verb('mvc rev-parse "main@{1 hour ago}~2"', _RevParseOptions)
def command(session: Session, args: _RevParseOptions) -> None:
    if (args.at is None) == (not args.rev):
        raise WrongUsage("name a REV, or a moment with --at (and its --target)")
    repository = session.repository
    ids = [(text, repository.find(text)) for text in args.rev]
    if args.at is not None:
        ids = [(args.at, repository.find(at=args.at, target=args.target))]
    if session.as_json:
        found = [{"rev": text, "id": id_} for text, id_ in ids]
        session.out.json("mvc.rev-parse/1", {"revisions": found})
        return
    for _, id_ in ids:
        session.out.line(id_.short if args.short else str(id_))
