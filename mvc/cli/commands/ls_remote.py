"""``mvc ls-remote``.

REMOTE is a name of 'mvc remote' or a URL; without one it is origin, or the only remote.
"""

from __future__ import annotations

from mvc.cli.options import CommandOptions, argument
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.cli.tables import columns
from mvc.errors import NotARepository
from mvc.names import printable


class _LsRemoteOptions(CommandOptions, frozen=True, kw_only=True):
    remote: str | None = argument("[REMOTE]")


@verb("mvc ls-remote ssh://gpu/srv/models", _LsRemoteOptions)
def command(session: Session, args: _LsRemoteOptions) -> None:
    from mvc.api.remotes import refs_of

    try:
        found = session.repository.remotes.show(args.remote)
    except NotARepository:
        if args.remote is None:
            raise
        found = refs_of(args.remote)
    if session.as_json:
        session.out.json("mvc.ls-remote/1", found)
        return
    names = {f"heads/{n}": c for n, c in found.branches.items()}
    names |= {f"tags/{n}": c for n, c in found.tags.items()}
    head = names.get(f"heads/{found.head}") if isinstance(found.head, str) else found.head
    listed = names if head is None else {"HEAD": head, **names}
    full = session.verbose
    rows = [(str(c) if full else c.short, printable(name)) for name, c in listed.items()]
    session.out.table(columns("version, ref"), rows)
    if not rows:
        session.out.note(f"{printable(found.url)} has no version yet")
