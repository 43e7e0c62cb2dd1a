"""``mvc rm``."""

from __future__ import annotations

import click

from mvc.cli.options import json_option
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.model.names import printable


@click.command(
    "rm", cls=Verb, example='mvc rm old.safetensors && mvc commit -m "drop the old head"'
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--cached", is_flag=True, help="Keep the files on disk.")
@click.option("-f", "--force", is_flag=True, help="Delete files that hold uncommitted work.")
@json_option
@click.pass_obj
def command(
    session: Session, paths: tuple[str, ...], cached: bool, force: bool, as_json: bool
) -> None:
    """Take files out of the next commit.

    They are deleted from the disk; every version that has them keeps them.
    """
    gone = session.repository.remove(session.names(paths), cached=cached, force=force)
    if as_json:
        session.out.json("mvc.rm/1", {"removed": list(gone), "kept_on_disk": cached})
        return
    for path in gone:
        session.out.note(f"rm {printable(path)}")
