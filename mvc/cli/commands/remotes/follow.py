"""``mvc follow``.

SOURCE is the path or URL of a repository: a folder, an ssh host, an https server or a bucket. When
another version goes live on TARGET, even by a rollback, mvc downloads the differences, verifies the
new tensors, and replaces FILE or the folder DIR/ in one step (a swap). No local repository is
needed. mvc runs until you stop it.
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
    output: PathText = option(
        "FILE|DIR/",
        "The local FILE, or a folder DIR/ (its name ends in a slash).",
        "-o",
        required=True,
    )
    path: tuple[PathText, ...] = option(
        "PATH", "Follow only this file of the version. With DIR/: a file or a folder (repeatable)."
    )
    node: str = option(
        "NAME",
        "Report to SOURCE which version is served here, under the node name NAME.",
        "--as",
        default="",
    )
    in_place: bool = flag("Overwrite changed bytes in the old files. Pause all readers meanwhile.")
    once: bool = flag("Update once, and exit.")
    prepare: str = option(
        "CMD", "Run this shell command before each swap. If it fails, cancel the swap.", default=""
    )
    command: str | None = option("CMD", "Run this shell command after each swap.", "--exec")
    required: bool = flag(
        "If the command of --exec fails, revert the swap, and run the command again.",
        "--exec-required",
        needs="command",
    )
    timeout: float = option(
        "SECONDS",
        "The time limit of each CMD; by default 600.",
        "--exec-timeout",
        type=_SECONDS,
        default=EXEC_SECONDS,
    )
    verify: Literal["changed", "full"] = option(
        "changed|full",
        "changed (default): hash new tensors. full: before a swap, hash the old files, too.",
        default="changed",
    )
    interval: float | None = option("SECONDS", "Poll the remote at this interval.", type=_SECONDS)
    options: dict[str, str] = option(
        "K=V", "An option of the remote, as for 'mvc remote add' (repeatable).", "-O", "--option"
    )


class _Ended(BaseException):
    """Raised when SIGTERM is received."""


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
