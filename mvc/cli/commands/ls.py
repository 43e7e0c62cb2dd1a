"""``mvc ls``."""

from __future__ import annotations

import click

from mvc.cli.listing import chosen, entry_json, file_line, tensor_table
from mvc.cli.options import json_option, revision
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.model.names import printable
from mvc.repo.lookup import manifests, revisions


@click.command("ls", cls=Verb, example="mvc ls HEAD~1")
@revision("REV", default="HEAD")
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option("--name-only", is_flag=True, help="Only the paths, one a line.")
@json_option
@click.pass_obj
def command(
    session: Session, rev: str, paths: tuple[str, ...], name_only: bool, as_json: bool
) -> None:
    """List the files and tensors of a version.

    With -v the ids are shown in full.
    """
    out = session.out
    commit_id = revisions.resolve(session.context, rev)
    manifest = manifests.of_commit(session.context, commit_id)
    entries = chosen(manifest, session.names(paths))
    if as_json:
        files = [entry_json(entry) for entry in entries]
        out.json("mvc.ls/1", {"commit": str(commit_id), "files": files})
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
