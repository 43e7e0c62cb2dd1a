"""Every pipeline measured on the user's own models."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mvc.api.bench import MAX_BYTES, BenchRow, Measured, bench
from mvc.cli.session import Session, load
from mvc.cli.tables import Column, numbers, show
from mvc.cli.text import count, nbytes, percent, seconds, size
from mvc.errors import NotARepository
from mvc.model.names import printable

_COLUMNS = (
    Column("pipeline"),
    Column("preset"),
    *numbers("deltas, full, commit, checkout, recovery, a version"),
    Column(""),
)


def measure(session: Session, paths: Sequence[str], max_bytes: str | None) -> None:
    """Measures the pipelines on the models of ``paths``, and prints the best."""
    repository = None
    with suppress(NotARepository):
        repository = session.repository
    with session.progress("measuring") as progress:
        found = bench(
            [Path(path) for path in paths],
            repository=repository,
            config=None if repository else load(None),
            max_bytes=MAX_BYTES if max_bytes is None else nbytes(max_bytes),
            progress=progress,
        )
    if session.as_json:
        session.out.json("mvc.pipeline.bench/1", found)
    else:
        _print(session, found, user=repository is None)


def _print(session: Session, found: Measured, *, user: bool) -> None:
    """``user``: the settings in use are the user's own."""
    out, best = session.out, found.advice.row
    out.line(_looked_at(found))
    out.line(f"{count(found.threads, 'thread')}; every pipeline gave every version back exactly")
    out.line()
    styles = ["good" if row is best else None for row in found.rows]
    show(out, _COLUMNS, [_cells(found, row) for row in found.rows], styles=styles)
    out.line()
    if best is None:
        out.line(f"No recommendation: {found.advice.reason}")
    else:
        out.line(f"Recommended: {out.paint(best.name, 'good')}, {found.advice.reason}")
        setting = f"{'--user ' if user else ''}commit.pipeline {shlex.quote(best.name)}"
        use = f"To use it:   mvc config {setting}"
        out.line("It is in use already" if best.pipeline == found.in_use else use)
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


def _cells(found: Measured, row: BenchRow) -> tuple[str, ...]:
    common = row.delta or row.full
    return (
        row.pipeline,
        row.preset or "",
        f"{row.delta.ratio:.3f}" if row.delta else "",
        f"{row.full.ratio:.3f}",
        _speed(common.commit),
        _speed(common.checkout),
        seconds(row.recovery),
        size(row.version_bytes),
        _remark(found, row),
    )


def _remark(found: Measured, row: BenchRow) -> str:
    words = {
        "recommended": found.advice.row is row,
        "in use": row.pipeline == found.in_use,
        "over the bound": not row.fits,
        "slow": row.fits and row.slow,
    }
    return ", ".join(word for word, said in words.items() if said)


def _speed(rate: float) -> str:
    return f"{rate / 1e6:.0f} MB/s"
