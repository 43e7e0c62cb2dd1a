"""Takes what one journal says into another one, as a transfer does, without records."""

from __future__ import annotations

import shutil
from pathlib import Path

from mvc.ids import CommitId
from mvc.remote.merging import Merger, TruthReader, hold
from mvc.repo.context import Context
from mvc.store.journal.entries import Entry
from mvc.testing import FixedClock, UnsyncedFS
from tests.repo.working import open_context


def duplicate(context: Context, root: Path, time_ns: int) -> Context:
    """A copy of a repository's folder, with a clock of its own."""
    shutil.copytree(context.root, root)
    return open_context(root, FixedClock(time_ns), UnsyncedFS())


def sync(source: Context, to: Context) -> list[CommitId]:
    """Takes over what is new; an entry for each. Returns the tombstones that were held back."""
    snapshot, store = source.fresh(), to.store
    to.fresh()
    reader, merger, held = TruthReader(snapshot), Merger(to), list[CommitId]()
    for recorded in list(snapshot.entries()):
        entry, truths = recorded.entry, reader.of(recorded)
        commits = tuple(c for c in entry.commits if not store.has_commit(c.id))
        if truths is not None:
            merger.prepare()

        def make(entry: Entry = entry, truths=truths, commits=commits) -> Entry:
            made = Entry(entry.operation, store.now_ns(), entry.note, commits=commits)
            if truths is not None:
                made, kept = merger.merge(truths, made, {commit.id for commit in commits})
                hold(to, truths, kept)
                held.extend(kept)
            if made.commits or made.origin_ns is not None:
                return made
            raise _NothingNew

        try:
            store.publish(make)
        except _NothingNew:
            continue
    return held


class _NothingNew(Exception):
    """All of it is here."""
