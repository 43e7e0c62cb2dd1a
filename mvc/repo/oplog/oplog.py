"""Lists the operations (such as commits and deployments) of a repository, newest first.

A repository appends an entry to its journal for each operation. The number of an operation is the
sequence number of the entry, and is never reused. gc may remove old entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from msgspec import Struct

from mvc.errors import DamagedData, UnknownOperation, WrongUsage
from mvc.ids import CommitId
from mvc.names import REMOTE
from mvc.repo.lookup.refs import BRANCH, TAG
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store


class Operation(Struct, frozen=True):
    """One operation. ``undone_by``: the number of the undo that reverted the operation.

    ``undone_by`` is None if the operation was not undone, or if the undo was undone itself.
    """

    number: int
    entry: Entry
    undone_by: int | None = None

    @property
    def commits(self) -> list[CommitId]:
        """The versions that the operation recorded."""
        return [commit.id for commit in self.entry.commits]

    @property
    def shortened(self) -> bool:
        """Whether ``gc`` removed the old values of refs, so that the operation cannot be undone."""
        return bool(self.entry.refs) and all(change.old == change.new for change in self.entry.refs)

    @property
    def author(self) -> str:
        """The author; empty if no author was recorded."""
        return self.entry.done_by

    @property
    def reason(self) -> str:
        """The reason; empty if no reason was recorded."""
        return self.entry.why


def oplog(store: Store, limit: int | None = None) -> Iterator[Operation]:
    """At most ``limit`` operations, newest first, read lazily.

    The call itself raises WrongUsage for a negative limit.
    """
    if limit is not None and limit < 0:
        raise WrongUsage(f"a limit must be 0 or more operations, not {limit}")
    snapshot = store.fresh()
    return islice((_operation(snapshot, recorded) for recorded in snapshot.newest_first()), limit)


def find(snapshot: Snapshot, number: int) -> Recorded:
    """The operation with this number. Raises UnknownOperation."""
    recorded = snapshot.by_sequence(number) if 0 <= number < snapshot.position.sequence else None
    if recorded is None:
        raise UnknownOperation(
            f"there is no operation {number}",
            hint="'mvc undo --list' lists the operations",
        )
    return recorded


def _operation(snapshot: Snapshot, recorded: Recorded) -> Operation:
    return Operation(
        recorded.sequence,
        recorded.entry,
        snapshot.retry_on_rewrite(lambda: undone_by(snapshot, recorded.sequence)),
    )


def undone_by(snapshot: Snapshot, number: int) -> int | None:
    """The number of the undo that reverted an operation. None if the operation is in effect."""
    first, at, steps = None, number, 0
    while (undo := snapshot.newest_undo(at)) is not None:
        undoes(undo)
        first, at, steps = first or undo.sequence, undo.sequence, steps + 1
    return first if steps % 2 else None


def undoes(recorded: Recorded) -> int | None:
    """The number of the operation that ``recorded`` undoes. None if ``recorded`` is no undo.

    Raises DamagedData if ``recorded`` undoes itself or a later operation.
    """
    number = recorded.entry.undoes
    if number is not None and number >= recorded.sequence:
        raise DamagedData(
            f"operation {recorded.sequence} undoes operation {number}, which is not an earlier one",
            hint="run 'mvc fsck'",
        )
    return number


def label(ref: str) -> str:
    """A ref's name for people: ``main``, ``tag v1``, ``HEAD``, ``origin/main``."""
    if ref.startswith(TAG):
        return f"tag {ref.removeprefix(TAG)}"
    return ref.removeprefix(BRANCH).removeprefix(REMOTE)
