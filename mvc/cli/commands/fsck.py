"""``mvc fsck``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mvc.cli.options import json_option
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.cli.text import count, size
from mvc.errors import HistoryMissing, WrongUsage
from mvc.io.files import FileSystem
from mvc.model.names import printable
from mvc.repo.fsck.fsck import forget_index, fsck, lost_end, rebuild_index
from mvc.repo.maintenance.quarantine import QUARANTINE
from mvc.store.store import FOLDER

if TYPE_CHECKING:
    from mvc.repo.maintenance.report import FsckReport, Healed, Problem, Repaired

_DAMAGED = 4
_FIRST = 10


@click.command("fsck", cls=Verb, example="mvc fsck --full")
@click.option("--full", is_flag=True, help="Also recover every tensor and check its hash.")
@click.option("--repair", is_flag=True, help="Heal what can be healed; quarantine the rest.")
@click.option(
    "--from",
    "other",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="With --repair: a repository or backup that may have what is damaged here.",
)
@click.option("--rebuild-index", "rebuild", is_flag=True, help="Rebuild the index first.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, full: bool, repair: bool, other: Path | None, rebuild: bool, as_json: bool
) -> None:
    """Check every stored byte.

    Names what is damaged, the versions it touches, and those that cannot be recovered. The
    exit code is 4 if anything is damaged, with --repair if anything still is.
    """
    session: Session = ctx.obj
    if other is not None and not repair:
        raise WrongUsage("--from goes with --repair", hint="add --repair")
    healed = _before_opening(other) if repair else []
    if rebuild:
        _rebuild(session)
    if repair:
        report = _repair(session, full, other, healed, as_json)
    else:
        with session.progress("checking") as progress:
            report = fsck(session.context, full=full, progress=progress)
        if as_json:
            session.out.json("mvc.fsck/1", _json(report))
    if not as_json:
        _print(session, report)
        if not (repair or report.sound):
            session.out.note(
                "'mvc fsck --repair' heals what another record or copy here still holds, "
                "with --from BACKUP also what a backup has"
            )
    if not report.sound:
        ctx.exit(_DAMAGED)


def _before_opening(other: Path | None) -> list[Healed]:
    """Journal and format, without which nothing can be opened."""
    from mvc.repo.repair.journal import before_opening
    from mvc.repo.repair.repair import folder_of

    fs = FileSystem()
    folder = _folder(fs)
    if folder is None:
        return []  # opening says so
    return before_opening(fs, folder, None if other is None else folder_of(fs, other))


def _repair(
    session: Session, full: bool, other: Path | None, healed: list[Healed], as_json: bool
) -> FsckReport:
    from mvc.repo.repair.repair import folder_of, repair

    fs = session.context.store.fs
    source = None if other is None else folder_of(fs, other)
    with session.progress("repairing") as progress:
        done = repair(session.context, full=full, other=source, progress=progress)
    healed = [*healed, *done.healed]
    if as_json:
        session.out.json("mvc.fsck/1", _json(done.after) | _repaired_json(healed, done))
        return done.after
    out = session.out
    shown = len(healed) if session.verbose else _FIRST
    for each in healed[:shown]:
        name = printable(each.name[:10] if len(each.name) == 64 else each.name)
        source_ = printable(each.source)
        what = _titled(each.kind, name)
        out.line(f"{out.paint('healed', 'good')} {what} from {source_}")
    if len(healed) > shown:
        out.line(f"{out.paint('healed', 'good')} {len(healed) - shown:,} more")
    for kept in done.quarantined:
        where = f"{QUARANTINE}/{kept.file}"
        out.line(f"{out.paint('quarantined', 'bad')} {where}: {printable(kept.why)}")
    if done.freed:
        out.note(f"{size(done.freed)} of leftovers were deleted")
    if not (healed or done.quarantined):
        out.line("nothing to repair" if done.after.sound else _unhealed(done.after, other))
    return done.after


def _unhealed(report: FsckReport, other: Path | None) -> str:
    """Why nothing was healed, and what could."""
    lost = f"; {count(len(report.lost), 'version')} cannot be recovered" if report.lost else ""
    more = "another BACKUP" if other is not None else "--from BACKUP"
    return f"nothing could be healed{lost} (try {more})"


def _repaired_json(healed: list[Healed], done: Repaired) -> dict[str, object]:
    return {
        "healed": [{"kind": h.kind, "name": h.name, "source": h.source} for h in healed],
        "quarantined": [
            {"file": q.file, "bytes": q.length, "reason": q.why} for q in done.quarantined
        ],
        "freed_bytes": done.freed,
    }


def _rebuild(session: Session) -> None:
    loss = None
    try:
        context = session.context
    except HistoryMissing as error:
        # The journal is older than the index: opening is refused until the index is gone.
        loss = error.message
    else:
        if lost := lost_end(context):
            loss = f"{lost} is lost, and nothing stands behind it"
            session.close()
    if loss is not None:
        session.out.warn(f"{loss}; they are given up, and the index is rebuilt")
        fs = FileSystem()
        folder = _folder(fs)
        if folder is not None:
            forget_index(fs, folder)
        context = session.context
    rebuild_index(context)
    session.out.note("the index was rebuilt")


def _folder(fs: FileSystem) -> Path | None:
    """The repository's folder, whether it can be opened or not."""
    here = fs.realpath(fs.cwd())
    found = (p / FOLDER for p in (here, *here.parents) if fs.stat(p / FOLDER) is not None)
    return next(found, None)


def _print(session: Session, report: FsckReport) -> None:
    out = session.out
    for problem in report.problems:
        _print_problem(session, problem)
    for note in report.notes:
        out.note(f"note: {printable(note)}")
    gone = f" ({report.forgotten:,} forgotten)" if report.forgotten else ""
    looked = (
        f"{count(report.versions, 'version')}{gone}, {count(report.objects, 'object')}, "
        f"{count(report.records, 'record')}, {size(report.checked_bytes)} checked"
    )
    if report.sound:
        out.line(f"{out.paint('Sound', 'good')}: {looked}")
        if not report.full:
            out.note("every stored byte was checked; --full recovers every tensor as well")
        return
    found = out.paint(count(len(report.problems), "problem"), "bad")
    out.line(f"{found}: {looked}")
    out.line(_reach(session, report))


def _reach(session: Session, report: FsckReport) -> str:
    """How far the damage reaches: the versions that it takes away."""
    total = count(report.versions - report.forgotten, "version")
    if report.lost:
        shown = None if session.verbose else _FIRST
        ids = " ".join(session.out.paint(v.short, "id") for v in report.lost[:shown])
        more = _more(report.lost, shown)
        return f"{len(report.lost):,} of {total} cannot be recovered: {ids}{more}"
    return f"nothing is lost of the {total} in the journal's readable entries"


def _print_problem(session: Session, problem: Problem) -> None:
    out = session.out
    where = f" ({printable(problem.where)})" if problem.where else ""
    name = printable(problem.object[:10] if len(problem.object) == 64 else problem.object)
    title = _titled(out.paint(problem.kind, "bad"), name if name != problem.kind else "")
    out.line(f"{title}{where}: {printable(problem.message)}")
    shown = None if session.verbose else _FIRST
    if problem.versions:
        ids = " ".join(out.paint(v.short, "id") for v in problem.versions[:shown])
        touched = count(len(problem.versions), "version")
        out.line(f"  touches {touched}: {ids}{_more(problem.versions, shown)}")
    if problem.tensors:
        keys = ", ".join(printable(t) for t in problem.tensors[:shown])
        out.line(f"  holds {keys}{_more(problem.tensors, shown)}")


def _titled(kind: str, name: str) -> str:
    """``journal entry 3``, and not ``format format``."""
    return kind if not name or name == kind else f"{kind} {name}"


def _more(things: tuple[object, ...], shown: int | None) -> str:
    rest = 0 if shown is None else len(things) - shown
    return f" and {rest:,} more" if rest > 0 else ""


def _json(report: FsckReport) -> dict[str, object]:
    return {
        "sound": report.sound,
        "full": report.full,
        "problems": [
            {
                "kind": p.kind,
                "object": p.object,
                "where": p.where,
                "message": p.message,
                "versions": [str(v) for v in p.versions],
                "tensors": list(p.tensors),
            }
            for p in report.problems
        ],
        "notes": list(report.notes),
        "entries": report.entries,
        "versions": report.versions,
        "forgotten": report.forgotten,
        "lost_versions": [str(v) for v in report.lost],
        "records": report.records,
        "objects": report.objects,
        "checked_bytes": report.checked_bytes,
    }
