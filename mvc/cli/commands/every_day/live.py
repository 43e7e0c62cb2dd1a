"""``mvc live``.

Now or at TIME, on TARGET or on every target: the version, since when and until when it was
live, its message and metrics, who deployed it and why. With --between everything that was
live in that time, both ends included; the first is what was live at A already. With --nodes
the newest report of each node: the version and since when by its own clock, how far it is
behind what is live, and how far its clock is off.
"""

from __future__ import annotations

from mvc.api import Live, NodeStatus, nodes
from mvc.cli.commits import IsLive, live_now, note_line, signature_of, signed_line, who
from mvc.cli.transfers import tell_unsent
from mvc.cli.verb import CommandOptions, PathText, Session, argument, fields, flag, option, verb
from mvc.names import is_report, printable
from mvc.text import count, format_age, format_time, measured, one_line


class _LiveOptions(CommandOptions, frozen=True, kw_only=True):
    target: str | None = argument("[TARGET]")
    at: str | None = option("TIME", "What was live at TIME, not now.")
    between: tuple[str, str] | None = option(
        "A B", "Everything that was live from A to B.", nargs=2, takes="target remote"
    )
    nodes: bool = flag("What each node reports that it serves.", takes="target remote")
    remote: PathText | None = option("REMOTE|URL", "At this remote, or the repository at URL.")


@verb('mvc live prod --at "2026-11-20 10:00"', _LiveOptions)
def command(session: Session, args: _LiveOptions) -> None:
    with session.visiting(args.remote, nodes=args.nodes or is_report(args.target or "")):
        _tell(session, args)


def _tell(session: Session, args: _LiveOptions) -> None:
    if args.nodes:
        _show_nodes(session, args.target)
        return
    found = _found(session, args)
    if session.as_json:
        answers = [
            fields(each) | {"signature": signature_of(session, each.deployment)} for each in found
        ]
        session.json("mvc.live/1", {"live": answers})
        return
    is_now = live_now(session)
    if not found:
        session.note("nothing was live then" if args.at or args.between else "nothing is live")
    elif args.target is None or args.between is not None:
        rows = [_row(session, each, is_now) for each in found]
        session.table("target, version, since, until, who, why, metrics, message", rows)
    else:
        session.lines(_lines(session, found[0], is_now))
    if args.remote is None:
        tell_unsent(session, args.target)


def _found(session: Session, args: _LiveOptions) -> tuple[Live, ...]:
    if args.between is not None:
        return session.repo.live_between(*args.between, args.target)
    if args.target is None:
        return session.repo.live(at=args.at)
    return (session.repo.live(args.target, at=args.at),)


def _lines(session: Session, live: Live, is_now: IsLive) -> list[str]:
    age = format_age(live.since_ns, session.now_ns())
    id_ = session.id_text(live.commit)
    facts = [
        ("version", session.paint(id_, "id")),
        ("live on", session.paint(printable(live.target), "target")),
        ("since", f"{format_time(live.since_ns)} ({age})"),
        ("until", _until(session, live, is_now)),
        ("message", one_line(live.message)),
        ("metrics", measured(live.metrics)),
        *(("note", note_line(annotation)) for annotation in live.annotations),
        ("who", who(live.deployment.author, live.deployment.sent_by)),
        ("signed", signed_line(session, live.deployment)),
        ("why", one_line(live.deployment.reason)),
    ]
    return [f"{name:8} {value}" for name, value in facts if value]


def _row(session: Session, live: Live, is_now: IsLive) -> tuple[str, ...]:
    return (
        live.target,
        session.id_text(live.commit),
        format_time(live.since_ns),
        _until(session, live, is_now),
        who(live.deployment.author, live.deployment.sent_by),
        one_line(live.deployment.reason),
        measured(live.metrics),
        one_line(live.message),
    )


def _until(session: Session, live: Live, is_now: IsLive) -> str:
    if live.until_ns is not None:
        to_come = " (to come)" if live.until_ns > session.now_ns() else ""
        return format_time(live.until_ns) + to_come
    return "still live" if is_now(live.deployment) else "nothing later is on record"


# -- what nodes serve


def _show_nodes(session: Session, target: str | None) -> None:
    """Prints the newest report of each node, or of those that follow ``target``."""
    found = nodes(session.repo, target)
    if session.answered("mvc.live.nodes/1", {"nodes": found}):
        return
    session.table(
        "node, target, version, since, behind, clock, silent since",
        [_node(session, each) for each in found],
    )
    if not found:
        session.note("no node has reported what it serves")


def _node(session: Session, each: NodeStatus) -> tuple[str, ...]:
    silent = each.silent_since_ns
    return (
        each.node,
        each.target,
        session.id_text(each.commit),
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
