"""``mvc ls`` lists the files and tensors of a version, or data sets.

REV is HEAD by default. -v prints full ids. A data set NAME is a version with the tag data/NAME.
"""

from __future__ import annotations

import mvc.recipes as recipes
from mvc.cli.listing import facts_of, file_line, tensor_table, why_opaque
from mvc.cli.verb import CommandOptions, PathText, Session, argument, fields, option, verb
from mvc.recipes.dataset import DataSet
from mvc.text import printable, size


class _LsOptions(CommandOptions, frozen=True, kw_only=True):
    rev: str = argument("[REV]", default="HEAD")
    paths: tuple[PathText, ...] = argument("[PATH]...")
    data: str | None = option(
        "[NAME]", "List the data sets, or the files of one.",
        is_flag=False, flag_value="", completes="DATA", allows="",
    )  # fmt: skip


@verb("mvc ls HEAD~1", _LsOptions)
def command(session: Session, args: _LsOptions) -> None:
    if args.data is not None:
        _print_data(session, args.data)
        return
    commit_id = session.repo.find(args.rev)
    entries = session.repo.manifest(commit_id).under(session.names(args.paths))
    reasons = [(why_opaque(session, commit_id, entry) or (None,))[0] for entry in entries]
    rows = list(zip(entries, reasons, strict=True))
    files = [fields(entry) | {"why_opaque": why} for entry, why in rows]
    if session.answered("mvc.ls/1", {"commit": commit_id, "files": files}):
        return
    for n, (entry, why) in enumerate(rows):
        if n:
            session.line()
        session.line(file_line(session, entry) + (f": {printable(why)}" if why else ""))
        if entry.tensors:
            _, types = facts_of(session, commit_id, entry)
            tensor_table(session, entry.tensors, types=types, full=session.verbose)


def _print_data(session: Session, name: str) -> None:
    data_sets = [recipes.data_set(session.repo, name)] if name else recipes.data_sets(session.repo)
    if session.answered("mvc.ls.data/1", {"data_sets": data_sets}):
        return
    if name:
        session.lines(printable(file) for file in data_sets[0].files)
    else:
        session.table("data set, version, files>, size>, where", map(_data_row, data_sets))


def _data_row(data: DataSet) -> tuple[str, ...]:
    where = "stored" if data.source is None else data.source
    return data.name, data.version.short, f"{len(data.files):,}", size(data.nbytes), where
