"""``mvc rm``.

They are deleted from the disk; every version that has them keeps them.
"""

from __future__ import annotations

from mvc.cli.options import CommandOptions, argument, flag
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.names import printable


class _RmOptions(CommandOptions, frozen=True, kw_only=True):
    paths: tuple[str, ...] = argument("PATH...", required=True)
    cached: bool = flag("Keep the files on disk.")
    force: bool = flag("Delete files that hold uncommitted work.", "-f")


@verb('mvc rm old.safetensors && mvc commit -m "drop the old head"', _RmOptions)
def command(session: Session, args: _RmOptions) -> None:
    gone = session.repository.remove(
        session.names(args.paths), cached=args.cached, force=args.force
    )
    if session.as_json:
        session.out.json("mvc.rm/1", {"removed": gone, "kept_on_disk": args.cached})
        return
    for path in gone:
        session.out.note(f"rm {printable(path)}")
