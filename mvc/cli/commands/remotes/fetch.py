"""``mvc fetch``.

Branches of REMOTE are then known as REMOTE/NAME; your own branches and files stay as they are.
Without REMOTE it is origin, or the only remote. With REVs only their states come, which are here
without them.
"""

from __future__ import annotations

from mvc.api import LogOptions
from mvc.cli.transfers import tell_of_fetch, tell_of_states
from mvc.cli.verb import CommandOptions, Session, argument, flag, option, verb
from mvc.text import count


class _FetchOptions(CommandOptions, frozen=True, kw_only=True):
    remote: str | None = argument("[REMOTE]")
    versions: tuple[str, ...] = argument("[REV]...")
    prune: bool = flag("Forget branches that are gone there.", "-p")
    states: str | None = option("STATES", "Whose states come along: all, none or last:N.")
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
    if session.as_json:
        session.json("mvc.fetch/1", done)
    elif args.versions:
        tell_of_states(session, f"From {remote.url}", done)
    else:
        tell_of_fetch(session, done, remote.url)
        absent = args.states == "all" and sum(
            each.absent for each in session.repo.log("HEAD", LogOptions(every=True))
        )
        if absent:
            session.note(
                f"{count(absent, 'version')} that came before have no state here: "
                f"'mvc fetch {remote.name} REV...' brings the states of REVs"
            )
