"""``mvc deployments``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mvc.cli import complete
from mvc.cli.commits import Live, deployed_json, forgotten_on
from mvc.cli.options import json_option
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.cli.tables import Column, show
from mvc.cli.text import one_line
from mvc.errors import DamagedData
from mvc.model.names import printable
from mvc.repo import deployments
from mvc.repo.lookup import commits, manifests
from mvc.repo.times import format_time

if TYPE_CHECKING:
    from mvc.repo.context import Context
    from mvc.repo.deployments import Deployed

_COLUMNS = (
    Column("time"),
    Column("target", style="target"),
    Column("commit", style="id"),
    Column("state"),
    Column("message", give="end"),
)


@click.command("deployments", cls=Verb, example="mvc deployments prod")
@click.argument("target", metavar="[TARGET]", required=False, shell_complete=complete.targets)
@json_option
@click.pass_obj
def command(session: Session, target: str | None, as_json: bool) -> None:
    """List what was live, where and when.

    Newest first. What is live now is marked; retracted deployments stay listed.
    """
    context, out = session.context, session.out
    incomplete: list[DamagedData] = []
    found = deployments.list_deployments(context, target, incomplete=incomplete)
    found.sort(key=lambda d: (d.time_ns, d.sequence), reverse=True)
    live = Live(context)
    if as_json:
        rows = [deployed_json(d) | {"live": live(d)} | _forgotten(context, d) for d in found]
        lost = {"incomplete": True} if incomplete else {}
        out.json("mvc.deployments/1", {"deployments": rows, **lost})
    elif found:
        rows_ = [_row(context, d, live) for d in found]
        show(out, _COLUMNS, rows_, styles=[_style(d) for d in found])
    elif not incomplete:
        out.note("nothing was deployed yet")
    session.tell_incomplete(incomplete)


def _row(context: Context, deployed: Deployed, live: Live) -> tuple[str, ...]:
    state = ["retracted" if deployed.retracted else "live" if live(deployed) else ""]
    time_ns = manifests.forgotten_ns(context, deployed.commit)
    if time_ns is not None:
        state.append(forgotten_on(time_ns))
    return (
        format_time(deployed.time_ns),
        printable(deployed.target),
        deployed.commit.short,
        ", ".join(filter(None, state)),
        _message(context, deployed),
    )


def _message(context: Context, deployed: Deployed) -> str:
    try:
        return one_line(commits.get(context, deployed.commit).message)
    except DamagedData:  # the deployment is on record, but the commit's own entry is lost
        return "(lost)"


def _forgotten(context: Context, deployed: Deployed) -> dict[str, str | int | None]:
    time_ns = manifests.forgotten_ns(context, deployed.commit)
    when = None if time_ns is None else format_time(time_ns, 0)
    return {"forgotten": when, "forgotten_ns": time_ns}


def _style(deployed: Deployed) -> str | None:
    return "dim" if deployed.retracted else None
