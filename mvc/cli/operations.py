"""How operations are shown: as words, as a list and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mvc.cli.payload import fields
from mvc.cli.session import Session
from mvc.cli.tables import columns, show
from mvc.cli.text import count, listed, one_line
from mvc.ids import CommitId
from mvc.model.names import printable
from mvc.repo.oplog.oplog import Operation, label
from mvc.repo.times import format_time
from mvc.store.journal.entries import Entry, RefChange, RefValue


def ref_move(change: RefChange, *, full: bool = False) -> str:
    """``main 1a2b3c4d5e -> 6f7a8b9c0d``; without the old value if gc removed it."""
    name, new = printable(label(change.name)), _value(change.new, full)
    if change.old == change.new:
        return f"{name} deleted" if change.new is None else f"{name} {new}"
    return f"{name} {_value(change.old, full)} -> {new}"


def is_shortened(entry: Entry) -> bool:
    """Whether ``gc`` removed the old values of the refs that the operation moved."""
    return bool(entry.refs) and all(change.old == change.new for change in entry.refs)


_COLUMNS = columns("number, time, operation, state, who, why, changes, about")
_WEIGHTS = {"proven": "made again", "dropped": "given up", "restored": "stored again"}


def _value(value: RefValue, full: bool) -> str:
    if value is None:
        return "none"
    if isinstance(value, CommitId):
        return str(value) if full else value.short
    return printable(value)


def moves(entry: Entry, *, full: bool = False) -> str:
    """Everything that an operation moved or recorded, on one line."""
    return ", ".join(_moves(entry, full))


def _moves(entry: Entry, full: bool) -> Iterator[str]:
    for change in entry.refs:
        yield ref_move(change, full=full)
    for made in entry.deployments:
        yield f"{_value(made.commit, full)} live on {printable(made.target)}"
    for taken in entry.retractions:
        yield f"operation {taken.sequence} retracted on {printable(taken.target)}"
    for link in entry.relinks:
        before = "nothing" if link.previous is None else f"operation {link.previous}"
        yield f"operation {link.sequence} follows {before} on {printable(link.target)}"
    if len(entry.commits) > 1:
        yield count(len(entry.commits), "commit")
    for found in entry.evidence if entry.origin_ns is not None else ():
        yield f"{_value(found.commit, full)} annotated"
    if entry.stamps:
        yield f"{count(len(entry.stamps), 'deployment')} stamped"
    if entry.here_again:
        yield f"{count(len(entry.here_again), 'state')} here again"
    if entry.forgotten:
        yield f"{count(len(entry.forgotten), 'state')} forgotten"
    for mark in entry.weights:
        yield f"weights of {_value(mark.commit, full)} {_WEIGHTS[mark.kind]}"
    if entry.removed is not None:
        names = listed([printable(path) for path in entry.removed], 3)
        yield f"to leave out next: {names or 'nothing'}"


def about(entry: Entry) -> str:
    """The number of the operation it undoes, else a commit's message, else its note."""
    if entry.undoes is not None:
        return f"undoes {entry.undoes}"
    if entry.commits:
        return one_line(entry.commits[-1].message)
    told = entry.refs or entry.deployments or entry.retractions  # the note has their names
    return "" if told else one_line(entry.note)


def operation_json(operation: Operation) -> dict[str, Any]:
    """One operation; times both in ISO 8601 (UTC) and in nanoseconds."""
    entry = operation.entry
    return {
        "number": operation.number,
        **fields(entry, "operation time@ author=done_by reason note refs"),
        "commits": [commit.id for commit in entry.commits],
        **fields(entry, "deployments retractions relinks forgotten here_again weights removed"),
        **fields(entry, "stamps origin@ undoes"),
        "undone_by": operation.undone_by,
        "shortened": is_shortened(entry),
    }


def print_operations(session: Session, limit: int | None) -> None:
    """Prints the newest operations, with what each of them moved."""
    found = list(session.repository.oplog(limit))
    if session.as_json:
        payload = {"operations": [operation_json(each) for each in found]}
        session.out.json("mvc.undo.list/1", payload)
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
        printable(entry.done_by),
        one_line(entry.reason),
        moves(entry, full=full),
        about(entry),
    )
