"""``mvc deployments``.

Newest first. What is live now is marked; retracted deployments stay listed.
"""

from __future__ import annotations

from mvc.cli.commits import IsLive, forgotten_on, live_now
from mvc.cli.options import CommandOptions, argument
from mvc.cli.payload import fields, stamped
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.cli.tables import columns, show
from mvc.errors import DamagedData
from mvc.model.names import printable
from mvc.repo.deployments import Deployed
from mvc.repo.times import format_time

_COLUMNS = columns("time, target, commit, state, message")


class _DeploymentsOptions(CommandOptions, frozen=True, kw_only=True):
    target: str | None = argument("[TARGET]")


@verb("mvc deployments prod", _DeploymentsOptions)
def command(session: Session, args: _DeploymentsOptions) -> None:
    incomplete: list[DamagedData] = []
    found = session.repository.deployments(args.target, incomplete=incomplete)[::-1]
    live = live_now(session)
    if session.as_json:
        rows = [
            fields(d) | {"live": live(d)} | stamped("forgotten", _forgotten_ns(session, d))
            for d in found
        ]
        session.out.json("mvc.deployments/1", {"deployments": rows}, incomplete=incomplete)
    elif found:
        styles = ["dim" if d.retracted else None for d in found]
        show(session.out, _COLUMNS, [_row(session, d, live) for d in found], styles=styles)
    elif not incomplete:
        session.out.note("nothing was deployed yet")
    session.tell_incomplete(incomplete)


def _row(session: Session, deployed: Deployed, live: IsLive) -> tuple[str, ...]:
    state = "retracted" if deployed.retracted else "live" if live(deployed) else ""
    states = [state, forgotten_on(_forgotten_ns(session, deployed))]
    try:
        message = session.title(deployed.commit)
    except DamagedData:  # the deployment is on record, but the commit's own entry is lost
        message = "(lost)"
    return (
        format_time(deployed.time_ns),
        printable(deployed.target),
        deployed.commit.short,
        ", ".join(filter(None, states)),
        message,
    )


def _forgotten_ns(session: Session, deployed: Deployed) -> int | None:
    return session.repository.forgotten_ns(deployed.commit)
