"""``mvc gc`` deletes unreachable versions, and frees their space.

Versions are reachable from refs, HEAD, deployments and recent operations (--grace). Forgotten
states are deleted immediately.
"""

from __future__ import annotations

from mvc.api import Collection
from mvc.cli.verb import DRY_RUN, REMOTE, CommandOptions, Session, fields, option, reason, verb
from mvc.limits import BUCKET_DAYS
from mvc.text import count, size


class _GcOptions(CommandOptions, frozen=True, kw_only=True):
    dry_run: bool = DRY_RUN
    reason: str | None = reason()
    grace: str | None = option(
        "DURATION", "Keep versions that operations of the last DURATION used (14d, 36h, 0)."
    )
    remote: str | None = REMOTE


@verb("mvc gc -n --grace 3d", _GcOptions)
def command(session: Session, args: _GcOptions) -> int | None:
    bucket = args.remote is not None and session.repo.remotes.find(args.remote).is_bucket
    return session.at_remote(
        args.remote, lambda: _gc(session, args, bucket=bucket), changes=not args.dry_run
    )


def _gc(session: Session, args: _GcOptions, *, bucket: bool) -> None:
    done = session.run(
        "collecting",
        session.repo.storage.gc,
        grace=args.grace,
        dry_run=args.dry_run,
        reason=args.reason or "",
        counted=True,
    )
    answered = session.answered("mvc.gc/1", {"dry_run": args.dry_run} | fields(done))
    if not answered and (args.dry_run or not session.quiet):
        _print(session, done, dry_run=args.dry_run, bucket=bucket)


def _print(session: Session, done: Collection, *, dry_run: bool, bucket: bool) -> None:
    deleted, freed = ("Would delete", "Would free about") if dry_run else ("Deleted", "Freed")
    counts = {"version": len(done.commits), "content": done.objects, "operation": done.operations}
    named = ", ".join(count(n, noun) for noun, n in counts.items() if n)
    if named:
        session.line(f"{deleted} unreachable: {named}")
    if done.recoded:
        session.line(f"Encoded again, because a base is deleted: {count(done.recoded, 'content')}")
    if done.phantoms:
        bases = count(done.phantoms, "unreachable content")
        session.line(f"Stored as a base of other contents, which takes less space: {bases}")
    if bucket and done.freed > 0:
        session.line(
            f"To be freed: {size(done.freed)} of {size(done.before)}. A bucket keeps deleted "
            f"contents for {BUCKET_DAYS} days, forgotten states too; a later 'mvc gc --remote' "
            "deletes them"
        )
    elif done.freed > 0:
        session.line(f"{freed} {size(done.freed)} of {size(done.before)}")
    elif not named and not done.unquarantined:
        session.line("Nothing to collect")
    if done.unquarantined:
        session.line(
            f"{deleted} {size(done.unquarantined)} of .mvc/quarantine, which may contain bytes of "
            "forgotten states"
        )
    if done.quarantined:
        session.note(
            f"{size(done.quarantined)} of earlier repairs stay in .mvc/quarantine; delete the "
            "folder if you need no further repair"
        )
