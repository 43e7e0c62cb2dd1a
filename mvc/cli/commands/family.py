"""``mvc family``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mvc.cli.options import revision
from mvc.cli.payload import fields, relation_json, stamped
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.errors import DamagedData, WrongUsage
from mvc.model.names import printable
from mvc.repo.history.family import Member


@verb("family", "mvc family v1 -o family.svg")
@revision("REV", required=False)
@click.option("-o", "--output", metavar="FILE", help="Draw it as .svg.")
@click.option("-f", "--force", is_flag=True, help="Replace FILE if it exists.")
def command(session: Session, rev: str | None, output: str | None, force: bool) -> None:
    """Show which models came from which.

    Those that came from the models of REV, or from every base model, over all branches and
    tags. Three or more plain versions in a row are one line; -v lists each.
    """
    out, every = session.out, session.verbose
    if output is not None:
        if Path(output).suffix.lower() != ".svg":
            raise WrongUsage(f"a family tree is drawn as .svg, not as {printable(output)}")
        session.check_output(Path(output), force=force)
    incomplete: list[DamagedData] = []
    with session.progress("comparing", counted=True) as progress:
        found = session.repository.family(rev, incomplete=incomplete, progress=progress)
    if output is not None:
        session.write_output(Path(output), found.svg(every=every).encode())
        out.note(f"drew {printable(output)}")
    if session.as_json:
        lost = {"incomplete": True} if incomplete else {}
        out.json("mvc.family/1", {"models": [_json(member) for member in found.members], **lost})
    elif output is None:
        for row in found.rows(every=every):
            out.line(row.prefix + row.text(out.paint))
    session.tell_incomplete(incomplete)


def _json(member: Member) -> dict[str, Any]:
    return {
        "commit": member.commit.id,
        **fields(member, "path", "base"),
        "relation": relation_json(member.relation),
        **fields(member, "names", "targets"),
        **fields(member.commit, "message"),
        **stamped("time", member.commit.time_ns),
    }
