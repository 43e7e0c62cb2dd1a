"""``mvc undo``.

Undoes the newest operation that moved a branch, a tag or HEAD. NUMBER selects another operation of
--list. All refs that the operation moved return to their earlier values. Files do not change. To
undo a deployment, use 'mvc rollback' or 'mvc deploy --retract'.
"""

from __future__ import annotations

from collections import Counter

import click

from mvc.api import Operation, Undoing
from mvc.cli.commits import live_now, who
from mvc.cli.restored import note_training
from mvc.cli.verb import (
    DRY_RUN,
    CommandOptions,
    Session,
    argument,
    flag,
    reason,
    verb,
)
from mvc.errors import RefConflict
from mvc.ids import SHORT_HEX, CommitId
from mvc.text import count, one_line, printable


class _UndoOptions(CommandOptions, frozen=True, kw_only=True):
    number: int | None = argument("[NUMBER]", type=click.IntRange(min=0))
    dry_run: bool = DRY_RUN
    reason: str | None = reason()
    listed: bool = flag("List the operations, newest first.", "--list", allows="")


@verb("mvc undo", _UndoOptions)
def command(session: Session, args: _UndoOptions) -> None:
    if args.listed:
        print_operations(session)
        return
    if args.number is None and session.repo.interrupted.given_up:
        raise RefConflict(
            "the interrupted checkout was cancelled; nothing else was undone",
            hint="repeat 'mvc undo' to undo the newest operation of 'mvc undo --list', too",
        )
    done = session.repo.undo(args.number, dry_run=args.dry_run, reason=args.reason or "")
    live = live_now(session)
    for deployed, hints in zip(done.deployments, done.remedies, strict=True):
        if is_live := live(deployed):  # undo does not revert deployments
            session.warn(
                f"{printable(deployed.target)} {'would stay' if done.number is None else 'stays'} "
                f"on {deployed.commit.short}, although its commit is undone"
            )
        session.note("; ".join(hints if is_live else hints[-1:]))
    answered = session.answered("mvc.undo/1", done)
    if not answered and (args.dry_run or not session.quiet):
        verb_ = "Would undo" if done.number is None else "Undid"
        name = printable(done.operation.entry.operation)
        session.line(
            f"{verb_} operation {done.operation.number} ({name}): "
            f"{moves(done, full=session.verbose)}"
        )
    _note_head(session, done)
    if done.after != done.before:
        note_training(session, done.before.branch, done.after.branch)
    _note_remotes(session, done)


def _note_head(session: Session, done: Undoing) -> None:
    at, is_ = done.after, "would be" if done.number is None else "is"
    place = "detached" if at.branch is None else f"on {printable(at.branch)}"
    version = ", without a version yet" if at.commit is None else f", at {at.commit.short}"
    session.note(f"HEAD {is_} {place}{version}")
    if at.commit != done.before.commit:
        session.note(
            "Files are unchanged: 'mvc status' compares them with HEAD; 'mvc checkout -f HEAD' "
            "replaces them by the files of HEAD"
        )


def _note_remotes(session: Session, done: Undoing) -> None:
    """Prints a note for each undone version that a remote still has."""
    for change in done.entry.refs:
        if not (change.name.startswith("heads/") and isinstance(change.old, CommitId)):
            continue
        holding = session.repo.remotes.holding(change.old)
        if holding and change.old != change.new:
            session.note(
                f"{holding[0]} still has {change.old.short}: 'mvc pull' would fetch it again; "
                "'mvc push --force' moves the remote branch back, too"
            )


# -- the list of operations -----------------------------------------------------------------------


def moves(operation: Operation | Undoing, *, full: bool = False) -> str:
    """The changes of an operation, on one line."""
    entry, digits = operation.entry, None if full else SHORT_HEX
    parts = [_move(change.name, change.old, change.new, digits) for change in entry.refs]
    parts += [
        f"{deployed.subject.hex()[:digits]} live on {printable(deployed.target)}"
        for deployed in entry.deployments
    ]
    parts += [
        f"{retraction.subject.hex()[:digits]} retracted on {printable(retraction.target)}"
        for retraction in entry.retractions
        if retraction.target
    ]
    if entry.commits[1:]:
        parts.append(count(len(entry.commits), "commit"))
    kinds = Counter(statement.name for statement in entry.statements if not statement.target)
    states = Counter(mark.change for mark in entry.states if not mark.path)
    states.pop("no residue", None)  # the operation's note has these
    states["forgotten"] += kinds.pop("tombstone", 0)
    parts += [count(number, kind) for kind, number in kinds.items()]
    parts += [f"{count(number, 'state')} {state}" for state, number in states.items() if number]
    weights = [mark for mark in entry.states if mark.path]
    parts += [f"weights of {mark.commit.hex()[:digits]} {mark.change}" for mark in weights]
    return ", ".join(parts)


def _move(
    name: str, old: CommitId | str | None, new: CommitId | str | None, digits: int | None
) -> str:
    """The text ``main 1a2b3c4d5e -> 6f7a8b9c0d``, or ``tag v1 deleted`` if gc removed the value."""
    label = name.replace("tags/", "tag ", 1).removeprefix("heads/").removeprefix("remotes/")
    before, after = (
        str(value)[:digits] if isinstance(value, CommitId) else value or "none"
        for value in (old, new)
    )
    if old != new:
        return printable(f"{label} {before} -> {after}")
    return printable(f"{label} deleted" if new is None else f"{label} {after}")


def _about(operation: Operation) -> str:
    """The number of the undone operation; else the message of a commit; else the note."""
    entry = operation.entry
    if entry.undoes is not None:
        return f"undoes {entry.undoes}"
    if entry.commits:
        return one_line(entry.commits[-1].message)
    # The column "changes" names refs and targets, so the note would repeat them.
    listed = entry.refs or any(s.target for s in entry.statements)
    return "" if listed else one_line(entry.note)


def print_operations(session: Session) -> None:
    """Prints the operations, newest first, with their changes."""
    operations = list(session.repo.operations())
    if session.as_json:
        session.json("mvc.undo.list/1", {"operations": operations})
        return
    rows = [_row(session, operation) for operation in operations]
    styles = [None if operation.undone_by is None else "dim" for operation in operations]
    session.table("number>, time, operation, state, who, why, changes, about", rows, styles=styles)


def _row(session: Session, operation: Operation) -> tuple[str, ...]:
    entry, state = operation.entry, ""
    if operation.undone_by is not None:
        state = f"undone by {operation.undone_by}"
    elif operation.number and operation.shortened:
        state = "cannot be undone"
    return (
        str(operation.number),
        session.moment(entry.time_ns, cell=True),
        entry.operation,
        state,
        who(entry.done_by, entry.sender),
        one_line(entry.why),
        moves(operation, full=session.verbose),
        _about(operation),
    )
