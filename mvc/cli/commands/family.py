"""``mvc family``.

Those that came from the models of REV, or from every base model, over all branches and
tags. Three or more plain versions in a row are one line; -v lists each.
"""

from __future__ import annotations

from pathlib import Path

from mvc.cli.options import FORCE_FILE, CommandOptions, argument, option
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.errors import DamagedData, WrongUsage
from mvc.model.names import printable


class _FamilyOptions(CommandOptions, frozen=True, kw_only=True):
    rev: str | None = argument("[REV]")
    output: str | None = option("FILE", "Draw it as .svg.", "-o")
    force: bool = FORCE_FILE


@verb("mvc family v1 -o family.svg", _FamilyOptions)
def command(session: Session, args: _FamilyOptions) -> None:
    out, every = session.out, session.verbose
    if args.output is not None:
        if Path(args.output).suffix.lower() != ".svg":
            raise WrongUsage(f"a family tree is drawn as .svg, not as {printable(args.output)}")
        session.check_output(Path(args.output), force=args.force)
    incomplete: list[DamagedData] = []
    with session.progress("comparing", counted=True) as progress:
        found = session.repository.family(args.rev, incomplete=incomplete, progress=progress)
    if args.output is not None:
        session.write_output(Path(args.output), found.svg(every=every).encode())
        out.note(f"drew {printable(args.output)}")
    if session.as_json:
        out.json("mvc.family/1", {"models": found.members}, incomplete=incomplete)
    elif args.output is None:
        for row in found.rows(every=every):
            out.line(row.prefix + row.text(out.paint))
    session.tell_incomplete(incomplete)
