"""``mvc show``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mvc.cli.commits import Live, details, forgotten_on, heading
from mvc.cli.commits import as_json as commit_json
from mvc.cli.listing import entry_json, file_line, tensor_table
from mvc.cli.options import json_option, revision
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.cli.text import count
from mvc.errors import DamagedData
from mvc.model.names import printable
from mvc.repo.history import log as history_log
from mvc.repo.lookup import manifests
from mvc.repo.lookup import refs as pointers

if TYPE_CHECKING:
    from mvc.ids import CommitId
    from mvc.model.manifest import FileEntry, Manifest
    from mvc.repo.context import Context
    from mvc.repo.history.log import LogEntry

_FIRST = 20


@click.command("show", cls=Verb, example="mvc show main~2")
@revision("REV", default="HEAD")
@json_option
@click.pass_obj
def command(session: Session, rev: str, as_json: bool) -> None:
    """Show one commit and what it changed.

    The tensors listed are those that differ from the first parent; -v lists all.
    """
    context, out = session.context, session.out
    incomplete: list[DamagedData] = []
    found = history_log.log(context, rev, limit=1, reset_points=True, incomplete=incomplete)
    entry = next(found)
    manifest = manifests.if_kept(context, entry.id) or manifests.EMPTY
    before = entry.commit.parents[0] if entry.commit.parents else None
    parent = _parent(context, entry, before, incomplete)
    if as_json:
        payload = commit_json(
            entry.id, entry.commit, entry.refs, entry.deployments, entry.forgotten_ns
        )
        payload["reset_point"] = entry.reset_point
        payload["files"] = [
            entry_json(e) | {"changed": None if parent is None else _marks(parent, e)}
            for e in manifest.entries
        ]
        payload["removed"] = None if parent is None else _removed(parent, manifest)
        if incomplete:
            payload["incomplete"] = True
        out.json("mvc.show/1", payload)
        session.tell_incomplete(incomplete)
        return
    branch = pointers.head_if_known(context).branch
    out.line(heading(out, entry, branch, Live(context), full=True))
    for line in details(entry, session.now_ns(), full=session.verbose):
        out.line(line)
    if entry.forgotten_ns is None:
        _print_files(session, manifest, parent, before, lost=bool(incomplete))
    session.tell_incomplete(incomplete)


def _print_files(
    session: Session,
    manifest: Manifest,
    parent: Manifest | None,
    before: CommitId | None,
    *,
    lost: bool,
) -> None:
    context, out = session.context, session.out
    if parent is None and lost:
        out.note("what it changed is not known: its parent cannot be read")
    elif parent is None and before is not None:
        when = forgotten_on(manifests.forgotten_ns(context, before) or 0)
        out.note(f"what it changed is not known: the state of its parent was {when}")
    for file in manifest.entries:
        out.line()
        _print_file(session, parent, file)
    for path in _removed(parent, manifest) if parent is not None else ():
        out.line()
        out.line(f"{out.paint(printable(path), 'removed')}  removed")


def _parent(
    context: Context, entry: LogEntry, before: CommitId | None, incomplete: list[DamagedData]
) -> Manifest | None:
    """What a version is compared with; None where one of the two was forgotten or is lost."""
    if entry.forgotten_ns is not None:
        return None
    try:
        return manifests.EMPTY if before is None else manifests.if_kept(context, before)
    except DamagedData as error:
        incomplete.append(error)
        return None


def _removed(parent: Manifest, manifest: Manifest) -> list[str]:
    return sorted(set(parent.by_path) - set(manifest.by_path))


def _marks(parent: Manifest, entry: FileEntry) -> dict[str, str]:
    """What happened to each tensor that is not as in the parent, by key."""
    old = parent.by_path.get(entry.path)
    known = {t.key: t.id for t in old.tensors} if old else {}
    return {
        t.key: "changed" if t.key in known else "added"
        for t in entry.tensors
        if known.get(t.key) != t.id
    }


def _print_file(session: Session, parent: Manifest | None, entry: FileEntry) -> None:
    out = session.out
    if parent is None:
        out.line(file_line(out, entry))
        if session.verbose:
            tensor_table(out, entry.tensors, {}, full=session.verbosity > 1)
        return
    marks = _marks(parent, entry)
    out.line(f"{file_line(out, entry)}, {_what_changed(parent, entry, len(marks))}")
    listed = [t for t in entry.tensors if session.verbose or t.key in marks]
    shown = listed if session.verbose else listed[:_FIRST]
    if session.verbose:
        words = marks
    else:  # all of them changed: only what is new needs a word
        words = {k: v for k, v in marks.items() if v == "added" and entry.path in parent.by_path}
    if shown:
        tensor_table(out, shown, words, full=session.verbosity > 1)
    if len(shown) < len(listed):
        out.line(f"  ... and {len(listed) - len(shown):,} more (-v lists all)")


def _what_changed(parent: Manifest, entry: FileEntry, changed: int) -> str:
    old = parent.by_path.get(entry.path)
    if old is None:
        return "new"
    if old.content_id == entry.content_id:
        return "unchanged"
    if not entry.tensors:
        return "changed"
    gone = len({t.key for t in old.tensors} - {t.key for t in entry.tensors})
    words = f"{changed:,} changed"
    if gone:
        words += f", {count(gone, 'tensor')} removed"
    return words
