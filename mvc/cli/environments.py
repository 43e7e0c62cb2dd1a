"""Shows and compares the environments that are recorded with versions.

An environment has the versions of Python and of packages, facts about the machine, and settings.
"""

from __future__ import annotations

from contextlib import suppress

import mvc.recipes as recipes
from mvc.cli.payload import fields
from mvc.cli.session import Session
from mvc.cli.tables import Column, titled
from mvc.errors import MvcError
from mvc.ids import CommitId
from mvc.models.environment import Comparison, capture
from mvc.recipes.recipe import missing_weights
from mvc.text import count, printable

_VERDICTS = {
    "exact": "equal in every relevant field",
    "compatible": "compatible: the differences should not change results",
    "different": "different: results may differ",
}
_SET = ("settings.", "threads.")
_STYLES = {"exact": "removed", "compatible": "changed", "ignored": "dim"}


def show_environment(session: Session, rev: CommitId) -> None:
    """Prints the environment that is recorded with a version."""
    recorded = recipes.environment(session.repo, rev)
    payload = {"environment": recorded.sections, "used": sorted(recorded.used)}
    if not session.answered("mvc.show.environment/1", payload):
        session.table("field, value", recorded.fields().items())


def compare_environments(session: Session, rev: str, other: str | None) -> bool:
    """Compares the environment of ``rev`` with the environment of ``other``.

    If ``other`` is None, compares it with this machine. Returns whether results of a training may
    differ.
    """
    recorded = recipes.environment(session.repo, rev)
    if other is None:
        compared_to = capture(with_torch="torch" in recorded.sections)
    else:
        compared_to = recipes.environment(session.repo, other)
    compared = recorded.compare(compared_to)
    sections = {"environment": recorded.sections, "other": compared_to.sections}
    payload = fields(compared, "verdict differences") | sections
    if not session.answered("mvc.diff.environment/1", payload | {"used": sorted(recorded.used)}):
        _print(session, (rev, other), compared)
    return compared.verdict == "different"


def trained_elsewhere(session: Session) -> int:
    """Counts the versions without weights that a replay on this machine may not reproduce.

    The environment of these versions cannot be read, or differs from this machine. Differences in
    settings and threads do not count, because a replay (a second run of the recorded training)
    restores settings and threads.
    """
    versions = [d for d in session.repo.storage.proofs() if missing_weights(session.repo, d)]
    if not versions:
        return 0
    local, differ = capture(), 0
    for version in versions:
        exact = ["unreadable"]
        with suppress(MvcError):
            differences = recipes.environment(session.repo, version).compare(local).differences
            exact = [d.field for d in differences if d.grade == "exact"]
        differ += not all(field.startswith(_SET) for field in exact)
    return differ


def _print(
    session: Session,
    named: tuple[str, str | None],
    compared: Comparison,
) -> None:
    (rev, other) = named
    name = printable(other or "this machine")
    session.line(f"{printable(rev)} and {name}: {_VERDICTS[compared.verdict]}")
    shown = [d for d in compared.differences if session.verbose or d.grade != "ignored"]
    rows = [(d.grade, d.field, d.recorded or "-", d.other or "-") for d in shown]
    styles = [_STYLES[d.grade] for d in shown]
    titles = [*titled("grade, field, recorded"), Column(name, shorten="end")]
    session.table(titles, rows, styles=styles)
    if other is None and any(d.field.startswith(_SET) for d in shown):
        session.note("a replay restores the recorded settings and threads")
    hidden = len(compared.differences) - len(shown)
    if hidden:
        session.note(f"{count(hidden, 'ignored difference')} not shown (-v lists them)")
