"""``mvc rev-parse``."""

from __future__ import annotations

import click

from mvc.cli.options import json_option, revision, target_option
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.errors import WrongUsage
from mvc.repo import deployments, times
from mvc.repo.lookup import revisions


@click.command("rev-parse", cls=Verb, example='mvc rev-parse "main@{1 hour ago}~2"')
@revision("REV", nargs=-1)
@click.option("--at", metavar="TIME", help="The version that was live at TIME, instead of REV.")
@target_option("Whose deployments --at looks at.")
@click.option("--short", is_flag=True, help="Ten digits instead of all 64.")
@json_option
@click.pass_obj
def command(
    session: Session,
    rev: tuple[str, ...],
    at: str | None,
    target: str | None,
    short: bool,
    as_json: bool,
) -> None:
    """Print the full id of a revision.

    A REV is an id (4 digits or more), a branch, a tag or HEAD, with ~N for the Nth
    ancestor, ^N for the Nth parent, and @{TIME} for what a branch pointed to at TIME.
    """
    if (at is None) == (not rev) or (target is not None and at is None):
        raise WrongUsage("name a REV, or a moment with --at (and its --target)")
    if at is not None:
        moment = times.parse_time(at, now_ns=session.now_ns())
        ids, rev = [deployments.live_at(session.context, moment, target).commit], (at,)
    else:
        ids = [revisions.resolve(session.context, text) for text in rev]
    if as_json:
        found = [{"rev": text, "id": str(id_)} for text, id_ in zip(rev, ids, strict=True)]
        session.out.json("mvc.rev-parse/1", {"revisions": found})
        return
    for id_ in ids:
        session.out.line(id_.short if short else str(id_))
