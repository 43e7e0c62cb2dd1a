"""What checkout and switch say of the files they wrote, and of trainings that go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.session import Session
from mvc.text import count, listed, printable

if TYPE_CHECKING:
    from mvc.api import Restored


def tell(session: Session, done: Restored) -> None:
    """Says on stderr how many files were written, deleted and left; with -v which were written."""
    names = [printable(path) for path in done.written]
    named = names and (session.verbose or not names[1:])
    parts = [f"{listed(names) if named else count(len(names), 'file')} written"]
    if done.deleted:
        parts.append(f"{len(done.deleted):,} deleted")
    if done.unchanged:
        parts.append(f"{len(done.unchanged):,} there already")
    session.note(", ".join(parts))
    if done.left_out:
        left = listed([printable(path) for path in done.left_out], 3)
        session.note(f"left out {left}; --all writes training states, too")


def tell_of_training(session: Session, *branches: str | None) -> None:
    """Says on which of these branches a training records."""
    for branch in dict.fromkeys(branches):
        if session.repo.recorder(branch) is not None:
            goes_on = f"{printable(branch or '')}, and goes on there"
            where = "the detached HEAD, and follows it" if branch is None else goes_on
            session.note(f"A training is recording on {where}")


def warn_of_unreached(session: Session, done: Restored) -> None:
    """Warns of versions that only the former HEAD led to, and says how to keep them."""
    left = done.orphans
    if left is None:
        return
    name, versions = left.newest.short, count(left.count, "version")
    days = f"{float(session.repo.config.get('gc.grace_days')):g} days"
    session.warn(
        f"no branch or tag leads to {versions} now, the newest {name}; 'mvc gc' deletes what "
        f"neither a name nor a deployment leads to for {days}"
    )
    session.note(f"to keep what leads to {name}: mvc branch NAME {name}")
