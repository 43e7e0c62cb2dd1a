"""``mvc deploy``."""

from __future__ import annotations

import click

from mvc.cli import complete
from mvc.cli.commits import deployed_json, warn_of_clock, warn_of_time
from mvc.cli.options import json_option, moment, revision
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.model.names import printable
from mvc.repo import deployments
from mvc.repo.lookup import commits, revisions
from mvc.repo.times import format_time


@click.command("deploy", cls=Verb, example="mvc deploy HEAD prod --at 2026-11-20T10:00")
@revision("REV")
@click.argument("target", metavar="TARGET", shell_complete=complete.targets)
@click.option("--at", metavar="TIME", help="When it went live, if not now.")
@click.option("--retract", is_flag=True, help="Record that this deployment did not happen.")
@json_option
@click.pass_obj
def command(
    session: Session, rev: str, target: str, at: str | None, retract: bool, as_json: bool
) -> None:
    """Record that a version went live on a target.

    With --retract, its newest deployment there, or the one at TIME, no longer counts;
    it stays on record.
    """
    context, out = session.context, session.out
    time_ns = moment(session, at)
    if retract:
        commit_id = revisions.resolve(context, rev)
        done = deployments.retract(context, commit_id, target, time_ns)
    else:
        done = deployments.deploy(context, rev, target, time_ns)
        warn_of_clock(out, done)
        warn_of_time(out, done, commits.get(context, done.commit))
    if as_json:
        out.json("mvc.deploy/1", {"deployment": deployed_json(done)})
    elif session.verbosity >= 0:
        name = out.paint(printable(target), "target")
        verb = "Retracted" if retract else "Deployed"
        id_ = out.paint(done.commit.short, "id")
        joint = "on" if retract else "to"
        out.line(f"{verb} {id_} {joint} {name} at {format_time(done.time_ns)}")
