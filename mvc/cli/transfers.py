"""How fetches and pushes are shown: a line for each ref that moved, as git writes them."""

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

_MARKS = {"new": "*", "forced": "+", "deleted": "-", "kept": "!", "forward": ""}
_COLUMNS = [Column(""), Column("", style="id"), Column("")]


def tell_of_fetch(session: Session, done: Transferred, url: str) -> None:
    """Says what a fetch brought."""
    rows = [_row(each, here=True) for each in done.updates]
    _tell(session, f"From {printable(url)}", rows, done)
    held = ", ".join(id_.short for id_ in done.held)
    if held:
        session.warn(
            f"{held}: forgotten by name at {done.remote}, and kept here for now, "
            "because HEAD or a version without weights stands on it"
        )
    forgotten = listed([id_.short for id_ in done.forgotten], 10)
    if done.forgotten:
        session.note(f"{forgotten}: forgotten by name at {done.remote}, and from now on here")
    if done.kept:
        kept = [id_.short for id_ in done.kept]
        session.warn(
            f"{listed(kept, 10)}: forgotten by name at {done.remote}, and kept here: "
            f"'mvc forget {kept[0]}' forgets one here, too"
        )


def tell_of_push(session: Session, done: Pushed, url: str, *, dry_run: bool = False) -> None:
    """Says what a push sent, or would send."""
    rows = [_row(each, here=False) for each in done.updates]
    _tell(session, f"To {printable(url)}", rows, done, would=dry_run)
    for name in done.passed_over:
        session.note(f"tag {name} is another version there, and stays")
    names = ", ".join(id_.short for id_ in done.at_home)
    if names:
        session.note(f"the files of data sets stay here: {names}")
    for target, id_ in done.not_there:
        session.warn(
            f"{id_.short}, live on {target} here, is not there, nor its deployment: "
            "push a branch or a tag that leads to it"
        )
    if lacks := [printable(scope) for scope in done.denied if scope != "admin"]:
        what = ", ".join(
            f"{'deployments to' if scope.startswith('deploy:') else 'tag'} "
            f"{scope.partition(':')[2].removeprefix('tags/')}"
            for scope in lacks[:5]
        )
        session.warn(f"not sent: {what}. This needs the scope {listed(lacks, 5)}")
    if done.not_forgotten:
        ids = listed([id_.short for id_ in done.not_forgotten], 5)
        session.warn(
            f"not sent: {ids} forgotten here by name; forgetting on {done.remote} needs "
            "the scope admin. Everything else was sent"
        )
    for each in done.refused:
        target = printable(each.target)
        what = "the retraction recorded here on" if each.retracts else "the deployment here to"
        session.warn(
            f"not sent: {what} {target}; {each}. 'mvc fetch' brings it; then "
            f"'mvc deploy VERSION {target}' replaces it, and with --retract drops yours"
        )
    for id_ in done.held:
        session.warn(
            f"{id_.short} was forgotten by name here, and is kept there for now, because something "
            "stands on it"
        )


def tell_of_states(session: Session, title: str, done: Transferred | Pushed) -> None:
    """Says how many states came or went by themselves."""
    if not done.is_news:
        session.note("Everything up to date")
    elif session.verbosity >= 0:
        session.line(printable(title))
        session.line(f"{count(done.versions, 'state')}, {size(done.bytes)}")


def _tell(
    session: Session,
    title: str,
    rows: Sequence[Sequence[str]],
    done: Transferred | Pushed,
    *,
    would: bool = False,
) -> None:
    if not done.is_news:
        if not done.is_short:
            session.note("Everything up to date")
        return
    if session.verbosity < 0:
        return
    session.line(title)
    session.table(_COLUMNS, rows, indent=" ")
    more = done.operations - done.versions
    named = [(done.versions, "version"), (max(more, 0), "other operation")]
    parts = [count(n, noun) for n, noun in named if n]
    if parts:
        sent = " would be sent" if would else ""
        session.line(f"{' and '.join(parts)}, {size(done.bytes)}{sent}")
    if done.targets:
        session.line(f"with deployments on {listed([printable(t) for t in done.targets], 10)}")


def _row(update: RefUpdate, *, here: bool) -> tuple[str, str, str]:
    """``* new branch  main -> origin/main``."""
    old, new = update.old, update.new
    kind = "tag" if update.name.startswith("tags/") else "branch"
    name, local = _short(update.name), _short(update.local) if here else _short(update.name)
    what = f"{_id(old)}..{_id(new)}"
    arrow = f"{name} -> {local}"
    match update.change:
        case "new":
            what = f"new {kind}"
        case "deleted":
            what, arrow = "deleted", local
        case "kept":
            what, arrow = "kept apart", f"{arrow} ({name} is another version here)"
        case "forced":
            what, arrow = f"{_id(old)}...{_id(new)}", f"{arrow} (forced)"
    return _MARKS[update.change], what, arrow


def _short(name: str) -> str:
    return printable(re.sub("^(heads|tags|remotes)/", "", name))


def _id(value: CommitId | None) -> str:
    return "" if value is None else value.short


def tell_unsent(session: Session, target: str | None = None) -> None:
    """Says which deployments remotes lack; nothing where all is in step."""
    remotes = session.repo.root / ".mvc" / "remotes.yaml"
    if session.fs.stat(remotes) is None:  # which spares the imports of all that knows remotes
        return
    for each in session.repo.remotes.unsent(target):
        session.note(unsent_line(each) if target is None else _unsent(each))


def unsent_line(unsent: Unsent) -> str:
    """``prod: not sent yet to origin: 'mvc push'``."""
    return f"{printable(unsent.target)}: {_unsent(unsent)}"


def _unsent(unsent: Unsent) -> str:
    name = printable(unsent.remote)
    if unsent.state == "not sent":
        return f"not sent yet to {name}: 'mvc push {name}' (or --push)"
    there = unsent.there
    live = "nothing is live" if there is None else f"{there.commit.short} is live"
    by = f", deployed by {printable(there.author)}" if there is not None and there.author else ""
    return (
        f"conflict: {live} at {name}{by}, which does not take what was recorded here; "
        f"'mvc deploy VERSION {printable(unsent.target)}' replaces it, --retract drops yours"
    )
