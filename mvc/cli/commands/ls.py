"""``mvc ls``."""

from __future__ import annotations

import click

from mvc.cli.completing import complete_tracked
from mvc.cli.listing import chosen, entry_json, file_line, tensor_table
from mvc.cli.options import revision
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.model.names import printable


@verb("ls", "mvc ls HEAD~1")
@revision("REV", default="HEAD")
@click.argument("paths", metavar="[PATH]...", nargs=-1, shell_complete=complete_tracked)
@click.option("--name-only", is_flag=True, help="Only the paths, one a line.")
def command(session: Session, rev: str, paths: tuple[str, ...], name_only: bool) -> None:
    """List the files and tensors of a version.

    With -v the ids are shown in full.
    """
    out = session.out
    commit_id = session.repository.find(rev)
    entries = chosen(session.repository.manifest(commit_id), session.names(paths))
    if session.as_json:
        out.json("mvc.ls/1", {"commit": commit_id, "files": [entry_json(e) for e in entries]})
        return
    for n, entry in enumerate(entries):
        if name_only:
            out.line(printable(entry.path))
            continue
        if n:
            out.line()
        out.line(file_line(out, entry))
        if entry.tensors:
            tensor_table(out, entry.tensors, full=session.verbose)
