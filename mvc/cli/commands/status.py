"""``mvc status``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from mvc.cli.options import json_option
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.cli.text import one_line
from mvc.model.names import printable
from mvc.repo.lookup import commits
from mvc.repo.worktree.status import status as read_status

if TYPE_CHECKING:
    from mvc.repo.worktree.status import Change, Status

_OLDER = (
    "As in another version (use 'mvc checkout HEAD PATH'; 'mvc commit -a' records it once more):"
)
_MARKS = {"modified": "M", "missing": "!", "removed": "D", "renamed": "R"}
_STYLES = {"modified": "changed", "missing": "removed", "removed": "removed", "renamed": "changed"}


@click.command("status", cls=Verb, example="mvc status")
@click.option("-s", "--short", is_flag=True, help="One line a file: M, !, D, R, ?.")
@click.option("--no-untracked", is_flag=True, help="Leave out files that are not tracked.")
@json_option
@click.pass_obj
def command(session: Session, short: bool, no_untracked: bool, as_json: bool) -> None:
    """Show what changed since the last commit."""
    found = read_status(session.context, untracked=not no_untracked)
    session.out.warn_of_dead_links(found.dead_links)
    if as_json:
        _print_json(session, found)
    elif short:
        _print_short(session, found)
    else:
        _print_long(session, found)


def _print_json(session: Session, status: Status) -> None:
    payload = {
        "branch": status.branch,
        "head": None if status.head is None else str(status.head),
        "changes": [
            {
                "path": c.path,
                "kind": c.kind,
                "detail": c.detail,
                "not_written": c.not_written,
                "same_as": None if c.same_as is None else str(c.same_as),
            }
            for c in status.changes
        ],
        "untracked": list(status.untracked),
        "dead_links": list(status.dead_links),
    }
    session.out.json("mvc.status/1", payload)


def _differing(status: Status) -> list[Change]:
    return [c for c in status.changes if c.kind != "unchanged" and not c.not_written]


def _print_short(session: Session, status: Status) -> None:
    out = session.out
    for change in _differing(status):
        mark = out.paint(_MARKS[change.kind], _STYLES[change.kind])
        out.line(f"{mark} {session.from_here(change.path)}")
    for path in status.untracked:
        out.line(f"{out.paint('?', 'removed')} {session.from_here(path)}")


def _print_long(session: Session, status: Status) -> None:
    out = session.out
    if status.branch is not None:
        out.line(f"On branch {out.paint(printable(status.branch), 'branch')}")
    elif status.head is not None:
        out.line(f"HEAD detached at {out.paint(status.head.short, 'id')}")
    if status.head is None:
        out.line("No commits yet")
    changed = _differing(status)
    staged = [c for c in changed if c.kind == "removed"]
    missing = [c for c in changed if c.kind == "missing"]
    older = [c for c in changed if c.same_as is not None]
    work = [c for c in changed if c not in [*staged, *missing, *older]]
    if staged:
        _section(session, "Left out of the next commit:", staged)
    if work:
        _section(session, "Changed (use 'mvc commit -a', or 'mvc checkout HEAD PATH'):", work)
    if older:
        _section(session, _OLDER, [_with_version(session, c) for c in older])
    if missing:
        _section(session, "Missing (use 'mvc checkout HEAD PATH', or 'mvc rm PATH'):", missing)
    not_written = [c for c in status.changes if c.not_written]
    if not_written:
        out.line()
        out.line("Recorded from Python, not written as a file ('mvc checkout HEAD PATH' does):")
        for change in not_written:
            out.line(f"  {session.from_here(change.path)}")
    if status.untracked:
        out.line()
        out.line("Not tracked (use 'mvc commit PATH'):")
        for path in status.untracked:
            out.line("  " + out.paint(session.from_here(path), "removed"))
    if not changed and not status.untracked:
        if not_written:
            out.line()
            out.line("Nothing to commit")
        else:
            same = "Nothing to commit, the files are as in HEAD"
            out.line(same if status.head else "Nothing here")
    elif not changed and status.head is not None:
        out.line()
        out.line("Tracked files are as in HEAD")


def _with_version(session: Session, change: Change) -> Change:
    if change.same_as is None:
        return change
    title = one_line(commits.get(session.context, change.same_as).message)
    detail = f"as in {change.same_as.short}" + (f", {title}" if title else "")
    return replace(change, detail=detail)


def _section(session: Session, title: str, changes: list[Change]) -> None:
    out = session.out
    out.line()
    out.line(title)
    for change in changes:
        word = out.paint(f"{change.kind + ':':10}", _STYLES[change.kind])
        detail = f" ({printable(change.detail)})" if change.detail else ""
        out.line(f"  {word} {session.from_here(change.path)}{detail}")
