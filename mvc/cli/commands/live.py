"""``mvc live``.

Now or at TIME, on TARGET or on every target: the version, since when and until when it was
live, its message and metrics, who deployed it and why. With --between everything that was
live in that time, both ends included; the first is what was live at A already. With --follow
it goes on, and prints a line whenever another version is live.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mvc.cli.commits import IsLive, live_now, measured, note_line, signature_of, signed_line, who
from mvc.cli.options import FORCE_FILE, CommandOptions, argument, flag, option
from mvc.cli.payload import fields
from mvc.cli.program import verb
from mvc.cli.restored import stdout, tell, write_model
from mvc.cli.session import Session
from mvc.cli.tables import columns
from mvc.cli.transfers import tell_unsent
from mvc.names import printable
from mvc.repo.deployments import Deployed
from mvc.repo.live import Live
from mvc.text import one_line
from mvc.times import format_age, format_time

_COLUMNS = columns("target, version, since, until, who, why, metrics, message")


class _LiveOptions(CommandOptions, frozen=True, kw_only=True):
    target: str | None = argument("[TARGET]")
    at: str | None = option("TIME", "What was live at TIME, not now.")
    between: tuple[str, str] | None = option(
        "A B", "Everything that was live from A to B.", nargs=2
    )
    output: str | None = option(
        "FILE|DIR", "Write the version there, as 'mvc checkout' does; - is stdout.", "-o"
    )
    follow: bool = flag("Go on until interrupted; -o is kept as what is live.")
    whole: bool = flag("Write the model's code beside its weights, into -o DIR.", "--model")
    force: bool = FORCE_FILE


@verb('mvc live prod --at "2026-11-20 10:00"', _LiveOptions)
def command(session: Session, args: _LiveOptions) -> None:
    writes = args.output is not None or args.whole
    if args.between is not None and (args.at is not None or writes):
        raise click.UsageError("--between goes with neither --at nor -o nor --model")
    if args.target is None and (writes or args.follow):
        raise click.UsageError("-o, --model and --follow are for one TARGET: name it")
    if args.follow:
        _follow(session, args)
        return
    found = _found(session, args)
    if session.as_json:
        written = _write(session, found[0], args) if writes else {}
        session.out.json(
            "mvc.live/1", {"live": [_json(session, each) for each in found], **written}
        )
        return
    is_now = live_now(session)
    if not found:
        session.out.note("nothing was live then" if args.at or args.between else "nothing is live")
    elif args.target is None or args.between is not None:
        rows = [_row(session, each, is_now) for each in found]
        session.out.table(_COLUMNS, rows)
    else:
        print_ = session.out.note if args.output == "-" else session.out.line
        for line in _lines(session, found[0], is_now):
            print_(line)
    tell_unsent(session, args.target)
    if writes:
        _write(session, found[0], args)


def _found(session: Session, args: _LiveOptions) -> tuple[Live, ...]:
    repository = session.repository
    if args.between is not None:
        return repository.live_between(*args.between, args.target)
    if args.target is None:
        return repository.live(at=args.at)
    return (repository.live(args.target, at=args.at),)


def _follow(session: Session, args: _LiveOptions) -> None:
    from mvc.serving.follower import Follower

    if args.at or args.between or args.whole or args.output == "-":
        raise click.UsageError("--follow goes with neither --at, --between, --model nor -o -")
    target, output = str(args.target), args.output

    def tell(deployed: Deployed) -> None:
        if session.as_json:
            session.out.json("mvc.live/1", {"live": [_json(session, follower.repo.live(target))]})
            return
        id_ = str(deployed.commit) if session.verbose else deployed.commit.short
        message = one_line(follower.repo.version(deployed.commit).message)
        why = ": ".join(
            filter(None, (who(deployed.author, deployed.sent_by), one_line(deployed.reason)))
        )
        facts = (format_time(deployed.time_ns), id_, message, why and f"({why})")
        session.out.line("  ".join(filter(None, facts)))

    folder = output is not None and (output.endswith("/") or not Path(output).suffix)
    follower = Follower(session.repository, target, to=output, atomic_dir=folder, on_change=tell)
    with follower:
        if follower.live() is None:
            session.out.note(f"nothing is live on {printable(target)} yet")
        follower.run()


def _json(session: Session, live: Live) -> dict[str, Any]:
    return fields(live) | {"signature": signature_of(session, live.deployment)}


def _lines(session: Session, live: Live, is_now: IsLive) -> list[str]:
    age = format_age(live.since_ns, session.now_ns())
    id_ = str(live.commit) if session.verbose else live.commit.short
    facts = [
        ("version", session.out.paint(id_, "id")),
        ("live on", session.out.paint(printable(live.target), "target")),
        ("since", f"{format_time(live.since_ns)} ({age})"),
        ("until", _until(session, live, is_now)),
        ("message", one_line(live.message)),
        ("metrics", measured(live.metrics)),
        *(("note", note_line(annotation)) for annotation in live.annotations),
        ("who", who(live.who, live.deployment.sent_by)),
        ("signed", signed_line(session, live.deployment)),
        ("why", one_line(live.why)),
    ]
    return [f"{name:8} {value}" for name, value in facts if value]


def _row(session: Session, live: Live, is_now: IsLive) -> tuple[str, ...]:
    return (
        printable(live.target),
        str(live.commit) if session.verbose else live.commit.short,
        format_time(live.since_ns),
        _until(session, live, is_now),
        who(live.who, live.deployment.sent_by),
        one_line(live.why),
        measured(live.metrics),
        one_line(live.message),
    )


def _until(session: Session, live: Live, is_now: IsLive) -> str:
    if live.until_ns is not None:
        to_come = " (to come)" if live.until_ns > session.now_ns() else ""
        return format_time(live.until_ns) + to_come
    return "still live" if is_now(live.deployment) else "nothing later is on record"


def _write(session: Session, live: Live, args: _LiveOptions) -> dict[str, Any]:
    """Writes the version's files, and says so; returns what ``--json`` says of them."""
    if args.whole or args.output is None:
        if args.output == "-":
            raise click.UsageError("--model writes a whole version into -o DIR")
        written = write_model(session, live.commit, args.output, force=args.force)
        return {key: written[key] for key in ("written", "model", "folder") if key in written}
    with session.progress("restoring") as progress:
        to = stdout(session) if args.output == "-" else args.output
        done = session.repository.checkout(live.commit, to=to, force=args.force, progress=progress)
    if not session.as_json:
        tell(session, done)
    return fields(done, "written left_out")
