"""``mvc backup``.

Others may commit meanwhile. Every byte that is new is read back and checked before the copy counts;
what was interrupted goes on with the same command. 'mvc restore' makes a repository of the copy.
"""

from __future__ import annotations

from pathlib import Path

from mvc.cli.options import CommandOptions, argument
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.cli.text import count, size
from mvc.model.names import printable


class _BackupOptions(CommandOptions, frozen=True, kw_only=True):
    folder: Path = argument("DIR")


@verb("mvc backup /backup/models", _BackupOptions)
def command(session: Session, args: _BackupOptions) -> None:
    with session.progress("copying") as progress:
        done = session.repository.storage.backup(args.folder, progress=progress)
    if session.as_json:
        session.out.json("mvc.backup/1", done)
    else:
        session.out.note(
            f"{printable(str(args.folder))} holds {count(done.versions, 'version')}, "
            f"{size(done.bytes)}; {size(done.copied)} were copied and checked"
        )
