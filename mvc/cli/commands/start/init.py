"""``mvc init``.

The repository is the folder .mvc inside DIR, even with --bare. If DIR is missing, mvc creates it.
"""

from __future__ import annotations

from typing import Literal

from mvc.api import Repository
from mvc.cli.session import load
from mvc.cli.verb import CommandOptions, PathText, Session, argument, flag, option, verb


class _InitOptions(CommandOptions, frozen=True, kw_only=True):
    folder: PathText = argument("[DIR]", default=".")
    branch: str | None = option("NAME", "The name of the first branch.", "-b")
    bare: bool = flag("Create a bare repository, without working files, to push to.")
    shared: Literal["group", "all"] | None = option(
        "[group|all]", "Let the group of DIR read and write. With 'all', let others read.",
        is_flag=False, flag_value="group",
    )  # fmt: skip


@verb("mvc init models", _InitOptions)
def command(session: Session, args: _InitOptions) -> None:
    with Repository.init(
        args.folder, branch=args.branch, bare=args.bare, shared=args.shared, config=load
    ) as repository:
        where = str(repository.root / ".mvc")
        first = repository.head().branch
        networked = session.fs.is_network_filesystem(repository.root)
    if networked:
        session.warn(
            f"{where} is on a network file system, which may not support locks and durable writes "
            "(docs/limits.md)"
        )
    if not session.answered("mvc.init/1", {"path": where, "branch": first, "bare": args.bare}):
        session.note(
            f"Initialized empty {'bare mvc' if args.bare else 'mvc'} repository in {where}"
        )
