"""``mvc status``.

mvc compares the contents of files with HEAD. A folder without tracked files is printed as
one line; -v lists the files in such a folder.
"""

from __future__ import annotations

from collections.abc import Sequence

from mvc.api import FileChange, Status
from mvc.cli.transfers import unsent_line
from mvc.cli.verb import CommandOptions, Session, fields, flag, verb
from mvc.text import count, printable

_SECTIONS = {
    "work": "Changed ('mvc commit -a' records, 'mvc checkout -f HEAD PATH' discards):",
    "renamed": "Renamed ('mvc commit -a NAME' records the new name):",
    "older": "Older than HEAD ('mvc checkout HEAD PATH' updates a file; 'mvc commit PATH' records "
    "the older state):",
    "missing": "Missing ('mvc checkout HEAD PATH' restores, 'mvc commit -a' removes):",
}
_NOT_WRITTEN = "Recorded from Python, without a file ('mvc checkout HEAD PATH' writes it):"
_DEAD = "Broken symbolic links (a commit refuses them):"
_MARKS = {"modified": "M", "missing": "!", "renamed": "R"}
_STYLES = {"modified": "changed", "missing": "removed", "renamed": "changed"}


class _StatusOptions(CommandOptions, frozen=True, kw_only=True):
    short: bool = flag("Print one line for each file: a letter for its change, and its path.", "-s")


@verb("mvc status", _StatusOptions)
def command(session: Session, args: _StatusOptions) -> None:
    status = session.repo.status()
    changed = [c for c in status.changes if c.kind != "unchanged" and not c.not_written]
    if session.as_json:
        remotes = session.repo.remotes
        more = {"tracking": remotes.tracking(status.branch), "unsent": remotes.unsent()}
        session.json("mvc.status/1", fields(status) | more)
    elif args.short:
        _print_short(session, status, changed)
    else:
        _print_long(session, status, changed)


def _print_short(session: Session, status: Status, changed: Sequence[FileChange]) -> None:
    for change in changed:
        mark = session.paint(_MARKS[change.kind], _STYLES[change.kind])
        session.line(f"{mark} {session.from_here(change.path)}")
    for mark, paths in (("?", _untracked(session, status)), ("L", status.dead_links)):
        session.lines(
            f"{session.paint(mark, 'removed')} {session.from_here(path)}" for path in paths
        )


def _print_long(session: Session, status: Status, changed: Sequence[FileChange]) -> None:
    if status.branch is not None:
        session.line(
            f"On branch {session.paint(printable(status.branch), 'branch')}{_tracking(session)}"
        )
    elif status.head is not None:
        session.line(f"HEAD detached at {session.paint(status.head.short, 'id')}")
    if status.head is None:
        session.line("No commits yet")
    sections = {
        title: [_line(session, change) for change in changed if _of(change) == kind]
        for kind, title in _SECTIONS.items()
    }
    for title, paths in (
        (_NOT_WRITTEN, [change.path for change in status.changes if change.not_written]),
        ("Not tracked ('mvc commit PATH' adds):", _untracked(session, status)),
        (_DEAD, status.dead_links),
    ):
        sections[title] = [f"  {session.paint(session.from_here(p), 'removed')}" for p in paths]
    sections["Deployments that remotes lack:"] = [
        f"  {unsent_line(deployment)}" for deployment in session.repo.remotes.unsent()
    ]
    for title, lines in sections.items():
        session.lines(["", title, *lines] if lines else ())
    if not changed and status.head is not None:
        session.line("Tracked files equal HEAD")


def _tracking(session: Session) -> str:
    """A text for the difference between the current branch and its tracking ref."""
    tracking = session.repo.remotes.tracking()
    if tracking is None:
        return ""
    theirs = printable(f"{tracking.remote}/{tracking.branch}")
    if tracking.ahead and tracking.behind:
        ahead, behind = count(tracking.ahead, "version"), count(tracking.behind, "version")
        return f", diverged from {theirs} ({ahead} here, {behind} there)"
    if tracking.ahead:
        return f", {count(tracking.ahead, 'version')} ahead of {theirs} (use 'mvc push')"
    if tracking.behind:
        return f", {count(tracking.behind, 'version')} behind {theirs} (use 'mvc pull')"
    return f", equal to {theirs}"


def _untracked(session: Session, status: Status) -> Sequence[str]:
    return status.untracked if session.verbose else status.folded


def _of(change: FileChange) -> str:
    if change.kind in {"missing", "renamed"}:
        return change.kind
    return "work" if change.same_as is None else "older"


def _line(session: Session, change: FileChange) -> str:
    detail = change.detail
    if change.same_as is not None:
        detail = f"equals {session.named(change.same_as)}"
    word = session.paint(f"{change.kind + ':':10}", _STYLES[change.kind])
    suffix = f" ({printable(detail)})" if detail else ""
    return f"  {word} {session.from_here(change.path)}{suffix}"
