"""``mvc log``."""

from __future__ import annotations

import click

from mvc.cli.commits import IsLive, details, entry_json, heading, live_now, one_liner
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
        commits = [entry_json(entry) for entry in entries]
        lost = {"incomplete": True} if incomplete else {}
        session.out.json("mvc.log/1", {"commits": commits, **lost})
        session.tell_incomplete(incomplete)
        return
    branch, live = head_if_known(session.context).branch, live_now(session)
    now_ns = None if oneline else session.repository.time("now")
    rows = graph_lines(entries) if graph else (GraphRow(entry, "", "", ()) for entry in entries)
    for n, row in enumerate(rows):
        if n and not oneline and not graph:
            session.out.line()
        _print(session, row, branch, live, now_ns)
    session.tell_incomplete(incomplete)


def _print(
    session: Session, row: GraphRow, branch: str | None, live: IsLive, now_ns: int | None
) -> None:
    """One version, beside the graph where there is one; on one line without ``now_ns``."""
    out, full = session.out, session.verbose
    title = one_liner if now_ns is None else heading
    out.line(row.first + title(out, row.entry, branch, live, full=full))
    if now_ns is not None:
        lines = details(row.entry, now_ns, full=full)
        for line in [*lines, ""] if row.first else lines:
            out.line((row.rest + line).rstrip())
    for link in row.links:
        out.line(link)
