"""``mvc gc``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mvc.cli.options import json_option
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.cli.text import count, size
from mvc.errors import InvalidTime, WrongUsage

if TYPE_CHECKING:
    from datetime import timedelta

    from mvc.repo.gc.gc import Collection


@click.command("gc", cls=Verb, example="mvc gc -n --grace 3d")
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be done.")
@click.option(
    "--grace",
    metavar="DURATION",
    help="Keep what operations of the last DURATION left behind (14d, 36h, 0).",
)
@json_option
@click.pass_obj
def command(session: Session, dry_run: bool, grace: str | None, as_json: bool) -> None:
    """Delete unreachable versions and objects, and free their space.

    Refs, HEAD, deployments and the operations within the grace lead to versions. States that
    were forgotten go at once.
    """
    from mvc.repo.gc.gc import collect, grace_of, plan_collection

    try:
        span = grace_of(session.context, grace)
    except InvalidTime as error:
        if grace is None:
            raise
        raise WrongUsage(error.message, hint=error.hint) from None
    with session.progress("collecting", counted=True) as progress:
        act = plan_collection if dry_run else collect
        done = act(session.context, grace=span, progress=progress)
    if as_json:
        session.out.json("mvc.gc/1", _json(done, span, dry_run=dry_run))
    elif dry_run or session.verbosity >= 0:
        _print(session, done, dry_run=dry_run)


def _print(session: Session, done: Collection, *, dry_run: bool) -> None:
    out = session.out
    gone = [
        count(len(done.commits), "version") if done.commits else "",
        count(done.objects, "object") if done.objects else "",
        count(done.operations, "operation") if done.operations else "",
    ]
    named = [each for each in gone if each]
    verb = "Would delete" if dry_run else "Deleted"
    if named:
        listed = ", ".join(named[:-1]) + " and " + named[-1] if len(named) > 1 else named[0]
        out.line(f"{verb} unreachable: {listed}")
    if done.recoded:
        stored = "would be" if dry_run else "was" if done.recoded == 1 else "were"
        what = count(done.recoded, "object")
        out.line(f"{what} {stored} encoded again, because a base is deleted")
    if done.phantoms:
        stay = "would stay" if dry_run else "stays" if done.phantoms == 1 else "stay"
        out.line(
            f"{count(done.phantoms, 'object')} that no version needs {stay} as a base of others "
            "(phantoms), which is cheaper"
        )
    if dry_run and (named or done.freed):
        out.line(f"Would free about {size(done.freed)} of {size(done.before)}")
    elif done.freed > 0:
        out.line(f"Freed {size(done.freed)} of {size(done.before)}")
    elif done.freed < 0:
        out.line(f"The rest takes {size(-done.freed)} more than before")
    elif not named and not done.unquarantined:
        out.line("Nothing to collect")
    if done.unquarantined:
        out.line(
            f"{verb} {size(done.unquarantined)} of .mvc/quarantine, which may hold bytes of "
            "forgotten states"
        )
    if done.quarantined:
        session.out.note(
            f"{size(done.quarantined)} in .mvc/quarantine stay, which repairs have put aside; "
            "delete the folder when nothing is missed any more"
        )


def _json(done: Collection, grace: timedelta, *, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "grace_seconds": grace.total_seconds(),
        "commits": [str(id_) for id_ in done.commits],
        "forgotten": done.forgotten,
        "objects": done.objects,
        "phantoms": done.phantoms,
        "recoded": done.recoded,
        "operations": done.operations,
        "packs": done.packs,
        "before_bytes": done.before,
        "freed_bytes": done.freed,
        "quarantined_bytes": done.quarantined,
        "quarantine_deleted_bytes": done.unquarantined,
    }
