"""``mvc undo``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mvc.cli.commits import deployed_json
from mvc.cli.operations import moves, operation_json, ref_json
from mvc.cli.options import json_option
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.model.names import printable
from mvc.repo import deployments
from mvc.repo.oplog import undo
from mvc.repo.times import format_time

if TYPE_CHECKING:
    from mvc.repo.context import Context
    from mvc.repo.deployments import Deployed
    from mvc.repo.oplog.undo import Undoing


@click.command("undo", cls=Verb, example="mvc undo")
@click.argument("number", metavar="[NUMBER]", type=click.IntRange(min=0), required=False)
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be done.")
@json_option
@click.pass_obj
def command(session: Session, number: int | None, dry_run: bool, as_json: bool) -> None:
    """Take back an operation.

    The newest one that moved branches, tags or HEAD, or the one with NUMBER of 'mvc oplog'.
    Files stay as they are.
    """
    context, out = session.context, session.out
    done = undo.plan(context, number) if dry_run else undo.undo(context, number)
    if as_json:
        out.json("mvc.undo/1", _json(done))
    elif dry_run or session.verbosity >= 0:
        out.line(_told(done, full=session.verbose))
    _tell_of_head(session, done)
    _tell_of_deleted(session, done)
    for deployed in done.deployments:
        out.note(_tell_of_deployment(context, deployed))


def _told(done: Undoing, *, full: bool) -> str:
    verb = "Would undo" if done.number is None else "Undid"
    name = printable(done.operation.entry.operation)
    return f"{verb} operation {done.operation.number} ({name}): {moves(done.entry, full=full)}"


def _tell_of_head(session: Session, done: Undoing) -> None:
    at, verb = done.after, "would be" if done.number is None else "is"
    place = "detached" if at.branch is None else f"on {printable(at.branch)}"
    version = ", without a version yet" if at.commit is None else f", at {at.commit.short}"
    session.out.note(f"HEAD {verb} {place}{version}")
    if at.commit == done.before.commit:
        return
    how = "'mvc status' compares them with HEAD"
    if at.commit is not None:
        how += ", 'mvc checkout -f HEAD' writes those of HEAD over them"
    session.out.note(f"The files are not touched: {how}")


def _tell_of_deleted(session: Session, done: Undoing) -> None:
    """``mvc rm`` deletes files; undoing it does not write them."""
    context, left_out = session.context, done.entry.removed
    if left_out is None:
        return
    for path in sorted({*(done.operation.entry.removed or ())} - {*left_out}):
        if context.store.fs.stat(context.root / path) is None:
            name = session.from_here(path)
            session.out.note(f"{name} is not there: 'mvc checkout HEAD {name}' writes it")


def _tell_of_deployment(context: Context, deployed: Deployed) -> str:
    short, target = deployed.commit.short, printable(deployed.target)
    exact = ""
    for other in deployments.of_commit(context.store.snapshot, deployed.commit):
        later = other.sequence > deployed.sequence and not other.retracted
        if later and other.target == deployed.target:
            exact = f" --at {format_time(deployed.time_ns)}"
    return (
        f"Its deployment of {short} to {target} stays on record; to retract it: "
        f"mvc deploy {short} {target} --retract{exact}"
    )


def _json(done: Undoing) -> dict[str, Any]:
    removed = done.entry.removed
    return {
        "number": done.number,
        "undone": operation_json(done.operation),
        "refs": [ref_json(change) for change in done.entry.refs],
        "removed": None if removed is None else list(removed),
        "head": {
            "branch": done.after.branch,
            "commit": None if done.after.commit is None else str(done.after.commit),
            "moved": done.after.commit != done.before.commit,
        },
        "deployments": [deployed_json(each) for each in done.deployments],
    }
