"""How branches and tags are listed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mvc.cli.session import Session
from mvc.cli.tables import Column, show
from mvc.model.names import printable
from mvc.repo.lookup.refs import Ref
from mvc.repo.times import format_time


def print_refs(
    session: Session, found: Sequence[Ref], style: str, *, current: str | None = None
) -> None:
    """``* main  1a2b3c4d5e  message``."""
    marks = ("head", style, "id")
    columns = [*(Column("", style=each) for each in marks), Column("", give="end")]
    rows = []
    for ref in found:
        mark, title = "*" if ref.name == current else "", session.title(ref.commit)
        rows.append((mark, printable(ref.name), ref.commit.short, title))
    show(session.out, columns, rows)


def refs_json(session: Session, found: Sequence[Ref]) -> list[dict[str, Any]]:
    """Name, commit, time and message of each."""
    rows = []
    for ref in found:
        commit = session.commit(ref.commit)
        time = format_time(commit.time_ns, 0)
        rows.append(
            {"name": ref.name, "commit": ref.commit, "time": time, "message": commit.message}
        )
    return rows
