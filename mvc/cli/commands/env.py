"""``mvc env``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mvc.cli.options import revision
from mvc.cli.payload import fields
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.cli.tables import Column, show
from mvc.cli.text import count
from mvc.model.names import printable

if TYPE_CHECKING:
    from mvc.provenance.environment import Comparison, Environment

_VERDICTS = {
    "exact": "the same in everything that counts",
    "compatible": "compatible: what differs should not change results",
    "different": "different: results may differ",
}
_STYLES = {"exact": "removed", "compatible": "changed", "ignored": "dim"}


@verb("env", "mvc env v1.2")
@revision("REV", default="HEAD")
@revision("OTHER", required=False)
@click.option("--exit-code", is_flag=True, help="End with 1 if they are different.")
def command(session: Session, rev: str, other: str | None, exit_code: bool) -> int:
    """Show how the environment of a version differs.

    From the environment of OTHER, or of this machine. Listed are fields that must be equal
    (exact) and that should not matter (compatible); -v also lists ignored and equal ones.
    """
    from mvc.provenance.environment import capture

    repository = session.repository
    recorded = repository.recipes.environment(rev)
    if other is None:
        there = capture(with_torch="torch" in recorded.sections)
    else:
        there = repository.recipes.environment(other)
    compared = recorded.compare(there)
    code = int(exit_code and compared.verdict == "different")
    if session.as_json:
        session.out.json(
            "mvc.env/1",
            {
                "verdict": compared.verdict,
                "differences": [
                    fields(each, "field", "grade", "recorded", "other")
                    for each in compared.differences
                ],
                "environment": recorded.sections,
                "other": there.sections,
                "used": sorted(recorded.used),
            },
        )
        return code
    _print(session, rev, other, recorded, compared)
    return code


def _print(
    session: Session, rev: str, other: str | None, recorded: Environment, compared: Comparison
) -> None:
    out = session.out
    name = printable(other or "this machine")
    out.line(f"{printable(rev)} and {name}: {_VERDICTS[compared.verdict]}")
    shown = [d for d in compared.differences if session.verbose or d.grade != "ignored"]
    rows: list[tuple[str, ...]] = [
        (d.grade, printable(d.field), printable(d.recorded or "-"), printable(d.other or "-"))
        for d in shown
    ]
    styles: list[str | None] = [_STYLES[d.grade] for d in shown]
    if session.verbose:
        differing = {d.field for d in compared.differences}
        equal = {k: v for k, v in recorded.fields().items() if k not in differing}
        rows += [("equal", printable(k), printable(v), printable(v)) for k, v in equal.items()]
        styles += [None] * len(equal)
    columns = [Column("grade"), Column("field", give="middle"), Column("recorded", give="end")]
    show(out, [*columns, Column(name, give="end")], rows, styles=styles)
    hidden = len(compared.differences) - len(shown)
    if hidden:
        out.note(f"{count(hidden, 'ignored difference')} not shown (-v lists them)")
