"""``mvc oplog``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mvc.cli.operations import about, is_shortened, moves, operation_json
from mvc.cli.options import json_option
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.cli.tables import Column, show
from mvc.model.names import printable
from mvc.repo.oplog import oplog
from mvc.repo.times import format_time

if TYPE_CHECKING:
    from mvc.repo.oplog.oplog import Operation

_COLUMNS = (
    Column("number", right=True, style="id"),
    Column("time"),
    Column("operation", style="heading"),
    Column("state"),
    Column("changes", give="end"),
    Column("about", give="end"),
)


@click.command("oplog", cls=Verb, example="mvc oplog -n 20")
@click.option("-n", "--max-count", "limit", type=click.IntRange(min=0), help="Stop after N.")
@json_option
@click.pass_obj
def command(session: Session, limit: int | None, as_json: bool) -> None:
    """List the operations on the repository.

    Newest first, with what each of them moved; 'mvc undo NUMBER' takes one back.
    """
    found = list(oplog.oplog(session.context, limit))
    if as_json:
        session.out.json("mvc.oplog/1", {"operations": [operation_json(each) for each in found]})
        return
    rows = [_row(each, full=session.verbose) for each in found]
    show(session.out, _COLUMNS, rows, styles=[_style(each) for each in found])


def _row(operation: Operation, *, full: bool) -> tuple[str, ...]:
    entry = operation.entry
    return (
        str(operation.number),
        format_time(entry.time_ns, precise=False),
        printable(entry.operation),
        _state(operation),
        moves(entry, full=full),
        about(entry),
    )


def _state(operation: Operation) -> str:
    if operation.undone_by is not None:
        return f"undone by {operation.undone_by}"
    shortened = is_shortened(operation.entry) and operation.entry.removed is None
    return "cannot be undone" if operation.number and shortened else ""


def _style(operation: Operation) -> str | None:
    return None if operation.undone_by is None else "dim"
