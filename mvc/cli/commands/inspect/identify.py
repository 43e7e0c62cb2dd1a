"""``mvc identify``.

mvc compares tensors, not file formats: a .pt and a .safetensors file with the same tensors match.
If no version matches, the exit code is 1, and mvc prints the nearest version and the number of its
equal tensors.
"""

from __future__ import annotations

from typing import Any

from mvc.api import Identified, Nearest
from mvc.cli.commits import forgotten_on, missing_state, state_json
from mvc.cli.verb import CommandOptions, PathText, Session, argument, fields, verb
from mvc.text import count, format_time, one_line, printable


class _IdentifyOptions(CommandOptions, frozen=True, kw_only=True):
    file: PathText = argument("FILE")


@verb("mvc identify downloaded.pt", _IdentifyOptions)
def command(session: Session, args: _IdentifyOptions) -> int:
    matches = session.run("reading", session.repo.identify, args.file)
    near = None if matches else session.run("comparing", session.repo.nearest, args.file)
    versions = [_json(session, version) for version in matches]
    if session.answered("mvc.identify/1", {"versions": versions, "nearest": near}):
        return int(not matches)
    for version in matches:
        _print(session, version)
    if not matches:
        session.note(f"no version has the state of {args.file}")
    if near is not None:
        _print_nearest(session, near, args.file)
    return int(not matches)


def _print_nearest(session: Session, near: Nearest, file: str) -> None:
    commit = session.repo.version(near.commit)
    when = format_time(commit.time_ns, commit.zone_minutes, precise=False)
    id_ = session.paint(near.commit.short, "id")
    session.line(
        f"nearest: {id_} {printable(near.path)}  {when}  {one_line(commit.message)}".rstrip()
    )
    equal = f"{near.equal:,} of {count(near.tensors, 'tensor')}"
    same = f"{equal} {'equals' if near.tensors == 1 else 'equal'} those of this version"
    session.line(f"  {same}; mvc diff {near.commit.short} {printable(file)}")
    if not near.complete:
        session.note(f"only {count(near.versions, 'version')} were searched; there are more")


def _print(session: Session, version: Identified) -> None:
    commit = session.repo.version(version.commit)
    where = f"{printable(version.path or '')} ({'same bytes' if version.exact else 'same tensors'})"
    if version.forgotten_ns is not None:
        where = f"had this state ({forgotten_on(version.forgotten_ns, absent=version.absent)})"
    when = format_time(commit.time_ns, precise=False)
    id_ = session.paint(version.commit.short, "id")
    session.lines(session.folded(f"{id_} {where}  {when}  {one_line(commit.message)}".rstrip()))
    if (missing := missing_state(session, version.commit)) and missing.hint:
        session.note(missing.hint)
    for deployed in version.deployments:
        session.line(
            f"  deployed to {session.paint(printable(deployed.target), 'target')} "
            f"at {session.moment(deployed.time_ns)}"
        )


def _json(session: Session, version: Identified) -> dict[str, Any]:
    commit = session.repo.version(version.commit)
    return {
        **fields(version, "commit path exact"),
        **state_json(version.forgotten_ns, absent=version.absent),
        "time": format_time(commit.time_ns, 0),
        "message": commit.message,
        **fields(version, "branches deployments"),
    }
