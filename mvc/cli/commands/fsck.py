"""``mvc fsck``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mvc.cli.options import json_option
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.cli.text import count, size
from mvc.errors import HistoryMissing
from mvc.io.files import FileSystem
from mvc.model.names import printable
from mvc.repo.fsck import forget_index, fsck, rebuild_index
from mvc.store import environments
from mvc.store.store import FOLDER
from mvc.store.view import INDEX

if TYPE_CHECKING:
    from mvc.repo.report import FsckReport, Problem

_DAMAGED = 4
_FIRST = 10


@click.command("fsck", cls=Verb, example="mvc fsck --full")
@click.option("--full", is_flag=True, help="Also recover every tensor and check its hash.")
@click.option("--rebuild-index", "rebuild", is_flag=True, help="Make the index anew first.")
@json_option
@click.pass_context
def command(ctx: click.Context, full: bool, rebuild: bool, as_json: bool) -> None:
    """Check every stored byte.

    Names what is damaged and the versions it touches; everything else stays readable. The
    exit code is 4 if anything is damaged.
    """
    session: Session = ctx.obj
    if rebuild:
        _rebuild(session)
    with session.progress("checking") as progress:
        report = fsck(session.context, full=full, progress=progress)
    if as_json:
        session.out.json("mvc.fsck/1", _json(report))
    else:
        _print(session, report)
    if not report.sound:
        ctx.exit(_DAMAGED)


def _rebuild(session: Session) -> None:
    try:
        context = session.context
    except HistoryMissing as loss:
        # The journal is older than the index: opening is refused until the index is gone.
        session.out.warn(f"{loss.message}; they are given up")
        fs = FileSystem()
        folder = _folder(fs)
        environments.forget(folder / INDEX)
        forget_index(fs, folder)
        context = session.context
    rebuild_index(context)
    session.out.note("the index was made anew")


def _folder(fs: FileSystem) -> Path:
    """The repository's folder; opening it has failed, so it is there."""
    here = fs.realpath(fs.cwd())
    return next(p / FOLDER for p in (here, *here.parents) if fs.stat(p / FOLDER) is not None)


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
    else:
        found = out.paint(count(len(report.problems), "problem"), "bad")
        out.line(f"{found}: {looked}")


def _print_problem(session: Session, problem: Problem) -> None:
    out = session.out
    where = f" ({printable(problem.where)})" if problem.where else ""
    name = printable(problem.object[:10] if len(problem.object) == 64 else problem.object)
    out.line(f"{out.paint(problem.kind, 'bad')} {name}{where}: {printable(problem.message)}")
    shown = None if session.verbose else _FIRST
    if problem.versions:
        ids = " ".join(out.paint(v.short, "id") for v in problem.versions[:shown])
        touched = count(len(problem.versions), "version")
        out.line(f"  touches {touched}: {ids}{_more(problem.versions, shown)}")
    if problem.tensors:
        keys = ", ".join(printable(t) for t in problem.tensors[:shown])
        out.line(f"  holds {keys}{_more(problem.tensors, shown)}")


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
        "records": report.records,
        "objects": report.objects,
        "checked_bytes": report.checked_bytes,
    }
