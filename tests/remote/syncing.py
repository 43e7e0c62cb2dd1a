"""Takes what one journal says into another one, as a transfer does, without records."""

from __future__ import annotations

import shutil
from pathlib import Path

from mvc.ids import CommitId
from mvc.remote.statements import admit, statements_to_send
from mvc.repo.handle import Handle
from mvc.store.journal.entries import Entry
from mvc.testing import FixedClock, UnsyncedFS
from tests.repo.working import open_handle


def duplicate(context: Handle, root: Path, time_ns: int) -> Handle:
    """A copy of a repository's folder, with a clock of its own."""
    shutil.copytree(context.store.root, root)
    return open_handle(root, FixedClock(time_ns), UnsyncedFS())


def sync(source: Handle, to: Handle) -> list[CommitId]:
    """Takes over what is new; an entry for each. Returns tombstones that something stands on."""
    snapshot, store = source.store.fresh(), to.store
    to.store.fresh()
    held = list[CommitId]()
    for recorded in list(snapshot.entries()):
        commits = tuple(c for c in recorded.entry.commits if not store.snapshot.has_commit(c.id))
        statements = statements_to_send(snapshot, recorded)

        def make(statements=statements, commits=commits) -> Entry:
            admitted = admit(to.store, statements, {commit.id for commit in commits})
            held.extend(admitted.retained)
            if not (commits or admitted.statements):
                raise _NothingNew
            return Entry(
                "fetch",
                store.now_ns(),
                commits=commits,
                statements=tuple(admitted.statements),
                states=tuple(admitted.states),
            )

        try:
            store.publish(make)
        except _NothingNew:
            continue
    return held


class _NothingNew(Exception):
    """All of it is here."""
