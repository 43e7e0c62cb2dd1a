"""``mvc show``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mvc.cli.commits import Live, details, heading
from mvc.cli.commits import as_json as commit_json
from mvc.cli.listing import entry_json, file_line, tensor_table
from mvc.cli.options import json_option, revision
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.cli.text import count
from mvc.model.names import printable
from mvc.repo import history, manifests, pointers

if TYPE_CHECKING:
    from mvc.model.manifest import FileEntry, Manifest

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
    entry = next(history.log(context, rev, limit=1, reset_points=True))
    manifest = manifests.of_commit(context, entry.id)
    parents = entry.commit.parents
    parent = manifests.of_commit(context, parents[0] if parents else None)
    if as_json:
        payload = commit_json(entry.id, entry.commit, entry.refs, entry.deployments)
        payload["reset_point"] = entry.reset_point
        payload["files"] = [
            entry_json(e) | {"changed": _marks(parent, e)} for e in manifest.entries
        ]
        payload["removed"] = _removed(parent, manifest)
        out.json("mvc.show/1", payload)
        return
    branch = pointers.head(context).branch
    out.line(heading(out, entry, branch, Live(context), full=True))
    for line in details(entry, session.now_ns(), full=session.verbose):
        out.line(line)
    for file in manifest.entries:
        out.line()
        _print_file(session, parent, file)
    for path in _removed(parent, manifest):
        out.line()
        out.line(f"{out.paint(printable(path), 'removed')}  removed")


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


def _print_file(session: Session, parent: Manifest, entry: FileEntry) -> None:
    out = session.out
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
