"""``mvc identify``.

The state counts, not the format: a .pt and a .safetensors with the same tensors are the
same. The exit code is 1 if no version has it; then the nearest version is named, and what
differs.
"""

from __future__ import annotations

from typing import Any

from mvc.api import Identified, Nearest
from mvc.cli.commits import forgotten_on, state_json
from mvc.cli.verb import CommandOptions, Session, argument, fields, verb
from mvc.text import count, format_time, one_line, printable


class _IdentifyOptions(CommandOptions, frozen=True, kw_only=True):
    file: str = argument("FILE")


@verb("mvc identify downloaded.pt", _IdentifyOptions)
def command(session: Session, args: _IdentifyOptions) -> int:
    found = session.repository.identify(args.file)
    near = None if found else session.repository.nearest(args.file)
    versions = [_json(session, version) for version in found]
    if session.answered("mvc.identify/1", {"versions": versions, "nearest": near}):
        return int(not found)
    for version in found:
        _print(session, version)
    if not found:
        session.out.note(f"no version has the state of {args.file}")
    if near is not None:
        _print_nearest(session, near, args.file)
    return int(not found)


def _print_nearest(session: Session, near: Nearest, file: str) -> None:
    out, commit = session.out, session.repository.version(near.commit)
    when = format_time(commit.time_ns, commit.zone_minutes, precise=False)
    id_ = out.paint(near.commit.short, "id")
    out.line(f"nearest: {id_} {printable(near.path)}  {when}  {one_line(commit.message)}".rstrip())
    equal = f"{near.equal:,} of {count(near.tensors, 'tensor')}"
    same = f"{equal} {'is' if near.tensors == 1 else 'are'} those of this version"
    out.line(f"  {same}; mvc diff {near.commit.short} {printable(file)}")
    if not near.complete:
        out.note(f"of {count(near.versions, 'version')} that were looked at; there are more")


def _print(session: Session, version: Identified) -> None:
    out = session.out
    commit = session.repository.version(version.commit)
    where = f"{printable(version.path or '')} ({'same bytes' if version.exact else 'same tensors'})"
    if version.forgotten_ns is not None:
        where = f"had it ({forgotten_on(version.forgotten_ns, absent=version.absent)})"
    when = format_time(commit.time_ns, precise=False)
    id_ = out.paint(version.commit.short, "id")
    out.line(f"{id_} {where}  {when}  {one_line(commit.message)}".rstrip())
    if (way := session.repository.way_to_state(version.commit)) is not None:
        out.note(way)
    for deployed in version.deployments:
        target = out.paint(printable(deployed.target), "target")
        when = format_time(deployed.time_ns)
        out.line(f"  deployed to {target} at {when}")


def _json(session: Session, version: Identified) -> dict[str, Any]:
    commit = session.repository.version(version.commit)
    return {
        **fields(version, "commit path exact"),
        **state_json(version.forgotten_ns, absent=version.absent),
        "time": format_time(commit.time_ns, 0),
        "message": commit.message,
        **fields(version, "branches deployments"),
    }
