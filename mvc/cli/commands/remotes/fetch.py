"""``mvc fetch``.

A branch NAME of REMOTE becomes the tracking ref REMOTE/NAME. Your branches and files do not change.
The default REMOTE is origin, or the only remote. With REVs, mvc fetches only the absent states of
these versions.
"""

from __future__ import annotations

from mvc.api import LogOptions
from mvc.cli.commits import note_absent
from mvc.cli.transfers import print_fetch
from mvc.cli.verb import CommandOptions, Session, argument, flag, option, verb


class _FetchOptions(CommandOptions, frozen=True, kw_only=True):
    remote: str | None = argument("[REMOTE]")
    versions: tuple[str, ...] = argument("[REV]...")
    prune: bool = flag("Delete the tracking refs of branches that the remote deleted.", "-p")
    states: str | None = option("STATES", "The states to fetch: all, none, live or last:N.")
    nodes: bool = flag(
        "Fetch the reports of nodes, too: the version that each serving machine uses."
    )


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
    print_fetch(session, done, remote.url)
    if args.states == "all":
        note_absent(
            session, sum(entry.absent for entry in session.repo.log("HEAD", LogOptions(every=True)))
        )
