"""The environments in which versions were made: one shown, or two compared."""

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
    "exact": "the same in everything that counts",
    "compatible": "compatible: what differs should not change results",
    "different": "different: results may differ",
}
_SET = ("settings.", "threads.")
_STYLES = {"exact": "removed", "compatible": "changed", "ignored": "dim"}


def show_environment(session: Session, rev: CommitId) -> None:
    """Prints the fields of the environment that a version carries."""
    recorded = recipes.environment(session.repo, rev)
    payload = {"environment": recorded.sections, "used": sorted(recorded.used)}
    if not session.answered("mvc.show.environment/1", payload):
        session.table("field, value", recorded.fields().items())


def compare_environments(session: Session, rev: str, other: str | None) -> bool:
    """Prints how the environment of ``rev`` differs from that of ``other``, or of this machine.

    Returns whether results may differ.
    """
    recorded = recipes.environment(session.repo, rev)
    if other is None:
        there = capture(with_torch="torch" in recorded.sections)
    else:
        there = recipes.environment(session.repo, other)
    compared = recorded.compare(there)
    sections = {"environment": recorded.sections, "other": there.sections}
    payload = fields(compared, "verdict differences") | sections
    if not session.answered("mvc.diff.environment/1", payload | {"used": sorted(recorded.used)}):
        _print(session, (rev, other), compared)
    return compared.verdict == "different"


def trained_elsewhere(session: Session) -> int:
    """How many versions that only a replay makes were trained where results may differ from here.

    A replay sets settings and threads as recorded. A version whose environment cannot be read
    counts.
    """
    gone = [each for each in session.repo.storage.proofs() if missing_weights(session.repo, each)]
    if not gone:
        return 0
    here, differ = capture(), 0
    for version in gone:
        exact = ["unreadable"]
        with suppress(MvcError):
            found = recipes.environment(session.repo, version).compare(here).differences
            exact = [each.field for each in found if each.grade == "exact"]
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
    titles = [*titled("grade, field, recorded"), Column(name, give="end")]
    session.table(titles, rows, styles=styles)
    if other is None and any(d.field.startswith(_SET) for d in shown):
        session.note("a retraining sets settings and threads as recorded before it computes")
    hidden = len(compared.differences) - len(shown)
    if hidden:
        session.note(f"{count(hidden, 'ignored difference')} not shown (-v lists them)")
