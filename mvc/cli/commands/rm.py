"""``mvc rm``."""

from __future__ import annotations

import click

from mvc.cli.completing import complete_tracked
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.model.names import printable


@verb("rm", 'mvc rm old.safetensors && mvc commit -m "drop the old head"')
@click.argument(
    "paths", metavar="PATH...", nargs=-1, required=True, shell_complete=complete_tracked
)
@click.option("--cached", is_flag=True, help="Keep the files on disk.")
@click.option("-f", "--force", is_flag=True, help="Delete files that hold uncommitted work.")
def command(session: Session, paths: tuple[str, ...], cached: bool, force: bool) -> None:
    """Take files out of the next commit.

    They are deleted from the disk; every version that has them keeps them.
    """
    gone = session.repository.remove(session.names(paths), cached=cached, force=force)
    if session.as_json:
        session.out.json("mvc.rm/1", {"removed": gone, "kept_on_disk": cached})
        return
    for path in gone:
        session.out.note(f"rm {printable(path)}")
