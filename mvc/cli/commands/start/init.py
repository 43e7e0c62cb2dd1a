"""``mvc init``.

It lives in the folder .mvc inside DIR, which is made if it is not there.
"""

from __future__ import annotations

from typing import Literal

from mvc.api import Repository
from mvc.cli.session import load
from mvc.cli.verb import CommandOptions, PathText, Session, argument, flag, option, verb


class _InitOptions(CommandOptions, frozen=True, kw_only=True):
    folder: PathText = argument("[DIR]", default=".")
    branch: str | None = option("NAME", "Name of the first branch.", "-b")
    bare: bool = flag("Without working files, for others to push to.")
    shared: Literal["group", "all"] | None = option(
        "[group|all]", "Let the folder's group write, with all others read, whatever the umask.",
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
            f"{where} is on a network file system: locks and durable writes hold "
            "only as far as it keeps them (docs/limits.md)"
        )
    if not session.answered("mvc.init/1", {"path": where, "branch": first, "bare": args.bare}):
        kind = "bare mvc" if args.bare else "mvc"
        session.note(f"Initialized empty {kind} repository in {where}")
