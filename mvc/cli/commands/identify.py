"""``mvc identify``.

The state counts, not the format: a .pt and a .safetensors with the same tensors are the
same. The exit code is 1 if no version has it.
"""

from __future__ import annotations

from typing import Any

from mvc.cli.commits import forgotten_on
from mvc.cli.options import CommandOptions, argument
from mvc.cli.payload import fields
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.cli.text import one_line
from mvc.model.names import printable
from mvc.repo.times import format_time
from mvc.repo.worktree.identify import Identified


class _IdentifyOptions(CommandOptions, frozen=True, kw_only=True):
    file: str = argument("FILE")


@verb("mvc identify downloaded.pt", _IdentifyOptions)
def command(session: Session, args: _IdentifyOptions) -> int:
    found = session.repository.identify(args.file)
    if session.as_json:
        session.out.json("mvc.identify/1", {"versions": [_json(session, v) for v in found]})
        return int(not found)
    for version in found:
        _print(session, version)
    if not found:
        session.out.note(f"no version has the state of {printable(args.file)}")
    return int(not found)


def _print(session: Session, version: Identified) -> None:
    out = session.out
    commit = session.commit(version.commit)
    where = f"{printable(version.path or '')} ({'same bytes' if version.exact else 'same tensors'})"
    if version.forgotten_ns is not None:
        where = f"had it ({forgotten_on(version.forgotten_ns)})"
    when = format_time(commit.time_ns, precise=False)
    id_ = out.paint(version.commit.short, "id")
    out.line(f"{id_} {where}  {when}  {one_line(commit.message)}".rstrip())
    for deployed in version.deployments:
        target = out.paint(printable(deployed.target), "target")
        when = format_time(deployed.time_ns, precise=session.verbose)
        out.line(f"  deployed to {target} at {when}")


def _json(session: Session, version: Identified) -> dict[str, Any]:
    commit = session.commit(version.commit)
    return {
        **fields(version, "commit path exact forgotten@"),
        "time": format_time(commit.time_ns, 0),
        "message": commit.message,
        **fields(version, "branches deployments"),
    }
