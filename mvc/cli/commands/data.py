"""``mvc data``.

A data set is stored once and kept as the tag data/NAME; files that did not change are not
stored again. SOURCE is a file or a folder; with --reference also a URL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mvc.cli.completing import complete_files
from mvc.cli.options import CommandOptions, argument, flag, option
from mvc.cli.payload import fields
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.cli.tables import columns, numbers, show
from mvc.cli.text import size
from mvc.model.names import printable

if TYPE_CHECKING:
    from mvc.recipes.dataset import DataSet

_COLUMNS = [*columns("data set, version"), *numbers("files, size"), *columns("where")]


class _DataOptions(CommandOptions, frozen=True, kw_only=True):
    words: tuple[str, ...] = argument(
        "[list | add SOURCE | show NAME]", shell_complete=complete_files
    )
    name: str | None = option("NAME", "With add: the data set, if not named as SOURCE is.")
    reference: bool = flag("With add: keep place and hashes, not the files.")
    message: str = option("MSG", "With add: what changed.", "-m", default="")


@verb("mvc data add data/digits", _DataOptions)
def command(session: Session, args: _DataOptions) -> None:
    action, *given = args.words or ("list",)
    wanted = {"list": 0, "add": 1, "show": 1}.get(action)
    if wanted is None or len(given) != wanted:
        raise click.UsageError("say list, add SOURCE or show NAME")
    if action != "add" and (args.name or args.reference or args.message):
        raise click.UsageError("--name, --reference and -m are for add")
    repository, out = session.repository, session.out
    if action == "list":
        found = repository.recipes.data_sets()
    elif action == "show":
        found = [repository.recipes.data_set(given[0])]
    else:
        with session.progress("storing") as progress:
            settings = fields(args, "name reference message")
            found = [repository.recipes.add_data(given[0], progress=progress, **settings)]
    if session.as_json:
        out.json("mvc.data/1", {"data_sets": found})
        return
    if action == "add":
        out.note(f"Data set {found[0].name} is at {found[0].version.short}")
    elif action == "show":
        for file in found[0].files:
            out.line(printable(file))
    elif found:
        show(out, _COLUMNS, map(_row, found))


def _row(found: DataSet) -> tuple[str, ...]:
    where = "stored" if found.source is None else printable(found.source)
    return found.name, found.version.short, f"{len(found.files):,}", size(found.nbytes), where
