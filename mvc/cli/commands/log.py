"""``mvc log``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mvc.cli.commits import Live, details, heading, one_liner
from mvc.cli.commits import as_json as commit_json
from mvc.cli.log_graph import graph_lines
from mvc.cli.options import json_option, moment, revision, target_option
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.repo.history import log as history_log
from mvc.repo.lookup import refs as pointers

if TYPE_CHECKING:
    from mvc.errors import DamagedData
    from mvc.repo.history.log import LogEntry


@click.command("log", cls=Verb, example="mvc log -n 20 --oneline")
@revision("REV", default="HEAD")
@click.option("-n", "--max-count", "limit", type=click.IntRange(min=0), help="Stop after N.")
@click.option("--oneline", is_flag=True, help="One line a version.")
@click.option("--graph", is_flag=True, help="Draw how versions follow each other.")
@target_option("Only versions that were deployed to T.")
@click.option("--since", metavar="TIME", help="Not older than TIME.")
@click.option("--until", metavar="TIME", help="Not newer than TIME.")
@json_option
@click.pass_obj
def command(
    session: Session,
    rev: str,
    limit: int | None,
    oneline: bool,
    graph: bool,
    target: str | None,
    since: str | None,
    until: str | None,
    as_json: bool,
) -> None:
    """Show the history of a version.

    Newest first. With --target, TIMEs are those of the deployments.
    """
    context, out = session.context, session.out
    incomplete: list[DamagedData] = []
    entries = history_log.log(
        context,
        rev,
        limit=limit,
        target=target,
        since=moment(session, since),
        until=moment(session, until),
        incomplete=incomplete,
    )
    if as_json:
        commits = [
            commit_json(e.id, e.commit, e.refs, e.deployments, e.forgotten_ns) for e in entries
        ]
        lost = {"incomplete": True} if incomplete else {}
        out.json("mvc.log/1", {"commits": commits, **lost})
        session.tell_incomplete(incomplete)
        return
    show = _Printer(session, pointers.head_if_known(context).branch, oneline=oneline)
    if graph:
        for row in graph_lines(entries):
            show.entry(row.entry, row.first, row.rest)
            for link in row.links:
                out.line(link)
    else:
        for entry in entries:
            show.entry(entry)
    session.tell_incomplete(incomplete)


class _Printer:
    """Prints versions one after the other, beside the graph where there is one."""

    def __init__(self, session: Session, branch: str | None, *, oneline: bool) -> None:
        self._out = session.out
        self._full = session.verbose
        self._branch = branch
        self._live = Live(session.context)
        self._oneline = oneline
        self._now = session.now_ns()
        self._first = True

    def entry(self, entry: LogEntry, first: str = "", rest: str = "") -> None:
        if self._oneline:
            text = one_liner(self._out, entry, self._branch, self._live, full=self._full)
            self._out.line(first + text)
            return
        if not self._first and not first:
            self._out.line()
        self._first = False
        title = heading(self._out, entry, self._branch, self._live, full=self._full)
        self._out.line(first + title)
        lines = details(entry, self._now, full=self._full)
        for line in [*lines, ""] if first else lines:
            self._out.line((rest + line).rstrip())
