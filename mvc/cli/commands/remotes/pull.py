"""``mvc pull``.

If the current branch and the branch of the same name at REMOTE have diverged, or if the pull would
overwrite uncommitted work, mvc changes no branch or file.
"""

from __future__ import annotations

from mvc.cli.restored import print_restored
from mvc.cli.transfers import print_fetch
from mvc.cli.verb import CommandOptions, Session, argument, verb
from mvc.text import count, printable


class _PullOptions(CommandOptions, frozen=True, kw_only=True):
    remote: str | None = argument("[REMOTE]")


@verb("mvc pull", _PullOptions)
def command(session: Session, args: _PullOptions) -> None:
    remote = session.repo.remotes.find(args.remote)
    done = session.run("receiving", session.repo.pull, args.remote)
    if session.answered("mvc.pull/1", done):
        return
    if done.fetched.is_news:
        print_fetch(session, done.fetched, remote.url)
    if done.restored is None:
        branch, name = printable(done.branch), printable(remote.name)
        more = f": {count(done.ahead, 'version')} to push" if done.ahead else ""
        session.note(f"{branch} is up to date with {name}/{branch}{more}")
        return
    session.note(
        f"Fast-forward {done.branch}: {done.old.short if done.old else 'nothing'}..{done.new.short}"
    )
    print_restored(session, done.restored)
