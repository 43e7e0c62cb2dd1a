"""What checkout and switch say of the files they wrote, and of trainings that go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.session import Session
from mvc.text import count, listed, printable

if TYPE_CHECKING:
    from mvc.api import Restored


def tell(session: Session, done: Restored) -> None:
    """Says on stderr how many files were written, deleted and left; with -v which ones."""
    if session.verbose and len(done.written) + len(done.deleted) > 1:
        for word, paths in (("wrote  ", done.written), ("deleted", done.deleted)):
            for path in paths:
                session.note(f"  {word}  {path}")
    single = len(done.written) == 1
    parts = [
        f"{printable(done.written[0]) if single else count(len(done.written), 'file')} written"
    ]
    if done.deleted:
        parts.append(f"{len(done.deleted):,} deleted")
    if done.unchanged:
        parts.append(f"{len(done.unchanged):,} there already")
    session.note(", ".join(parts))
    if done.left_out:
        names = listed([printable(path) for path in done.left_out], 3)
        session.note(f"left out {names}; --all writes training states, too")


def warn_of_deploying(session: Session, target: str) -> None:
    """Warns of a training that deploys to a target: it yields, and only commits from now on."""
    process = session.repo.recorder(target=target)
    if process is not None:
        session.warn(
            f"a training deploys to {target}: {process}; it goes on committing, and "
            "stops deploying there until it is started again or calls deploy_again()"
        )


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
    name = left.newest.short
    them = "it" if left.count == 1 else "them"
    days = f"{float(session.repo.config.get('gc.grace_days')):g} days"
    if left.deployed == left.count:
        fate = f"deployments keep {them} from 'mvc gc'"
    elif left.deployed:
        fate = (
            f"deployments keep {left.deployed:,} of them, 'mvc gc' deletes the others after {days}"
        )
    else:
        fate = f"'mvc gc' deletes {them} after {days}"
    versions = count(left.count, "version")
    session.warn(f"no branch or tag leads to {versions} now, the newest {name}; {fate}")
    session.note(f"to give {them} a branch: mvc branch NAME {name}")
