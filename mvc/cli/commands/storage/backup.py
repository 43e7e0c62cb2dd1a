"""``mvc backup``.

Other processes may commit meanwhile. All copied bytes are read back and checked. To continue an
interrupted backup, repeat the command. 'mvc restore' creates a repository from the copy. In the
folder that 'mvc serve' serves, the command copies all repositories of the folder, and the tokens.
"""

from __future__ import annotations

from pathlib import Path

from mvc.api import Repository
from mvc.cli.session import load
from mvc.cli.verb import CommandOptions, Session, argument, verb
from mvc.errors import WrongUsage
from mvc.server.repositories import names_in
from mvc.server.tokens import FILE, LARGEST
from mvc.text import count, size


class _BackupOptions(CommandOptions, frozen=True, kw_only=True):
    folder: Path = argument("DIR")


@verb("mvc backup /backup/models", _BackupOptions)
def command(session: Session, args: _BackupOptions) -> None:
    fs = session.fs
    if fs.stat(Path(FILE)) is None:
        _back_up(session, args.folder)
        return
    if fs.realpath(args.folder).is_relative_to(fs.realpath(Path())):
        raise WrongUsage(
            f"{args.folder} is inside the served folder",
            hint="choose a folder outside the served folder",
        )
    for name in names_in(fs, Path(), limit=float("inf")):
        with Repository.open(name, discover=False, config=load) as one, session.working_on(one):
            _back_up(session, args.folder / name, one_line=True)
    fs.write_atomic(args.folder / FILE, fs.read_bytes(Path(FILE), LARGEST), mode=0o600)
    if not session.as_json:
        session.note(f"{args.folder / FILE} contains the tokens")


def _back_up(session: Session, folder: Path, *, one_line: bool = False) -> None:
    done = session.run("copying", session.repo.storage.backup, folder)
    if not session.answered("mvc.backup/1", done, one_line=one_line):
        session.note(
            f"{folder} has {count(done.versions, 'version')}, "
            f"{size(done.bytes)}; {size(done.copied)} were copied and checked"
        )
