"""``mvc fetch``.

Branches of REMOTE are then known as REMOTE/NAME; your own branches and files stay as they are.
Without REMOTE it is origin, or the only remote. With REVs only their states come, which are here
without them.
"""

from __future__ import annotations

from mvc.api import LogOptions
from mvc.cli.commits import tell_absent
from mvc.cli.transfers import tell_of_fetch
from mvc.cli.verb import CommandOptions, Session, argument, flag, option, verb


class _FetchOptions(CommandOptions, frozen=True, kw_only=True):
    remote: str | None = argument("[REMOTE]")
    versions: tuple[str, ...] = argument("[REV]...")
    prune: bool = flag("Forget branches that are gone there.", "-p")
    states: str | None = option("STATES", "Whose states come along: all, none, live or last:N.")
    nodes: bool = flag("Bring what nodes report there as well.")


@verb("mvc fetch origin", _FetchOptions)
def command(session: Session, args: _FetchOptions) -> None:
    remote = session.repo.remotes.find(args.remote)
    done = session.run(
        "receiving",
        session.repo.fetch,
        args.remote,
        args.versions,
        states=args.states,
        prune=args.prune,
        nodes=args.nodes,
    )
    if session.answered("mvc.fetch/1", done):
        return
    tell_of_fetch(session, done, remote.url)
    if args.states == "all":
        tell_absent(
            session, sum(each.absent for each in session.repo.log("HEAD", LogOptions(every=True)))
        )
