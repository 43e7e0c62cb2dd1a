"""``mvc live --nodes``: what each node of a fleet serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.session import Session
from mvc.cli.tables import columns
from mvc.names import printable
from mvc.serving.nodes import nodes
from mvc.text import count
from mvc.times import format_age, format_time

if TYPE_CHECKING:
    from mvc.serving.nodes import NodeStatus

_COLUMNS = columns("node, target, version, since, behind, clock, silent since")


def show_nodes(session: Session, target: str | None) -> None:
    """Prints the newest report of each node, or of those that follow ``target``."""
    found = nodes(session.repository, target)
    if session.as_json:
        session.out.json("mvc.live.nodes/1", {"nodes": found})
        return
    session.out.table(_COLUMNS, [_row(session, each) for each in found])
    if not found:
        session.out.note("no node has reported what it serves")


def _row(session: Session, each: NodeStatus) -> tuple[str, ...]:
    silent = each.silent_since_ns
    return (
        printable(each.node),
        printable(each.target),
        str(each.commit) if session.verbose else each.commit.short,
        format_time(each.since_ns, precise=session.verbose),
        _behind(each),
        _clock(each) if each.is_clock_off else "",
        "" if silent is None else format_time(silent, precise=session.verbose),
    )


def _behind(each: NodeStatus) -> str:
    if each.live is None:
        return "nothing is live"
    if not each.is_behind or each.live_ns is None:
        return ""
    ago = format_age(each.live_ns, each.now_ns).removesuffix(" ago")
    if each.behind is None:
        return f"not deployed there, {ago}"
    return f"{count(each.behind, 'deployment')}, {ago}"


def _clock(each: NodeStatus) -> str:
    if each.ahead_ms is None:
        return ""
    by = format_age(0, abs(each.ahead_ms) * 10**6).removesuffix(" ago")
    return f"{by} {'ahead' if each.ahead_ms > 0 else 'behind'}"
