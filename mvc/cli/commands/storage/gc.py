"""``mvc gc``.

Refs, HEAD, deployments and the operations within the grace lead to versions. States that
were forgotten go at once.
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
        "DURATION", "Keep what operations of the last DURATION left behind (14d, 36h, 0)."
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
    told = session.answered("mvc.gc/1", {"dry_run": args.dry_run} | fields(done))
    if not told and (args.dry_run or not session.quiet):
        _print(session, done, dry_run=args.dry_run, bucket=bucket)


def _print(session: Session, done: Collection, *, dry_run: bool, bucket: bool) -> None:
    gone = {"version": len(done.commits), "object": done.objects, "operation": done.operations}
    named = [count(n, noun) for noun, n in gone.items() if n]
    deleted = "Would delete" if dry_run else "Deleted"
    if named:
        *first, last = named
        words = f"{', '.join(first)} and {last}" if first else last
        dropped = ("Would drop" if dry_run else "Dropped") if bucket else deleted
        session.line(f"{dropped} unreachable: {words}")
    if done.recoded:
        are = "would be" if dry_run else "was" if done.recoded == 1 else "were"
        what = count(done.recoded, "object")
        session.line(f"{what} {are} encoded again, because a base is deleted")
    if done.phantoms:
        stay = "would stay" if dry_run else "stays" if done.phantoms == 1 else "stay"
        session.line(
            f"{count(done.phantoms, 'object')} that no version needs {stay} as a base of others "
            "(phantoms), which is cheaper"
        )
    if bucket and done.freed > 0:
        session.line(
            f"{'Would be freed later' if dry_run else 'To be freed'}: {size(done.freed)} of "
            f"{size(done.before)}. A bucket keeps what is dropped for {BUCKET_DAYS} days, "
            "forgotten states too; a 'mvc gc --remote' after that deletes it"
        )
    elif dry_run and (named or done.freed):
        session.line(f"Would free about {size(done.freed)} of {size(done.before)}")
    elif done.freed > 0:
        session.line(f"Freed {size(done.freed)} of {size(done.before)}")
    elif done.freed < 0 and (named or done.recoded):
        session.line(f"The rest takes {size(-done.freed)} more than before")
    elif not named and not done.unquarantined:
        session.line("Nothing to collect")
    if done.unquarantined:
        session.line(
            f"{deleted} {size(done.unquarantined)} of .mvc/quarantine, which may hold bytes of "
            "forgotten states"
        )
    if done.quarantined:
        session.note(
            f"{size(done.quarantined)} in .mvc/quarantine stay, which repairs have put aside; "
            "delete the folder when nothing is missed any more"
        )
