"""``mvc oplog``.

Newest first, with what each of them moved; 'mvc undo NUMBER' takes one back.
"""

from __future__ import annotations

from mvc.cli.operations import about, is_shortened, moves, operation_json
from mvc.cli.options import LIMIT, CommandOptions
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.cli.tables import columns, show
from mvc.model.names import printable
from mvc.repo.oplog.oplog import Operation
from mvc.repo.times import format_time

_COLUMNS = columns("number, time, operation, state, changes, about")


class _OplogOptions(CommandOptions, frozen=True, kw_only=True):
    limit: int | None = LIMIT


@verb("mvc oplog -n 20", _OplogOptions)
def command(session: Session, args: _OplogOptions) -> None:
    found = list(session.repository.oplog(args.limit))
    if session.as_json:
        session.out.json("mvc.oplog/1", {"operations": [operation_json(each) for each in found]})
        return
    rows = [_row(each, full=session.verbose) for each in found]
    styles = [None if each.undone_by is None else "dim" for each in found]
    show(session.out, _COLUMNS, rows, styles=styles)


def _row(operation: Operation, *, full: bool) -> tuple[str, ...]:
    entry, state = operation.entry, ""
    if operation.undone_by is not None:
        state = f"undone by {operation.undone_by}"
    elif operation.number and is_shortened(entry) and entry.removed is None:
        state = "cannot be undone"
    return (
        str(operation.number),
        format_time(entry.time_ns, precise=False),
        printable(entry.operation),
        state,
        moves(entry, full=full),
        about(entry),
    )
