"""``mvc follow``.

Keeps FILE, or the folder DIR/, in sync with the version that is live on TARGET of the repository
at SOURCE: a folder, ssh, https or a bucket. No local repository is needed. Each version arrives
as a delta, is verified, and replaces the previous one in one step; so does a rollback. The
command runs until it is stopped.
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
from mvc.text import printable, size

_SECONDS = click.FloatRange(0, 86_400, min_open=True)


class _FollowOptions(CommandOptions, frozen=True, kw_only=True):
    source: PathText = argument("SOURCE")
    target: str = argument("TARGET")
    output: PathText = option("FILE|DIR/", "The local file, or folder DIR/.", "-o", required=True)
    path: tuple[PathText, ...] = option(
        "PATH", "A file of the version; with DIR/ also a folder (repeatable)."
    )
    node: str = option("NAME", "Report the served version as node NAME.", "--as", default="")
    in_place: bool = flag("Write over the old bytes; readers must be paused meanwhile.")
    once: bool = flag("Update once, and exit.")
    prepare: str = option(
        "CMD", "Shell command before each swap; cancels it on failure.", default=""
    )
    command: str | None = option("CMD", "Shell command after each swap.", "--exec")
    required: bool = flag(
        "Revert the swap if the command of --exec fails.", "--exec-required", needs="command"
    )
    timeout: float = option(
        "SECONDS", "Time limit of a CMD.", "--exec-timeout", type=_SECONDS, default=EXEC_SECONDS
    )
    verify: Literal["changed", "full"] = option(
        "changed|full",
        "Verify changed tensors, or the full old version, at each swap.",
        default="changed",
    )
    interval: float | None = option("SECONDS", "Poll the remote at this interval.", type=_SECONDS)
    options: dict[str, str] = option(
        "K=V", "An option of the remote, as for 'mvc remote add' (repeatable).", "-O", "--option"
    )


class _Ended(BaseException):
    """SIGTERM was received."""


@verb("mvc follow https://models.lab/net prod -o net.safetensors", _FollowOptions)
def command(session: Session, args: _FollowOptions) -> None:
    def print_swap(done: Followed) -> None:
        if session.answered("mvc.follow/1", done, one_line=True):
            return
        session.line(
            f"{session.moment(done.swapped_ns)}  {session.id_text(done.commit)}  "
            f"{done.file}  {size(done.received)} received"
        )

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
        args.source, args.target, sink, on_change=print_swap, note=session.note, remote=args.options
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
            session.note(f"{printable(args.output)} is in sync with {printable(args.target)}")


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise _Ended
