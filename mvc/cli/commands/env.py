"""``mvc env``.

From the environment of OTHER, or of this machine. Listed are fields that must be equal
(exact) and that should not matter (compatible); -v also lists ignored and equal ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.options import CommandOptions, argument, flag
from mvc.cli.payload import fields
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.cli.tables import Column, columns, show
from mvc.cli.text import count
from mvc.model.names import printable

if TYPE_CHECKING:
    from mvc.models.environment import Comparison, Environment

_VERDICTS = {
    "exact": "the same in everything that counts",
    "compatible": "compatible: what differs should not change results",
    "different": "different: results may differ",
}
_SET = ("settings.", "threads.")
_STYLES = {"exact": "removed", "compatible": "changed", "ignored": "dim"}


class _EnvOptions(CommandOptions, frozen=True, kw_only=True):
    rev: str = argument("[REV]", default="HEAD")
    other: str | None = argument("[OTHER]")
    exit_code: bool = flag("End with 1 if they are different.")


@verb("mvc env v1.2", _EnvOptions)
def command(session: Session, args: _EnvOptions) -> int:
    from mvc.models.environment import capture

    repository = session.repository
    recorded = repository.recipes.environment(args.rev)
    if args.other is None:
        there = capture(with_torch="torch" in recorded.sections)
    else:
        there = repository.recipes.environment(args.other)
    compared = recorded.compare(there)
    code = int(args.exit_code and compared.verdict == "different")
    if session.as_json:
        sections = {"environment": recorded.sections, "other": there.sections}
        payload = fields(compared, "verdict differences") | sections
        session.out.json("mvc.env/1", payload | {"used": sorted(recorded.used)})
    else:
        _print(session, args, recorded, compared)
    return code


def _print(
    session: Session, args: _EnvOptions, recorded: Environment, compared: Comparison
) -> None:
    out = session.out
    name = printable(args.other or "this machine")
    out.line(f"{printable(args.rev)} and {name}: {_VERDICTS[compared.verdict]}")
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
    titles = [*columns("grade, field, recorded"), Column(name, give="end")]
    show(out, titles, rows, styles=styles)
    if not args.other and any(d.field.startswith(_SET) for d in shown):
        out.note("a retraining sets settings and threads as recorded before it computes")
    hidden = len(compared.differences) - len(shown)
    if hidden:
        out.note(f"{count(hidden, 'ignored difference')} not shown (-v lists them)")
