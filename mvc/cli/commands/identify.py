"""``mvc identify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mvc.cli.commits import deployed_json, forgotten_on
from mvc.cli.options import json_option
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.cli.text import one_line
from mvc.model.names import printable
from mvc.repo.lookup import commits
from mvc.repo.times import format_time
from mvc.repo.worktree.identify import identify

if TYPE_CHECKING:
    from mvc.repo.worktree.identify import Identified


@click.command("identify", cls=Verb, example="mvc identify downloaded.pt")
@click.argument("file", metavar="FILE")
@json_option
@click.pass_context
def command(ctx: click.Context, file: str, as_json: bool) -> None:
    """Find the versions that hold a file's state.

    The state counts, not the format: a .pt and a .safetensors with the same tensors are the
    same. The exit code is 1 if no version has it.
    """
    session: Session = ctx.obj
    found = identify(session.context, Path(file))
    if as_json:
        session.out.json("mvc.identify/1", {"versions": [_json(session, v) for v in found]})
    else:
        for version in found:
            _print(session, version)
        if not found:
            session.out.note(f"no version has the state of {printable(file)}")
    if not found:
        ctx.exit(1)


def _print(session: Session, version: Identified) -> None:
    out = session.out
    commit = commits.get(session.context, version.commit)
    where = f"{printable(version.path or '')} ({'same bytes' if version.exact else 'same tensors'})"
    if version.forgotten_ns is not None:
        where = f"had it ({forgotten_on(version.forgotten_ns)})"
    when = format_time(commit.time_ns, commit.zone_minutes, precise=False)
    out.line(
        f"{out.paint(version.commit.short, 'id')} {where}  "
        f"{when}  {one_line(commit.message)}".rstrip()
    )
    for deployed in version.deployments:
        target = out.paint(printable(deployed.target), "target")
        out.line(f"  deployed to {target} at {format_time(deployed.time_ns)}")


def _json(session: Session, version: Identified) -> dict[str, object]:
    commit = commits.get(session.context, version.commit)
    gone = version.forgotten_ns
    return {
        "commit": str(version.commit),
        "path": version.path,
        "exact": version.exact,
        "forgotten": None if gone is None else format_time(gone, 0),
        "forgotten_ns": gone,
        "time": format_time(commit.time_ns, 0),
        "message": commit.message,
        "branches": list(version.branches),
        "deployments": [deployed_json(d) for d in version.deployments],
    }
