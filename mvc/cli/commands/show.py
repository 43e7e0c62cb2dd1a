"""``mvc show``."""

from __future__ import annotations

from mvc.cli.commits import as_json as commit_json
from mvc.cli.commits import details, forgotten_on, heading, live_now
from mvc.cli.listing import entry_json, file_line, tensor_table
from mvc.cli.options import revision
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.cli.text import count
from mvc.errors import DamagedData
from mvc.model.manifest import FileEntry, Manifest
from mvc.model.names import printable
from mvc.repo.history.log import LogEntry
from mvc.repo.lookup import manifests
from mvc.repo.lookup.refs import head_if_known

_FIRST = 20


@verb("show", "mvc show main~2")
@revision("REV", default="HEAD")
def command(session: Session, rev: str) -> None:
    """Show one commit and what it changed.

    The tensors listed are those that differ from the first parent; -v lists all.
    """
    context, out = session.context, session.out
    incomplete: list[DamagedData] = []
    found = session.repository.log(rev, limit=1, reset_points=True, incomplete=incomplete)
    entry = found[0]
    manifest = manifests.if_kept(context, entry.id) or manifests.EMPTY
    parent = _parent(session, entry, incomplete)
    removed = sorted(parent.by_path.keys() - manifest.by_path) if parent is not None else None
    if session.as_json:
        payload = commit_json(entry) | {"reset_point": entry.reset_point}
        payload["files"] = [
            entry_json(e) | {"changed": None if parent is None else _marks(parent, e)}
            for e in manifest.entries
        ]
        payload["removed"] = removed
        if incomplete:
            payload["incomplete"] = True
        out.json("mvc.show/1", payload)
        session.tell_incomplete(incomplete)
        return
    live = live_now(session)
    out.line(heading(out, entry, head_if_known(context).branch, live, full=True))
    for line in details(entry, session.now_ns(), full=session.verbose):
        out.line(line)
    if entry.forgotten_ns is None:
        if parent is None:
            out.note(f"what it changed is not known: {_why_unknown(session, entry, incomplete)}")
        for file in manifest.entries:
            out.line()
            _print_file(session, parent, file)
        for path in removed or ():
            out.line()
            out.line(f"{out.paint(printable(path), 'removed')}  removed")
    session.tell_incomplete(incomplete)


def _parent(session: Session, entry: LogEntry, incomplete: list[DamagedData]) -> Manifest | None:
    """The first parent's manifest; None if one of the two states is forgotten or lost."""
    if entry.forgotten_ns is not None:
        return None
    if not entry.commit.parents:
        return manifests.EMPTY
    try:
        return manifests.if_kept(session.context, entry.commit.parents[0])
    except DamagedData as error:
        incomplete.append(error)
        return None


def _why_unknown(session: Session, entry: LogEntry, incomplete: list[DamagedData]) -> str:
    if incomplete:
        return "its parent cannot be read"
    when = forgotten_on(manifests.forgotten_ns(session.context, entry.commit.parents[0]))
    return f"the state of its parent was {when}"


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
    out, verbose = session.out, session.verbose
    marks = {} if parent is None else _marks(parent, entry)
    changed = "" if parent is None else f", {_what_changed(parent, entry, len(marks))}"
    out.line(file_line(out, entry) + changed)
    tensors = [t for t in entry.tensors if verbose or t.key in marks]
    shown = tensors if verbose else tensors[:_FIRST]
    if not verbose:  # all of them changed: only what is new needs a word
        new = parent is not None and entry.path in parent.by_path
        marks = {key: word for key, word in marks.items() if word == "added" and new}
    if shown:
        tensor_table(out, shown, marks, full=session.verbosity > 1)
    out.left_out(len(tensors) - len(shown))


def _what_changed(parent: Manifest, entry: FileEntry, changed: int) -> str:
    old = parent.by_path.get(entry.path)
    if old is None:
        return "new"
    if old.content_id == entry.content_id:
        return "unchanged"
    if not entry.tensors:
        return "changed"
    gone = len({t.key for t in old.tensors} - {t.key for t in entry.tensors})
    return f"{changed:,} changed" + (f", {count(gone, 'tensor')} removed" if gone else "")
