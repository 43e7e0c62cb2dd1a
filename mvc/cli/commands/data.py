"""``mvc data``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mvc.cli.completing import complete_files
from mvc.cli.payload import fields
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.cli.tables import Column, show
from mvc.cli.text import size
from mvc.model.names import printable

if TYPE_CHECKING:
    from mvc.provenance.dataset import DataSet

_COLUMNS = (
    Column("data set"),
    Column("version"),
    Column("files", right=True),
    Column("size", right=True),
    Column("where", give="end"),
)


@verb("data", "mvc data add data/digits")
@click.argument(
    "words", metavar="[list | add SOURCE | show NAME]", nargs=-1, shell_complete=complete_files
)
@click.option("--name", metavar="NAME", help="With add: the data set, if not named as SOURCE is.")
@click.option("--reference", is_flag=True, help="With add: keep place and hashes, not the files.")
@click.option("-m", "--message", metavar="MSG", default="", help="With add: what changed.")
def command(
    session: Session, words: tuple[str, ...], name: str | None, reference: bool, message: str
) -> None:
    """List data sets, store one, or show its files.

    A data set is stored once and kept as the tag data/NAME; files that did not change are not
    stored again. SOURCE is a file or a folder; with --reference also a URL.
    """
    action, *given = words or ("list",)
    wanted = {"list": 0, "add": 1, "show": 1}.get(action)
    if wanted is None or len(given) != wanted:
        raise click.UsageError("say list, add SOURCE or show NAME")
    if action != "add" and (name or reference or message):
        raise click.UsageError("--name, --reference and -m are for add")
    repository, out = session.repository, session.out
    if action == "list":
        found = repository.recipes.data_sets()
    elif action == "show":
        found = [repository.recipes.data_set(given[0])]
    else:
        with session.progress("storing") as progress:
            made = repository.recipes.add_data(
                given[0], name=name, reference=reference, message=message, progress=progress
            )
        found = [made]
    if session.as_json:
        out.json("mvc.data/1", {"data_sets": [_json(each) for each in found]})
        return
    if action == "add":
        out.note(f"Data set {found[0].name} is at {found[0].version.short}")
    elif action == "show":
        for file in found[0].files:
            out.line(printable(file))
    elif found:
        rows = [
            (d.name, d.version.short, f"{len(d.files):,}", size(d.nbytes), _where(d)) for d in found
        ]
        show(out, _COLUMNS, rows)


def _where(found: DataSet) -> str:
    return "stored" if found.source is None else printable(found.source)


def _json(found: DataSet) -> dict[str, Any]:
    return fields(found, "name", "version", "files", "nbytes", "source")
