"""``mvc fsck``.

Lists damage, the versions that need damaged data, and the versions that cannot be recovered. The
exit code is 4 if there is damage; with --repair, if damage remains.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from mvc.api import FsckReport, Problem, Repaired, heal, rebuild_index
from mvc.cli.commits import note_absent
from mvc.cli.environments import trained_elsewhere
from mvc.cli.session import load
from mvc.cli.verb import REMOTE, CommandOptions, Session, fields, flag, option, verb
from mvc.errors import DamagedData, RemoteRefused
from mvc.ids import CommitId
from mvc.text import count, listed, printable, size

_FIRST = 10


class _FsckOptions(CommandOptions, frozen=True, kw_only=True):
    full: bool = flag("Decode and hash every tensor, too.")
    repair: bool = flag(
        "Repair data from their copies. Move bytes that cannot be repaired to .mvc/quarantine."
    )
    other: Path | None = option(
        "DIR",
        "With --repair: also take data from DIR, a backup or another repository, such as a clone.",
        "--from",
        needs="repair",
    )
    rebuild: bool = flag("First rebuild the index from the journal.", "--rebuild-index")
    remote: str | None = REMOTE


@verb("mvc fsck --full", _FsckOptions)
def command(session: Session, args: _FsckOptions) -> int | None:
    if args.other is not None:
        args = replace(args, other=args.other.absolute())
    repairs = args.repair or args.rebuild
    if repairs and args.remote and session.repo.remotes.find(args.remote).is_bucket:
        raise RemoteRefused(
            "--repair does not work on a bucket",
            hint="restore damaged objects from a copy, or push to a new bucket",
        )
    return session.at_remote(args.remote, lambda: _fsck(session, args), changes=repairs)


def _fsck(session: Session, args: _FsckOptions) -> int:
    repaired: dict[str, Any] = {}
    if args.repair:
        done = session.run(
            "repairing", heal, other=args.other, full=args.full, rebuild=args.rebuild, config=load
        )
        report, lost = done.after, done.lost
        repaired = fields(done, "healed quarantined freed_bytes=freed")
    else:
        lost = rebuild_index(config=load) if args.rebuild else None
        report = session.run("checking", session.repo.storage.fsck, full=args.full)
    if lost is not None:
        session.warn(f"{lost}; the lost entries were discarded, and the index was rebuilt")
    if args.rebuild:
        session.note("the index was rebuilt")
    if not session.answered("mvc.fsck/1", fields(report) | repaired):
        if args.repair:
            _print_repaired(session, done)
        _print(session, report)
        if not (report.sound or args.other):
            session.note(
                "'mvc fsck --repair' repairs from other records in this repository; add "
                "--from DIR to repair from a backup or a new clone, too"
            )
    return 0 if report.sound else DamagedData.exit_code


def _print_repaired(session: Session, done: Repaired) -> None:
    good, bad = session.paint("healed", "good"), session.paint("quarantined", "bad")
    healed = done.healed if session.verbose else done.healed[:_FIRST]
    session.lines(
        f"{good} {_titled(row.kind, _short(row.name))} from {printable(row.source)}"
        for row in healed
    )
    session.left_out(len(done.healed) - len(healed))
    session.lines(f"{bad} quarantine/{row.file}: {printable(row.why)}" for row in done.quarantined)
    if not (done.healed or done.quarantined):
        session.line(
            "nothing to repair"
            if done.after.sound
            else "nothing could be repaired (try --from with another backup)"
        )


def _print(session: Session, report: FsckReport) -> None:
    for problem in report.problems:
        _print_problem(session, problem)
    for note in report.notes:
        session.note(f"note: {note}")
    missing = {"forgotten": report.forgotten, "absent": report.absent}
    words = ", ".join(f"{number:,} {word}" for word, number in missing.items() if number)
    not_stored = f" ({words})" if words else ""
    checked = (
        f"{count(report.versions, 'version')}{not_stored}, {count(report.objects, 'content')}, "
        f"{count(report.records, 'record')}, {size(report.checked_bytes)} checked"
    )
    if report.sound:
        session.line(f"{session.paint('Sound', 'good')}: {checked}")
        note_absent(session, report.absent)
        if elsewhere := trained_elsewhere(session):
            session.note(
                f"note: {count(elsewhere, 'version')} without weights: trained in another "
                "environment; a replay on this machine may not reproduce them"
            )
        if not report.full:
            session.note("every stored byte was checked; --full recovers every tensor as well")
        return
    session.line(f"{session.paint(count(len(report.problems), 'problem'), 'bad')}: {checked}")
    total = count(report.versions - report.forgotten - report.absent, "version")
    if report.lost:
        ids = _ids(session, report.lost)
        session.line(f"{len(report.lost):,} of {total} cannot be recovered: {ids}")
    else:
        session.line(f"nothing is lost: {total} in readable journal entries")


def _print_problem(session: Session, problem: Problem) -> None:
    where = f" ({printable(problem.where)})" if problem.where else ""
    name = _short(problem.object)
    title = _titled(session.paint(problem.kind, "bad"), name if name != problem.kind else "")
    session.line(f"{title}{where}: {printable(problem.message)}")
    if problem.versions:
        touched = count(len(problem.versions), "version")
        session.line(f"  affects {touched}: {_ids(session, problem.versions)}")
    if problem.tensors:
        most = None if session.verbose else _FIRST
        session.line(f"  contains {listed([printable(t) for t in problem.tensors], most)}")


def _ids(session: Session, versions: Sequence[CommitId]) -> str:
    return listed(
        [session.paint(version.short, "id") for version in versions],
        None if session.verbose else _FIRST,
        " ",
    )


def _short(name: str) -> str:
    return printable(name[:10] if len(name) == 64 else name)


def _titled(kind: str, name: str) -> str:
    """Kind and name, such as ``journal entry 3``. If kind and name are equal, only the kind."""
    return kind if not name or name == kind else f"{kind} {name}"
