"""``mvc bench``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mvc.cli.options import json_option
from mvc.cli.program import Verb
from mvc.cli.session import Session, load
from mvc.cli.sizes import nbytes
from mvc.cli.tables import Column, show
from mvc.cli.text import count, percent, seconds, size
from mvc.errors import NotARepository
from mvc.model.names import printable
from mvc.repo.bench import MAX_BYTES, bench

if TYPE_CHECKING:
    from mvc.repo.bench import Figures, Measured, Row
    from mvc.repo.context import Context

_COLUMNS = (
    Column("pipeline"),
    Column("preset"),
    Column("deltas", right=True),
    Column("full", right=True),
    Column("commit", right=True),
    Column("checkout", right=True),
    Column("recovery", right=True),
    Column("a version", right=True),
    Column(""),
)


@click.command("bench", cls=Verb, example="mvc bench runs/2026-11")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "--max-bytes", metavar="BYTES",
    help="Commit no more than this of a version (1MB); the default is 256MiB.",
)  # fmt: skip
@json_option
@click.pass_obj
def command(session: Session, paths: tuple[str, ...], max_bytes: str | None, as_json: bool) -> None:
    """Measure every pipeline on your own models.

    Several PATHs are consecutive versions, and so are the model files of a folder. One
    tracked file is compared with its version at HEAD. Each pipeline commits them into a
    temporary repository and checks them out of it; your own repository is not written to.
    """
    context = _context(session)
    with session.progress("measuring") as progress:
        found = bench(
            [Path(path) for path in paths],
            context=context,
            config=None if context else load(None),
            max_bytes=MAX_BYTES if max_bytes is None else nbytes(max_bytes),
            progress=progress,
        )
    if as_json:
        session.out.json("mvc.bench/2", _json(found))
    else:
        _print(session, found, user=context is None)


def _context(session: Session) -> Context | None:
    """The repository, if there is one here."""
    try:
        return session.context
    except NotARepository:
        return None


def _print(session: Session, found: Measured, *, user: bool) -> None:
    out = session.out
    out.line(_looked_at(found))
    threads = count(found.threads, "thread")
    out.line(f"{threads}; every pipeline gave every version back exactly")
    out.line()
    best = found.advice.row
    show(
        out,
        _COLUMNS,
        [_cells(found, row) for row in found.rows],
        styles=["good" if row is best else None for row in found.rows],
    )
    out.line()
    _advise(session, found, user=user)
    for note in found.notes:
        out.note(note)


def _looked_at(found: Measured) -> str:
    """``31 versions of 3.55 MB, 7 pairs compared; 98.1 % changes from one to the next``."""
    text = f"{count(found.versions, 'version')} of {size(found.raw_bytes)}"
    if found.base == "HEAD":
        text = f"{printable(found.newest)}, {size(found.raw_bytes)}, compared with HEAD"
    elif found.compared:
        text += f", {count(found.compared, 'pair')} compared"
    if found.sampled < found.raw_bytes:
        text += f", {percent(found.sampled, found.raw_bytes)} of the bytes looked at"
    if found.changed is not None:
        text += f"; {percent(found.changed, 1)} changes from one to the next"
    return text


def _cells(found: Measured, row: Row) -> tuple[str, ...]:
    common = row.delta or row.full
    return (
        row.pipeline,
        row.preset or "",
        f"{row.delta.ratio:.3f}" if row.delta else "",
        f"{row.full.ratio:.3f}",
        _speed(common.commit),
        _speed(common.checkout),
        seconds(row.recovery),
        size(round(row.version_bytes)),
        _remark(found, row),
    )


def _remark(found: Measured, row: Row) -> str:
    words = []
    if found.advice.row is row:
        words.append("recommended")
    if row.pipeline == found.in_use:
        words.append("in use")
    if not row.fits:
        words.append("over the bound")
    elif row.speed < found.advice.least_speed:
        words.append("slow")
    return ", ".join(words)


def _speed(rate: float) -> str:
    return f"{rate / 1e6:.0f} MB/s"


def _advise(session: Session, found: Measured, *, user: bool) -> None:
    row, out = found.advice.row, session.out
    if row is None:
        out.line(f"No recommendation: {found.advice.reason}")
        return
    out.line(f"Recommended: {out.paint(row.name, 'good')}, {found.advice.reason}")
    if row.pipeline == found.in_use:
        out.line("It is in use already")
    else:
        out.line(f"To use it:   {_setting(row, user=user)}")


def _setting(row: Row, *, user: bool) -> str:
    return f"mvc config {'--user ' if user else ''}commit.pipeline {shlex.quote(row.name)}"


def _json(found: Measured) -> dict[str, object]:
    best = found.advice.row
    return {
        "versions": found.versions,
        "compared": found.compared,
        "newest": found.newest,
        "base": found.base,
        "raw_bytes": found.raw_bytes,
        "sampled_bytes": found.sampled,
        "changed": found.changed,
        "threads": found.threads,
        "exact": True,  # other bytes end the command with an error
        "reset_interval": found.reset_interval,
        "max_recovery": found.max_recovery,
        "in_use": found.in_use,
        "pipelines": [
            {
                "pipeline": row.pipeline,
                "preset": row.preset,
                "delta": _figures(row.delta),
                "full": _figures(row.full),
                "interval": row.interval,
                "version_bytes": round(row.version_bytes),
                "recovery": row.recovery,
                "fits": row.fits,
                "slow": row.speed < found.advice.least_speed,
            }
            for row in found.rows
        ],
        "recommended": best.name if best else None,
        "reason": found.advice.reason,
        "notes": list(found.notes),
    }


def _figures(figures: Figures | None) -> dict[str, float] | None:
    if figures is None:
        return None
    return {"ratio": figures.ratio, "commit": figures.commit, "checkout": figures.checkout}
