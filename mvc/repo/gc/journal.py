"""What the journal no longer has to say: commits that nothing leads to, operations long past.

Operations within the grace stay word for word. Of older ones stay: versions that are
reachable, every deployment, retraction and corrected predecessor, what was forgotten, each
ref's present value, and the moves of branches between versions that are still there. An
operation whose versions are all there keeps all of its moves, and its undo with them; of
others only values are left, without those before: so none can be undone in part, or twice.
"""

from __future__ import annotations

from dataclasses import replace

from mvc.ids import CommitId
from mvc.repo.lookup.refs import BRANCH
from mvc.repo.maintenance.inventory import Inventory
from mvc.repo.maintenance.reachable import Reach, names_of
from mvc.store.journal.entries import Entry, RefChange

__all__ = ["shortened"]


def shortened(
    found: Inventory, reach: Reach, cutoff_ns: int
) -> tuple[dict[int, Entry | None], int]:
    """By an entry's place in the inventory, what it becomes; None where nothing is left of it.

    Entries that stay as they are, are not named. Regions are not looked at. Also the bytes
    that it saves.
    """
    newest: dict[str, int] = {}
    for home, recorded in enumerate(found.entries):
        newest.update((change.name, home) for change in recorded.entry.refs)
    lists = _lists_of_removed(found, cutoff_ns)
    edits: dict[int, Entry | None] = {}
    moving: set[int] = set()
    saved = 0
    for home, recorded in enumerate(found.entries):
        entry = recorded.entry
        if home == 0 or entry.time_ns >= cutoff_ns:
            continue
        commits = tuple(commit for commit in entry.commits if commit.id in reach.commits)
        refs = tuple(
            change
            for change in entry.refs
            if newest[change.name] == home or (commits and _still(change, reach))
        )
        whole = (refs or entry.undoes in moving) and names_of(entry) <= reach.commits.keys()
        if whole:
            moving.add(recorded.sequence)
            refs = entry.refs
        made = replace(
            entry,
            commits=commits,
            refs=refs if whole else tuple(replace(c, old=c.new) for c in refs),
            removed=entry.removed if home in lists else None,
            marks=entry.marks if commits else (),
            forgotten=tuple(each for each in entry.forgotten if each.commit in reach.commits),
            undoes=entry.undoes if whole else None,
        )
        empty = not (
            made.commits
            or made.refs
            or made.deployments
            or made.retractions
            or made.relinks
            or made.forgotten
        )
        if empty and made.removed is None:
            edits[home] = None
            saved += recorded.after.offset - recorded.offset
        elif made != entry:
            edits[home] = made
            saved += 2 * (len(entry.encoded) - len(made.encoded))
    return edits, saved


def _lists_of_removed(found: Inventory, cutoff_ns: int) -> set[int]:
    """Entries with the present list of removed paths, and with those that an undo leads back to."""
    before: int | None = None
    kept = set()
    for home, recorded in enumerate(found.entries):
        if recorded.entry.removed is None:
            continue
        if before is not None and recorded.entry.time_ns >= cutoff_ns:
            kept.add(before)
        before = home
    return kept if before is None else kept | {before}


def _still(change: RefChange, reach: Reach) -> bool:
    """Whether a branch's move is still worth knowing: both its versions are there."""
    values = [v for v in (change.old, change.new) if isinstance(v, CommitId)]
    return change.name.startswith(BRANCH) and all(value in reach.commits for value in values)
