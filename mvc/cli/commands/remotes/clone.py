"""``mvc clone`` copies a repository.

In the clone, the repository at URL is the remote origin. The default DIR is the last part of URL.
To continue an interrupted clone, repeat the command.
"""

from __future__ import annotations

from pathlib import Path

from mvc.api import CloneOptions, clone_into
from mvc.cli.restored import print_restored
from mvc.cli.session import load
from mvc.cli.verb import CommandOptions, PathText, Session, argument, flag, option, verb
from mvc.text import count, printable, size


class _CloneOptions(CommandOptions, frozen=True, kw_only=True):
    url: PathText = argument("URL")
    folder: Path | None = argument("[DIR]")
    branch: str | None = option("BRANCH", "Check out BRANCH.", "-b")
    states: str = option(
        "STATES", "The states to fetch: all (default), none, live or last:N.", default="all"
    )
    bare: bool = flag("Create a bare repository, without working files, to push to.")
    options: dict[str, str] = option(
        "K=V", "An option of the remote, as for 'mvc remote add' (repeatable).", "-o", "--option"
    )


@verb("mvc clone ssh://gpu/srv/models", _CloneOptions)
def command(session: Session, args: _CloneOptions) -> None:
    options = CloneOptions(
        branch=args.branch, states=args.states, bare=args.bare, options=args.options
    )
    done = session.run("receiving", clone_into, args.url, args.folder, options=options, config=load)
    if session.answered("mvc.clone/1", done):
        return
    fetched = done.fetched
    session.note(
        f"Cloned into the {'bare ' if args.bare else ''}repository {done.folder}: "
        f"{count(fetched.versions, 'version')}, {size(fetched.bytes)}"
    )
    if done.head is None:
        hint = "" if not fetched.updates else "; 'mvc switch NAME' switches to another branch"
        session.warn(f"{done.branch} has no version yet: no files were written{hint}")
        return
    at = "HEAD detached" if done.branch is None else f"On branch {printable(done.branch)}"
    session.note(f"{at}, at {done.head.short}")
    if done.restored is not None:
        print_restored(session, done.restored)
    elif not args.bare:
        session.note(
            f"no files were written, because the state of {done.head.short} was not fetched: "
            f"run 'mvc fetch origin {done.head.short}', then 'mvc checkout HEAD'"
        )
