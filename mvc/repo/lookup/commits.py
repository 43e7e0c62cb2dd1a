"""Looks up commits by id and by the first digits of an id."""

from __future__ import annotations

from collections.abc import Callable

from mvc.errors import UnknownRevision
from mvc.ids import CommitId
from mvc.model.commit import Commit
from mvc.repo.context import Context
from mvc.store.index import keys
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot.view import View

__all__ = ["find", "get", "placed", "starting_with"]

_HEX_OF_KEY = 2 * keys.ID_BYTES


def get(context: Context, id_: CommitId) -> Commit:
    """The commit with this id. Raises UnknownRevision, DamagedData."""
    return placed(context.store.view, id_)[1]


def placed(view: View, id_: CommitId) -> tuple[Recorded, Commit]:
    """A commit and the first journal entry that published it.

    Raises UnknownRevision if there is none, DamagedData if its entry is lost or may be lost.
    """
    found = find(view, id_)
    if found is None:
        view.check_gaps(-1, f"whether there is a commit {id_.short}")
        raise UnknownRevision(
            f"there is no commit {id_.short}", hint="'mvc log' lists the commits there are"
        )
    return found


def find(view: View, id_: CommitId) -> tuple[Recorded, Commit] | None:
    """As ``placed``, but returns None if there is no such commit."""
    for entry in _entries(view, lambda: view.under(keys.COMMIT + id_[: keys.ID_BYTES])):
        for commit in entry.entry.commits:
            if commit.id == id_:
                return entry, commit
    return None


def _entries(view: View, look: Callable[[], list[bytes]]) -> list[Recorded]:
    """The journal entries of the index keys that ``look`` finds."""
    return view.steady(lambda: [view.entry(keys.offset_of(key)) for key in look()])


def starting_with(view: View, digits: str) -> list[tuple[Recorded, Commit]]:
    """Every commit whose hexadecimal id begins with ``digits``, sorted by id."""
    digits = digits.lower()
    head = digits[:_HEX_OF_KEY]
    low = keys.COMMIT + bytes.fromhex(head.ljust(_HEX_OF_KEY, "0"))
    high = keys.after(keys.COMMIT + bytes.fromhex(head.ljust(_HEX_OF_KEY, "f")))
    found: dict[CommitId, tuple[Recorded, Commit]] = {}
    for entry in _entries(view, lambda: view.scan(low, high)):
        for commit in entry.entry.commits:
            if commit.id.hex().startswith(digits):
                found.setdefault(commit.id, (entry, commit))
    return [found[id_] for id_ in sorted(found)]
