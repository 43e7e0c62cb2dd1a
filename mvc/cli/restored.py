"""Prints the messages of commands such as checkout and pull. ``switch_to`` switches, too.

The messages say which files were written, whether a training records versions on the branch, and
which versions no branch or tag reaches now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.session import Session
from mvc.text import count, listed, printable

if TYPE_CHECKING:
    from mvc.api import Restored


def print_restored(session: Session, done: Restored) -> None:
    """Prints how many files were written, deleted and unchanged. With -v, prints their names."""
    names = [printable(path) for path in done.written]
    named = names and (session.verbose or not names[1:])
    parts = [f"{listed(names) if named else count(len(names), 'file')} written"]
    if done.deleted:
        parts.append(f"{len(done.deleted):,} deleted")
    if done.unchanged:
        parts.append(f"{len(done.unchanged):,} unchanged")
    session.note(", ".join(parts))
    if done.left_out:
        hidden = listed([printable(path) for path in done.left_out], 3)
        session.note(f"not written: {hidden}; --all writes training states, too")


def note_training(session: Session, *branches: str | None) -> None:
    """For each of these branches: prints a note if a training records versions on the branch.

    None in ``branches`` means the detached HEAD.
    """
    for branch in dict.fromkeys(branches):
        if session.repo.recorder(branch) is not None:
            stays = f"{printable(branch or '')}; its next versions go to that branch"
            where = "the detached HEAD; its next versions follow HEAD" if branch is None else stays
            session.note(f"a training records on {where}")


def warn_of_unreached(session: Session, done: Restored) -> None:
    """Warns of versions that only the previous HEAD reached, and prints how to keep them."""
    unreached = done.orphans
    if unreached is None:
        return
    name, versions = unreached.newest.short, count(unreached.count, "version")
    days = f"{float(session.repo.config.get('gc.grace_days')):g} days"
    session.warn(
        f"no branch or tag reaches {versions} now (newest {name}); after {days} 'mvc gc' deletes "
        "versions that no ref or deployment reaches"
    )
    session.note(f"to keep {'it' if unreached.count == 1 else 'them'}: mvc branch NAME {name}")


def switch_to(
    session: Session, branch: str, *, create: bool, start: str | None, force: bool
) -> None:
    """Switches to a branch, and prints the messages or, with ``--json``, the result.

    ``create``: whether to create the branch, at the revision ``start``.
    """
    before = session.repo.head(if_known=True).branch
    existing = {ref.name for ref in session.repo.refs()}
    done = session.run(
        "restoring",
        session.repo.switch,
        branch,
        create=create,
        start=start,
        force=force,
    )
    created = create or branch not in {*existing, before}
    if not session.as_json:
        if done is not None and (done.written or done.deleted or done.unchanged):
            print_restored(session, done)
        switched = f"Switched to {'new ' if created else ''}branch"
        session.note(f"{'Already on' if branch == before else switched} {branch}")
    note_training(session, before, branch)
    if done is not None:
        warn_of_unreached(session, done)
    payload = {"restored": done, "branch": branch, "created": created}
    session.answered("mvc.switch/1", payload)
