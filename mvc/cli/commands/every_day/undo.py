"""``mvc undo``.

The newest one that moved branches, tags or HEAD, or the one with NUMBER of the list.
Files stay as they are.
"""

from __future__ import annotations

from collections import Counter

import click

from mvc.api import Operation, Undoing
from mvc.cli.commits import live_now, who
from mvc.cli.restored import tell_of_training
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
from mvc.text import count, format_time, one_line, printable


class _UndoOptions(CommandOptions, frozen=True, kw_only=True):
    number: int | None = argument("[NUMBER]", type=click.IntRange(min=0))
    dry_run: bool = DRY_RUN
    reason: str | None = reason()
    listed: bool = flag(
        "List the operations, newest first, and take back none.", "--list", takes=""
    )


@verb("mvc undo", _UndoOptions)
def command(session: Session, args: _UndoOptions) -> None:
    if args.listed:
        print_operations(session)
        return
    if args.number is None and session.repo.interrupted.given_up:
        raise RefConflict(
            "the interrupted checkout is taken back, and nothing else was undone",
            hint="'mvc undo' takes back the newest operation of 'mvc undo --list', too",
        )
    done = session.repo.undo(args.number, dry_run=args.dry_run, reason=args.reason or "")
    live = live_now(session)
    for deployed, ways in zip(done.deployments, done.ways, strict=True):
        if is_live := live(deployed):  # it is not undone with its commit
            session.warn(
                f"{printable(deployed.target)} {'would stay' if done.number is None else 'stays'} "
                f"on {deployed.commit.short}, the version that is undone"
            )
        session.note("; ".join(ways if is_live else ways[-1:]))
    told = session.answered("mvc.undo/1", done)
    if not told and (args.dry_run or not session.quiet):
        verb_ = "Would undo" if done.number is None else "Undid"
        name = printable(done.operation.entry.operation)
        moved = moves(done, full=session.verbose)
        session.line(f"{verb_} operation {done.operation.number} ({name}): {moved}")
    _tell_of_head(session, done)
    if done.after != done.before:
        tell_of_training(session, done.before.branch, done.after.branch)
    _tell_of_remotes(session, done)


def _tell_of_head(session: Session, done: Undoing) -> None:
    at, is_ = done.after, "would be" if done.number is None else "is"
    place = "detached" if at.branch is None else f"on {printable(at.branch)}"
    version = ", without a version yet" if at.commit is None else f", at {at.commit.short}"
    session.note(f"HEAD {is_} {place}{version}")
    if at.commit != done.before.commit:
        session.note(
            "The files are not touched: 'mvc status' compares them with HEAD, 'mvc checkout -f "
            "HEAD' writes those of HEAD over them"
        )


def _tell_of_remotes(session: Session, done: Undoing) -> None:
    """What was pushed stays where it is."""
    for change in done.entry.refs:
        if not (change.name.startswith("heads/") and isinstance(change.old, CommitId)):
            continue
        holding = session.repo.remotes.holding(change.old)
        if holding and change.old != change.new:
            session.note(
                f"{holding[0]} still has {change.old.short}: 'mvc pull' brings it back, "
                "'mvc push --force' takes it away there, too"
            )


# -- the list of operations -----------------------------------------------------------------------


def moves(operation: Operation | Undoing, *, full: bool = False) -> str:
    """Everything that an operation moved or recorded, on one line."""
    entry, digits = operation.entry, None if full else SHORT_HEX
    found = [_move(change.name, change.old, change.new, digits) for change in entry.refs]
    found += [
        f"{made.subject.hex()[:digits]} live on {printable(made.target)}"
        for made in entry.deployments
    ]
    found += [
        f"{taken.subject.hex()[:digits]} retracted on {printable(taken.target)}"
        for taken in entry.retractions
        if taken.target
    ]
    if entry.commits[1:]:
        found.append(count(len(entry.commits), "commit"))
    kinds = Counter(each.name for each in entry.statements if not each.target)
    states = Counter(mark.what for mark in entry.states if not mark.path)
    states.pop("no residue", None)  # the note says it
    states["forgotten"] += kinds.pop("tombstone", 0)
    found += [count(number, kind) for kind, number in kinds.items()]
    found += [f"{count(number, 'state')} {what}" for what, number in states.items() if number]
    weights = [mark for mark in entry.states if mark.path]
    found += [f"weights of {mark.commit.hex()[:digits]} {mark.what}" for mark in weights]
    return ", ".join(found)


def _move(
    name: str, old: CommitId | str | None, new: CommitId | str | None, digits: int | None
) -> str:
    """``main 1a2b3c4d5e -> 6f7a8b9c0d``; ``tag v1 deleted``, where gc removed the old value."""
    label = name.replace("tags/", "tag ", 1).removeprefix("heads/").removeprefix("remotes/")
    before, after = (
        str(value)[:digits] if isinstance(value, CommitId) else value or "none"
        for value in (old, new)
    )
    if old != new:
        return printable(f"{label} {before} -> {after}")
    return printable(f"{label} deleted" if new is None else f"{label} {after}")


def _about(operation: Operation) -> str:
    """The number of the operation it undoes, else a commit's message, else its note."""
    entry = operation.entry
    if entry.undoes is not None:
        return f"undoes {entry.undoes}"
    if entry.commits:
        return one_line(entry.commits[-1].message)
    told = entry.refs or any(each.target for each in entry.statements)  # the note has their names
    return "" if told else one_line(entry.note)


def print_operations(session: Session) -> None:
    """Prints the operations, newest first, with what each of them moved."""
    found = list(session.repo.operations())
    if session.as_json:
        session.json("mvc.undo.list/1", {"operations": found})
        return
    rows = [_row(each, full=session.verbose) for each in found]
    styles = [None if each.undone_by is None else "dim" for each in found]
    session.table("number>, time, operation, state, who, why, changes, about", rows, styles=styles)


def _row(operation: Operation, *, full: bool) -> tuple[str, ...]:
    entry, state = operation.entry, ""
    if operation.undone_by is not None:
        state = f"undone by {operation.undone_by}"
    elif operation.number and operation.shortened:
        state = "cannot be undone"
    return (
        str(operation.number),
        format_time(entry.time_ns, precise=False),
        entry.operation,
        state,
        who(entry.done_by, entry.sender),
        one_line(entry.why),
        moves(operation, full=full),
        _about(operation),
    )
