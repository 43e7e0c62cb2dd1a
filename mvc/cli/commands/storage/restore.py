"""``mvc restore``.

BACKUP is a folder that 'mvc backup' wrote, or another copy of a .mvc. DIR (default: this folder)
must not have a repository yet. Every byte is read back and checked. To continue an interrupted
restore, repeat the command. To write the files of a version, use 'mvc checkout'.
"""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from mvc.api import Repository, restore
from mvc.cli.verb import CommandOptions, Session, argument, verb
from mvc.errors import NotARepository
from mvc.server.repositories import names_in
from mvc.text import count, printable, size


class _RestoreOptions(CommandOptions, frozen=True, kw_only=True):
    backup: Path = argument("BACKUP")
    folder: Path = argument("[DIR]", default=".")


@verb("mvc restore /backup/models", _RestoreOptions)
def command(session: Session, args: _RestoreOptions) -> None:
    with session.progress("copying") as progress:
        try:
            done = restore(args.backup, args.folder, progress=progress)
        except NotARepository as error:
            hint = "name a backup; 'mvc checkout HEAD PATH' restores a file from HEAD"
            if below := next(names_in(session.fs, args.backup), None):
                one = printable(quote(str(args.backup / below)))
                hint = f"restore each repository below it, for example: mvc restore {one} DIR"
            raise NotARepository(error.message, hint=hint) from error
    if not session.answered("mvc.restore/1", done):
        with Repository.open(done.folder, discover=False) as restored:
            has_files = not restored.config.get("core.bare") and restored.head(if_known=True).commit
        step = "checkout HEAD -f" if has_files else "log --all"
        folder = quote(str(done.folder))
        then = f"; next: {printable(f'mvc -C {folder} {step}')}" if done.versions else ""
        session.note(
            f"{done.folder} has {count(done.versions, 'version')}, "
            f"{size(done.bytes)}, all checked{then}"
        )
