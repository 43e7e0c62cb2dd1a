"""``mvc status``.

A folder in which no file is tracked is one line; -v lists its files.
"""

from __future__ import annotations

from collections.abc import Sequence

from mvc.api import FileChange, Status
from mvc.cli.transfers import unsent_line
from mvc.cli.verb import CommandOptions, Session, fields, flag, verb
from mvc.text import count, printable

_SECTIONS = {
    "work": "Changed (use 'mvc commit -a', or 'mvc checkout -f HEAD PATH'):",
    "renamed": "Under another name (use 'mvc commit -a NAME', or 'mvc checkout HEAD PATH'):",
    "older": "As in another version ('mvc checkout HEAD PATH' updates a file, 'mvc commit PATH' "
    "goes back):",
    "missing": "Missing (use 'mvc checkout HEAD PATH', or 'mvc commit -a'):",
}
_NOT_WRITTEN = "Recorded from Python, not written as a file ('mvc checkout HEAD PATH' does):"
_DEAD = "Symbolic links that lead nowhere (a commit refuses them):"
_MARKS = {"modified": "M", "missing": "!", "renamed": "R"}
_STYLES = {"modified": "changed", "missing": "removed", "renamed": "changed"}


class _StatusOptions(CommandOptions, frozen=True, kw_only=True):
    short: bool = flag("One line a file: M, !, R, ?, L.", "-s")


@verb("mvc status", _StatusOptions)
def command(session: Session, args: _StatusOptions) -> None:
    found = session.repo.status()
    changed = [c for c in found.changes if c.kind != "unchanged" and not c.not_written]
    if session.as_json:
        remotes = session.repo.remotes
        more = {"tracking": remotes.tracking(found.branch), "unsent": remotes.unsent()}
        session.json("mvc.status/1", fields(found) | more)
    elif args.short:
        _print_short(session, found, changed)
    else:
        _print_long(session, found, changed)


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
            f"On branch {session.paint(printable(status.branch), 'branch')}{_apart(session)}"
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
        ("Not tracked (use 'mvc commit PATH'):", _untracked(session, status)),
        (_DEAD, status.dead_links),
    ):
        sections[title] = [f"  {session.paint(session.from_here(p), 'removed')}" for p in paths]
    unsent = session.repo.remotes.unsent()
    sections["Deployments that remotes lack:"] = [f"  {unsent_line(each)}" for each in unsent]
    for title, lines in sections.items():
        session.lines(["", title, *lines] if lines else ())
    if not changed and status.head is not None:
        session.line("Tracked files are as in HEAD")


def _apart(session: Session) -> str:
    """How the current branch stands to that of its remote, as of the last fetch or push."""
    found = session.repo.remotes.tracking()
    if found is None:
        return ""
    theirs = printable(f"{found.remote}/{found.branch}")
    if found.ahead and found.behind:
        ahead, behind = count(found.ahead, "version"), count(found.behind, "version")
        return f", apart from {theirs}: {ahead} here, {behind} there"
    if found.ahead:
        return f", {count(found.ahead, 'version')} ahead of {theirs} (use 'mvc push')"
    if found.behind:
        return f", {count(found.behind, 'version')} behind {theirs} (use 'mvc pull')"
    return f", as {theirs}"


def _untracked(session: Session, status: Status) -> Sequence[str]:
    return status.untracked if session.verbose else status.folded


def _of(change: FileChange) -> str:
    if change.kind in {"missing", "renamed"}:
        return change.kind
    return "work" if change.same_as is None else "older"


def _line(session: Session, change: FileChange) -> str:
    detail = change.detail
    if change.same_as is not None:
        detail = f"as in {session.named(change.same_as)}"
    word = session.paint(f"{change.kind + ':':10}", _STYLES[change.kind])
    of = f" ({printable(detail)})" if detail else ""
    return f"  {word} {session.from_here(change.path)}{of}"
