"""``mvc ls``.

With -v the ids are shown in full.
"""

from __future__ import annotations

from mvc.cli.listing import chosen, entry_json, file_line, tensor_table
from mvc.cli.options import CommandOptions, argument, flag
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.model.names import printable


class _LsOptions(CommandOptions, frozen=True, kw_only=True):
    rev: str = argument("[REV]", default="HEAD")
    paths: tuple[str, ...] = argument("[PATH]...")
    name_only: bool = flag("Only the paths, one a line.")


@verb("mvc ls HEAD~1", _LsOptions)
def command(session: Session, args: _LsOptions) -> None:
    out = session.out
    commit_id = session.repository.find(args.rev)
    entries = chosen(session.repository.manifest(commit_id), session.names(args.paths))
    if session.as_json:
        out.json("mvc.ls/1", {"commit": commit_id, "files": [entry_json(e) for e in entries]})
        return
    for n, entry in enumerate(entries):
        if args.name_only:
            out.line(printable(entry.path))
            continue
        if n:
            out.line()
        out.line(file_line(out, entry))
        if entry.tensors:
            tensor_table(out, entry.tensors, full=session.verbose)
