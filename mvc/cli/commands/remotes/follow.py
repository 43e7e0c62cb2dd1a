"""``mvc follow``.

Keeps FILE, or the folder DIR/, the version that is live on TARGET of the repository at SOURCE: a
folder, ssh, https or a bucket. No repository is needed here. Each version comes as a delta, is
proven, and replaces the one before in one step; a rollback comes like a deployment. It goes on
until it is ended, also after the remote was away.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Literal, NoReturn

import click

from mvc.cli.verb import CommandOptions, PathText, Session, argument, flag, option, verb
from mvc.serving.follower import Follower
from mvc.serving.sinks import EXEC_SECONDS, ReplicaSink
from mvc.serving.sources import Followed
from mvc.text import format_time, printable, size

_SECONDS = click.FloatRange(0, 86_400, min_open=True)


class _FollowOptions(CommandOptions, frozen=True, kw_only=True):
    source: PathText = argument("SOURCE")
    target: str = argument("TARGET")
    output: PathText = option("FILE|DIR/", "The file or folder that is kept.", "-o", required=True)
    path: tuple[PathText, ...] = option(
        "PATH", "A file of the version; with DIR/ also what is below (repeatable)."
    )
    node: str = option("NAME", "Report as node NAME what is served.", "--as", default="")
    in_place: bool = flag("Write over the old bytes; nobody may read them meanwhile.")
    once: bool = flag("Return as soon as it is what is live.")
    prepare: str = option("CMD", "Run by a shell before each swap; if it fails, none.", default="")
    command: str | None = option("CMD", "Run by a shell after each swap.", "--exec")
    required: bool = flag("Go back if CMD of --exec fails.", "--exec-required", needs="command")
    timeout: float = option(
        "SECONDS", "End a CMD after so long.", "--exec-timeout", type=_SECONDS, default=EXEC_SECONDS
    )
    verify: Literal["changed", "full"] = option(
        "changed|full", "What is read of the version before: all, with full.", default="changed"
    )
    interval: float | None = option(
        "SECONDS", "Seconds between two looks, in place of waiting at the remote.", type=_SECONDS
    )
    options: dict[str, str] = option(
        "K=V", "An option of the remote, as of 'remote add' (repeatable).", "-O", "--option"
    )


class _Ended(BaseException):
    """SIGTERM has come."""


@verb("mvc follow https://models.lab/net prod -o net.safetensors", _FollowOptions)
def command(session: Session, args: _FollowOptions) -> None:
    def tell(done: Followed) -> None:
        if session.answered("mvc.follow/1", done, one_line=True):
            return
        when = format_time(done.swapped_ns, precise=session.verbose)
        id_ = session.id_text(done.commit)
        session.line(f"{when}  {id_}  {done.file}  {size(done.received)}")

    sink = ReplicaSink(
        args.output,
        path=args.path,
        name=args.node,
        command=args.command or "",
        prepare=args.prepare,
        required=args.required,
        timeout=args.timeout,
        full=args.verify == "full",
        in_place=args.in_place,
    )
    with Follower(
        args.source, args.target, sink, on_change=tell, note=session.note, remote=args.options
    ) as follower:
        if not args.once:
            before = signal.signal(signal.SIGTERM, _end)
            try:
                follower.run(args.interval)
            except _Ended:
                return
            finally:
                signal.signal(signal.SIGTERM, before)
        elif follower.poll() is None:
            session.note(f"{printable(args.output)} is what is live on {printable(args.target)}")


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise _Ended
