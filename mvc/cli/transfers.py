"""Prints the results of fetch and push: a line for each ref that moved, as in git."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mvc.cli.session import Session
from mvc.cli.tables import Column
from mvc.ids import CommitId
from mvc.text import count, listed, printable, size

if TYPE_CHECKING:
    from mvc.api import Pushed, RefUpdate, Transferred, Unsent

_COLUMNS = [Column(""), Column("", style="id"), Column("")]
_MOST = 10  # limit of versions, targets or scopes that a line names


def print_fetch(session: Session, done: Transferred, url: str) -> None:
    """Prints the result of a fetch."""
    _print(session, f"From {url}", done, [_row(update, update.local) for update in done.updates])
    if done.held:
        session.warn(
            f"{_ids(done.held)}: forgotten at {done.remote}, but still stored here, because HEAD, "
            "or a version whose weights were dropped, needs it"
        )
    if done.forgotten:
        session.note(f"{_ids(done.forgotten)}: forgotten at {done.remote}, and now here, too")
    if done.kept:
        session.warn(
            f"{_ids(done.kept)}: forgotten at {done.remote}, but still stored here; "
            f"'mvc forget {done.kept[0].short}' forgets it here, too"
        )


def print_push(session: Session, done: Pushed, url: str, *, dry_run: bool = False) -> None:
    """Prints the result of a push or of its dry run."""
    _print(
        session,
        f"To {url}",
        done,
        [_row(unsent, unsent.name) for unsent in done.updates],
        sent=" would be sent" if dry_run else "",
    )
    for name in done.passed_over:
        session.warn(f"not sent: the tag {name} exists on the remote with another version")
    if done.at_home:
        session.note(f"not sent: the files of data sets (data=false): {_ids(done.at_home)}")
    for target, id_ in done.not_there:
        session.warn(
            f"not sent: {id_.short}, live on {target}, and its deployment; "
            "push a branch or tag that contains it"
        )
    if done.denied:
        session.warn(
            "not sent: changes that this token may not make; they need the scope "
            f"{listed(done.denied, _MOST)}"
        )
    if done.not_forgotten:
        session.warn(
            f"not sent: {_ids(done.not_forgotten)} was forgotten here; forgetting it on the server "
            "needs the scope admin"
        )
    for unsent in done.refused:
        record = "your retraction on" if unsent.retracts else "your deployment to"
        session.warn(
            f"not sent: {record} {unsent.target}; {unsent}. Run 'mvc fetch'. Then deploy "
            f"again with 'mvc deploy VERSION {unsent.target}', or withdraw your deployment with "
            "'mvc deploy --retract'"
        )
    if done.held:
        session.warn(
            f"{_ids(done.held)}: forgotten here, but still stored on the remote, because other "
            "versions need it"
        )


def _print(
    session: Session,
    title: str,
    done: Transferred,
    rows: Sequence[Sequence[str]],
    sent: str = "",
) -> None:
    if not done.is_news:
        if not done.is_short:
            session.note("Everything up to date")
        return
    if session.verbosity < 0:
        return
    session.line(printable(title))
    session.table(_COLUMNS, rows, indent=" ")
    named = (
        (done.versions, "version"),
        (max(done.operations - done.versions, 0), "metadata record"),
    )
    parts = [count(n, noun) for n, noun in named if n]
    if parts:
        session.line(f"{' and '.join(parts)}, {size(done.bytes)}{sent}")
    if done.targets:
        session.line(f"including deployments on {listed([*map(printable, done.targets)], _MOST)}")


def _row(update: RefUpdate, to: str) -> tuple[str, str, str]:
    """The table cells for a changed ref, such as ``* new branch  main -> origin/main``.

    ``to``: the name after the arrow.
    """
    kind = "tag" if update.name.startswith("tags/") else "branch"
    name, local = _short(update.name), _short(to)
    old, new = ("" if id_ is None else id_.short for id_ in (update.old, update.new))
    arrow = f"{name} -> {local}"
    rows = {
        "new": ("*", f"new {kind}", arrow),
        "forward": ("", f"{old}..{new}", arrow),
        "forced": ("+", f"{old}...{new}", f"{arrow} (forced)"),
        "deleted": ("-", "deleted", local),
        "kept": ("!", "not replaced", f"{arrow} ({name} is another version here)"),
    }
    return rows[update.change]


def _short(name: str) -> str:
    return printable(re.sub("^(heads|tags|remotes)/", "", name))


def _ids(versions: Sequence[CommitId]) -> str:
    return listed([id_.short for id_ in versions], _MOST)


def note_unsent(session: Session, target: str | None = None, *, has_reports: bool = False) -> None:
    """Prints the deployments that remotes lack.

    ``has_reports``: whether the command has printed reports of nodes (machines that serve a model).
    If so, prints how to get newer reports, too.
    """
    remotes = session.repo.root / ".mvc" / "remotes.yaml"
    if session.fs.stat(remotes) is not None:  # without remotes, skips slow imports
        if has_reports:
            session.note(
                "reports to a remote: as of the last 'mvc fetch --nodes'; "
                "newer: 'mvc fetch --nodes', or --remote REMOTE"
            )
        for unsent in session.repo.remotes.unsent(target):
            session.note(unsent_line(unsent))


def unsent_line(unsent: Unsent) -> str:
    """The line for a deployment that a remote lacks.

    Example: ``prod: not sent yet to origin: run 'mvc push origin' (or use --push)``.
    """
    target, name = printable(unsent.target), printable(unsent.remote)
    if unsent.state == "not sent":
        return f"{target}: not sent yet to {name}: run 'mvc push {name}' (or use --push)"
    live = "nothing" if unsent.live_there is None else unsent.live_there.commit.short
    return (
        f"{target}: conflict: {live} is live at {name}, which refuses your deployment; "
        f"deploy again with 'mvc deploy VERSION {target}', or withdraw your deployment with "
        "'mvc deploy --retract'"
    )
