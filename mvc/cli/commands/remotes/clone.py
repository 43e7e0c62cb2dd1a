"""``mvc clone``.

The clone calls the other repository origin. DIR is by default the last part of the URL. What was
interrupted goes on with the same command.
"""

from __future__ import annotations

from pathlib import Path

from mvc.api import CloneOptions, clone_into
from mvc.cli.restored import tell
from mvc.cli.session import load
from mvc.cli.verb import CommandOptions, PathText, Session, argument, flag, option, verb
from mvc.text import count, printable, size


class _CloneOptions(CommandOptions, frozen=True, kw_only=True):
    url: PathText = argument("URL")
    folder: Path | None = argument("[DIR]")
    branch: str | None = option("BRANCH", "The branch to begin with.", "-b")
    states: str = option(
        "STATES", "Whose states come along: all, none, live or last:N.", default="all"
    )
    bare: bool = flag("Without working files, for others to push to.")
    options: dict[str, str] = option(
        "K=V", "An option of the remote, as of 'remote add' (repeatable).", "-o", "--option"
    )


@verb("mvc clone ssh://gpu/srv/models", _CloneOptions)
def command(session: Session, args: _CloneOptions) -> None:
    options = CloneOptions(
        branch=args.branch, states=args.states, bare=args.bare, options=args.options
    )
    done = session.run("receiving", clone_into, args.url, args.folder, options=options, config=load)
    if session.answered("mvc.clone/1", done):
        return
    came = done.fetched
    kind = "bare repository" if args.bare else "repository"
    session.note(
        f"Cloned into the {kind} {done.folder}: {count(came.versions, 'version')}, "
        f"{size(came.bytes)}"
    )
    if done.head is None:
        hint = "" if not came.updates else "; 'mvc switch NAME' goes to one of its branches"
        session.warn(f"{done.branch} has no version yet: no files were written{hint}")
        return
    at = "HEAD detached" if done.branch is None else f"On branch {printable(done.branch)}"
    session.note(f"{at}, at {done.head.short}")
    if done.restored is not None:
        tell(session, done.restored)
    elif not args.bare:
        session.note(
            f"the state of {done.head.short} did not come along: no files were written; "
            f"'mvc fetch origin {done.head.short}' brings it, 'mvc checkout HEAD' writes it"
        )
