"""``mvc rev-parse``."""

from __future__ import annotations

import click

from mvc.cli.options import json_option, revision
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.repo import revisions


@click.command("rev-parse", cls=Verb, example='mvc rev-parse "main@{1 hour ago}~2"')
@revision("REV", nargs=-1, required=True)
@click.option("--short", is_flag=True, help="Ten digits instead of all 64.")
@json_option
@click.pass_obj
def command(session: Session, rev: tuple[str, ...], short: bool, as_json: bool) -> None:
    """Print the full id of a revision.

    A REV is an id (4 digits or more), a branch, a tag or HEAD, with ~N for the Nth
    ancestor, ^N for the Nth parent, and @{TIME} for what a branch pointed to at TIME.
    """
    ids = [revisions.resolve(session.context, text) for text in rev]
    if as_json:
        found = [{"rev": text, "id": str(id_)} for text, id_ in zip(rev, ids, strict=True)]
        session.out.json("mvc.rev-parse/1", {"revisions": found})
        return
    for id_ in ids:
        session.out.line(id_.short if short else str(id_))
