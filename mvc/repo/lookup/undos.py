"""Which operation takes another one back."""

from __future__ import annotations

from mvc.errors import DamagedData
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot


def undone_by(snapshot: Snapshot, number: int) -> int | None:
    """The number of the undo in force: the newest one, unless that is undone; else None."""
    first, at, steps = None, number, 0
    while (found := snapshot.newest_undo(at)) is not None:
        undoes(found)
        first, at, steps = first or found.sequence, found.sequence, steps + 1
    return first if steps % 2 else None


def undoes(recorded: Recorded) -> int | None:
    """The number of the operation that this one takes back; None if it is no undo.

    Raises DamagedData for one that is not earlier, so that a chain of undos always ends.
    """
    number = recorded.entry.undoes
    if number is not None and number >= recorded.sequence:
        raise DamagedData(
            f"operation {recorded.sequence} undoes operation {number}, which is not an earlier one",
            hint="run 'mvc fsck'",
        )
    return number
