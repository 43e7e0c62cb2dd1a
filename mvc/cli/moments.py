"""A version by the moment at which it was live: ``--at TIME --target T`` in the place of a REV."""

from __future__ import annotations

from mvc.cli.options import option
from mvc.cli.session import Session
from mvc.names import printable
from mvc.times import format_time

AT = option("TIME", "The version that was live at TIME, instead of REV.")
TARGET = option("T", "Where it was live; without --at, what is live there now.")


def moment_or_rev(
    session: Session, words: tuple[str, ...], at: str | None, target: str | None
) -> tuple[str | None, tuple[str, ...]]:
    """The revision that is named, or was live then, and the words after it; None for neither."""
    if at is None and target is None:
        return (words[0], words[1:]) if words else (None, ())
    repository = session.repository
    repository.find(at=at, target=target)  # says what is wrong where no target is named
    live = repository.live(target or repository.targets()[0], at=at)
    since = format_time(live.since_ns)
    session.out.note(f"{live.commit.short} was live on {printable(live.target)} from {since}")
    return str(live.commit), words
