"""How branches and tags are listed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mvc.cli.session import Session
from mvc.cli.tables import Column, show
from mvc.cli.text import one_line
from mvc.model.names import printable
from mvc.repo.lookup import commits
from mvc.repo.times import format_time

if TYPE_CHECKING:
    from mvc.repo.context import Context
    from mvc.repo.refs import Ref

__all__ = ["print_refs", "refs_json"]


def print_refs(
    session: Session, found: Sequence[Ref], style: str, *, current: str | None = None
) -> None:
    """``* main  1a2b3c4d5e  message``."""
    columns = [
        Column("", style="head"),
        Column("", style=style),
        Column("", style="id"),
        Column("", give="end"),
    ]
    rows = [
        (
            "*" if ref.name == current else "",
            printable(ref.name),
            ref.commit.short,
            one_line(commits.get(session.context, ref.commit).message),
        )
        for ref in found
    ]
    show(session.out, columns, rows)


def refs_json(
    context: Context, found: Sequence[Ref], *, current: str | None = None
) -> list[dict[str, Any]]:
    """Name, commit, time and message of each."""
    rows = []
    for ref in found:
        commit = commits.get(context, ref.commit)
        row: dict[str, Any] = {
            "name": ref.name,
            "commit": str(ref.commit),
            "time": format_time(commit.time_ns, 0),
            "message": commit.message,
        }
        if current is not None:
            row["current"] = ref.name == current
        rows.append(row)
    return rows
