"""``mvc live``.

Prints the live version of TARGET, or of every target: when it was live, its message and metrics,
and the author and reason of the deployment. The list of --between begins with the version that was
live at A. --nodes lists the newest report of each node. For a TARGET nodes/NAME/T, --at prints the
report of the node NAME about T at TIME.
"""

from __future__ import annotations

from mvc.api import Live, NodeStatus, nodes
from mvc.cli.commits import (
    IsLive,
    live_now,
    note_line,
    recorded_late,
    signature_of,
    signed_line,
    who,
)
from mvc.cli.transfers import note_unsent
from mvc.cli.verb import CommandOptions, PathText, Session, argument, fields, flag, option, verb
from mvc.names import is_report, printable
from mvc.text import count, format_age, measured, one_line


class _LiveOptions(CommandOptions, frozen=True, kw_only=True):
    target: str | None = argument("[TARGET]")
    at: str | None = option("TIME", "Show the version that was live at TIME.")
    between: tuple[str, str] | None = option(
        "A B", "List the versions that were live from A to B.", nargs=2, allows="target remote"
    )
    nodes: bool = flag("List the version that each node reports.", allows="target remote")
    remote: PathText | None = option(
        "REMOTE|URL", "Read from this remote, or from the repository at URL."
    )


@verb('mvc live prod --at "2026-11-20 10:00"', _LiveOptions)
def command(session: Session, args: _LiveOptions) -> None:
    of_nodes = args.nodes or is_report(args.target or "")
    with session.visiting(args.remote, nodes=of_nodes):
        _print(session, args)
        if args.remote is None and not session.as_json:
            note_unsent(session, args.target, has_reports=of_nodes)


def _print(session: Session, args: _LiveOptions) -> None:
    if args.nodes:
        _show_nodes(session, args.target)
        return
    lives = _lives(session, args)
    if session.as_json:
        answers = [
            fields(live) | {"signature": signature_of(session, live.deployment)} for live in lives
        ]
        session.json("mvc.live/1", {"live": answers})
        return
    is_now = live_now(session)
    if not lives:
        session.note("nothing was live then" if args.at or args.between else "nothing is live")
    elif args.target is None or args.between is not None:
        session.table(
            "target, version, since, until, recorded, who, why, metrics, message",
            [_row(session, live, is_now) for live in lives],
        )
    else:
        session.lines(_lines(session, lives[0], is_now))


def _lives(session: Session, args: _LiveOptions) -> tuple[Live, ...]:
    if args.between is not None:
        return session.repo.live_between(*args.between, args.target)
    if args.target is None:
        return session.repo.live(at=args.at)
    return (session.repo.live(args.target, at=args.at),)


def _lines(session: Session, live: Live, is_now: IsLive) -> list[str]:
    age = format_age(live.since_ns, session.now_ns())
    facts = [
        ("version", session.paint(session.id_text(live.commit), "id")),
        ("live on", session.paint(printable(live.target), "target")),
        ("since", f"{session.moment(live.since_ns)} ({age})"),
        ("until", _until(session, live, is_now, cell=False)),
        ("recorded", recorded_late(session, live.deployment)),
        ("message", one_line(live.message)),
        ("metrics", session.few(measured(live.metrics).split("  "), (session.width or 0) - 9)),
        *(("note", note_line(annotation)) for annotation in live.annotations),
        ("who", who(live.deployment.author, live.deployment.sent_by)),
        ("signed", signed_line(session, live.deployment)),
        ("why", one_line(live.deployment.reason)),
    ]
    return [
        line
        for text in (f"{name:8} {value}" for name, value in facts if value)
        for line in session.folded(text, " " * 9)
    ]


def _row(session: Session, live: Live, is_now: IsLive) -> tuple[str, ...]:
    return (
        live.target,
        session.id_text(live.commit),
        session.moment(live.since_ns, cell=True),
        _until(session, live, is_now, cell=True),
        recorded_late(session, live.deployment, cell=True),
        who(live.deployment.author, live.deployment.sent_by),
        one_line(live.deployment.reason),
        measured(live.metrics),
        one_line(live.message),
    )


def _until(session: Session, live: Live, is_now: IsLive, *, cell: bool) -> str:
    if live.until_ns is not None:
        to_come = " (to come)" if not cell and live.until_ns > session.now_ns() else ""
        return session.moment(live.until_ns, cell=cell) + to_come
    return "still live" if is_now(live.deployment) else "unknown"


# -- reports of nodes


def _show_nodes(session: Session, target: str | None) -> None:
    """Prints the newest report of each node (a machine that serves a model).

    ``target``: print only reports of nodes that follow this target.
    """
    statuses = nodes(session.repo, target)
    if session.answered("mvc.live.nodes/1", {"nodes": statuses}):
        return
    session.table(
        "node, target, version, since, behind, clock, silent since",
        [_node(session, status) for status in statuses],
    )
    if not statuses:
        session.note("no node has reported yet")


def _node(session: Session, status: NodeStatus) -> tuple[str, ...]:
    silent = status.silent_since_ns
    return (
        status.node,
        status.target,
        session.id_text(status.commit),
        session.moment(status.since_ns, cell=True),
        _behind(status),
        _clock(status) if status.is_clock_off else "",
        "" if silent is None else session.moment(silent, cell=True),
    )


def _behind(status: NodeStatus) -> str:
    if status.live is None:
        return "nothing is live"
    if not status.is_behind or status.live_ns is None:
        return ""
    ago = format_age(status.live_ns, status.now_ns).removesuffix(" ago")
    if status.behind is None:
        return f"not deployed there, {ago}"
    return f"{count(status.behind, 'deployment')}, {ago}"


def _clock(status: NodeStatus) -> str:
    if status.ahead_ms is None:
        return ""
    by = format_age(0, abs(status.ahead_ms) * 10**6).removesuffix(" ago")
    return f"{by} {'ahead' if status.ahead_ms > 0 else 'behind'}"
