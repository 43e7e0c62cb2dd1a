"""``mvc log``."""

from __future__ import annotations

from collections.abc import Iterable

import click

from mvc.cli.commits import as_json, details, heading, live_now, one_liner
from mvc.cli.log_graph import GraphRow, graph_lines
from mvc.cli.options import moment, revision, target_option
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.errors import DamagedData
from mvc.repo.history.log import log
from mvc.repo.lookup.refs import head_if_known


@verb("log", "mvc log -n 20 --oneline")
@revision("REV", default="HEAD")
@click.option("-n", "--max-count", "limit", type=click.IntRange(min=0), help="Stop after N.")
@click.option("--oneline", is_flag=True, help="One line a version.")
@click.option("--graph", is_flag=True, help="Draw how versions follow each other.")
@target_option("Only versions that were deployed to T.")
@click.option("--since", metavar="TIME", help="Not older than TIME.")
@click.option("--until", metavar="TIME", help="Not newer than TIME.")
def command(
    session: Session,
    rev: str,
    limit: int | None,
    oneline: bool,
    graph: bool,
    target: str | None,
    since: str | None,
    until: str | None,
) -> None:
    """Show the history of a version.

    Newest first. With --target, TIMEs are those of the deployments.
    """
    incomplete: list[DamagedData] = []
    entries = log(
        session.context,
        rev,
        limit=limit,
        target=target,
        since=moment(session, since),
        until=moment(session, until),
        incomplete=incomplete,
    )
    if session.as_json:
        commits = [as_json(entry) for entry in entries]
        lost = {"incomplete": True} if incomplete else {}
        session.out.json("mvc.log/1", {"commits": commits, **lost})
    else:
        plain = (GraphRow(entry, "", "", ()) for entry in entries)
        _print(session, graph_lines(entries) if graph else plain, oneline=oneline)
    session.tell_incomplete(incomplete)


def _print(session: Session, rows: Iterable[GraphRow], *, oneline: bool) -> None:
    """Prints versions one after the other, beside the graph where there is one."""
    out, full, now_ns = session.out, session.verbose, session.now_ns()
    branch, live = head_if_known(session.context).branch, live_now(session)
    title = one_liner if oneline else heading
    for n, row in enumerate(rows):
        if n and not oneline and not row.first:
            out.line()
        out.line(row.first + title(out, row.entry, branch, live, full=full))
        lines = [] if oneline else details(row.entry, now_ns, full=full)
        for line in [*lines, ""] if row.first and lines else lines:
            out.line((row.rest + line).rstrip())
        for link in row.links:
            out.line(link)
