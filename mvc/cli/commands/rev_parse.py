"""``mvc rev-parse``."""

from __future__ import annotations

import click

from mvc.cli.options import revision, target_option
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.errors import WrongUsage


@verb("rev-parse", 'mvc rev-parse "main@{1 hour ago}~2"')
@revision("REV", nargs=-1)
@click.option("--at", metavar="TIME", help="The version that was live at TIME, instead of REV.")
@target_option("The target of --at; needed where there are several.")
@click.option("--short", is_flag=True, help="Ten digits instead of all 64.")
def command(
    session: Session, rev: tuple[str, ...], at: str | None, target: str | None, short: bool
) -> None:
    """Print the full id of a revision.

    A REV is an id (4 digits or more), a branch, a tag or HEAD, with ~N for the Nth
    ancestor, ^N for the Nth parent, and @{TIME} for what a branch pointed to at TIME.
    """
    if (at is None) == (not rev) or (target is not None and at is None):
        raise WrongUsage("name a REV, or a moment with --at (and its --target)")
    repository = session.repository
    ids = [(text, repository.find(text)) for text in rev]
    if at is not None:
        ids = [(at, repository.live(at, target).commit)]
    if session.as_json:
        found = [{"rev": text, "id": id_} for text, id_ in ids]
        session.out.json("mvc.rev-parse/1", {"revisions": found})
        return
    for _, id_ in ids:
        session.out.line(id_.short if short else str(id_))
