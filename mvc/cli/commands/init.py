"""``mvc init``."""

from __future__ import annotations

import click

from mvc.cli.completing import complete_folders
from mvc.cli.program import verb
from mvc.cli.session import Session, load
from mvc.model.names import printable


@verb("init", "mvc init models")
@click.argument("folder", metavar="[DIR]", default=".", shell_complete=complete_folders)
@click.option("-b", "--branch", metavar="NAME", help="Name of the first branch.")
def command(session: Session, folder: str, branch: str | None) -> None:
    """Make an empty repository.

    It lives in the folder .mvc inside DIR, which is made if it is not there.
    """
    from mvc.api.repository import Repository

    with Repository.init(folder, branch=branch, config=load) as repository:
        where = str(repository.root / ".mvc")
        first, networked = repository.head().branch, repository.on_network
    if networked:
        session.out.warn(
            f"{printable(where)} is on a network file system: locks and durable writes hold "
            "only as far as it keeps them (docs/limits.md)"
        )
    if session.as_json:
        session.out.json("mvc.init/1", {"path": where, "branch": first})
    else:
        session.out.note(f"Initialized empty mvc repository in {printable(where)}")
