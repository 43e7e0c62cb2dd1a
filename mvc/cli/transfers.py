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

_COLUMNS = [Column(""), Column("", style="id"), Column("")]
_MOST = 10  # versions, targets or scopes named in a line


def tell_of_fetch(session: Session, done: Transferred, url: str) -> None:
    """Says what a fetch brought."""
    _tell(session, f"From {url}", done, [_row(each, each.local) for each in done.updates])
    if done.held:
        session.warn(
            f"{_ids(done.held)}: forgotten by name at {done.remote}, and kept here for now, "
            "because HEAD or a version without weights stands on it"
        )
    if done.forgotten:
        session.note(
            f"{_ids(done.forgotten)}: forgotten by name at {done.remote}, and from now on here"
        )
    if done.kept:
        session.warn(
            f"{_ids(done.kept)}: forgotten by name at {done.remote}, and kept here: "
            f"'mvc forget {done.kept[0].short}' forgets one here, too"
        )


def tell_of_push(session: Session, done: Pushed, url: str, *, dry_run: bool = False) -> None:
    """Says what a push sent, or would send, and what it left out."""
    rows = [_row(each, each.name) for each in done.updates]
    _tell(session, f"To {url}", done, rows, sent=" would be sent" if dry_run else "")
    for name in done.passed_over:
        session.note(f"tag {name} is another version there, and stays")
    if done.at_home:
        session.note(f"the files of data sets stay here: {_ids(done.at_home)}")
    for target, id_ in done.not_there:
        session.warn(
            f"{id_.short}, live on {target} here, is not there, nor its deployment: "
            "push a branch or a tag that leads to it"
        )
    if done.denied:
        session.warn(
            "not sent: what this token may not change there; it needs the scope "
            f"{listed(done.denied, _MOST)}"
        )
    if done.not_forgotten:
        session.warn(
            f"not sent: that {_ids(done.not_forgotten)} was forgotten here; forgetting it there "
            "needs the scope admin"
        )
    for each in done.refused:
        what = "the retraction recorded here on" if each.retracts else "the deployment here to"
        session.warn(
            f"not sent: {what} {each.target}; {each}. 'mvc fetch' brings it; then "
            f"'mvc deploy VERSION {each.target}' replaces it, and with --retract drops yours"
        )
    if done.held:
        session.warn(
            f"{_ids(done.held)}: forgotten by name here, and kept there for now, because something "
            "stands on it"
        )


def _tell(
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
    others = max(done.operations - done.versions, 0)
    named = ((done.versions, "version"), (others, "other operation"))
    parts = [count(n, noun) for n, noun in named if n]
    if parts:
        session.line(f"{' and '.join(parts)}, {size(done.bytes)}{sent}")
    if done.targets:
        session.line(f"with deployments on {listed([*map(printable, done.targets)], _MOST)}")


def _row(update: RefUpdate, to: str) -> tuple[str, str, str]:
    """``* new branch  main -> origin/main``; ``to``: the name of what moved."""
    kind = "tag" if update.name.startswith("tags/") else "branch"
    name, local = _short(update.name), _short(to)
    old, new = ("" if id_ is None else id_.short for id_ in (update.old, update.new))
    arrow = f"{name} -> {local}"
    ways = {
        "new": ("*", f"new {kind}", arrow),
        "forward": ("", f"{old}..{new}", arrow),
        "forced": ("+", f"{old}...{new}", f"{arrow} (forced)"),
        "deleted": ("-", "deleted", local),
        "kept": ("!", "kept apart", f"{arrow} ({name} is another version here)"),
    }
    return ways[update.change]


def _short(name: str) -> str:
    return printable(re.sub("^(heads|tags|remotes)/", "", name))


def _ids(versions: Sequence[CommitId]) -> str:
    return listed([id_.short for id_ in versions], _MOST)


def tell_unsent(session: Session, target: str | None = None) -> None:
    """Says which deployments remotes lack; nothing where all is in step."""
    remotes = session.repo.root / ".mvc" / "remotes.yaml"
    if session.fs.stat(remotes) is not None:  # else spare the imports of all that knows remotes
        for each in session.repo.remotes.unsent(target):
            session.note(unsent_line(each))


def unsent_line(unsent: Unsent) -> str:
    """``prod: not sent yet to origin: 'mvc push origin' (or --push)``."""
    target, name = printable(unsent.target), printable(unsent.remote)
    if unsent.state == "not sent":
        return f"{target}: not sent yet to {name}: 'mvc push {name}' (or --push)"
    live = "nothing" if unsent.there is None else unsent.there.commit.short
    return (
        f"{target}: conflict: {live} is live at {name}, which does not take what was recorded "
        f"here; 'mvc deploy VERSION {target}' replaces it, --retract drops yours"
    )
