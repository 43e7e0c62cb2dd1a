"""Receipts of forgotten states: who forgot them, why, and since when no byte is left of them.

They are read from the journal: ``forget`` records who, why and what, and the ``gc`` that has
deleted the last byte says so. No collection drops either of the two. Of a receipt that another
repository gave, time, author and reason are those of that one; that a state never came is no
receipt.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from mvc.ids import CommitId, Root
from mvc.repo.context import Context
from mvc.repo.lookup import commits
from mvc.store.journal.entries import Entry


class ForgottenState(Struct, frozen=True):
    """The state of ``commit``, by its Merkle root: None if the commit is gone, too, and an earlier
    version of mvc forgot it.

    ``gone_ns``: when it was known that no byte of it is left in the repository's files; None if
    that is not so yet. ``again_ns``: when a state forgotten by rule was stored again. ``came``:
    whether it was ever here, so that there are bytes of it to delete.
    """

    commit: CommitId
    root: Root | None
    gone_ns: int | None = None
    again_ns: int | None = None
    came: bool = True


class Receipt(Struct, frozen=True):
    """Operation ``number`` forgot ``states``. ``rules``: as options, empty if they were named."""

    number: int
    time_ns: int
    author: str
    reason: str
    rules: str
    states: tuple[ForgottenState, ...]


def receipts(context: Context) -> list[Receipt]:
    """Every receipt, oldest first. Raises DamagedData."""
    snapshot = context.fresh()
    found: list[Receipt] = []
    lacking = set[CommitId]()
    for recorded in snapshot.forgetting():
        entry = recorded.entry
        if entry.gone:
            gone = set(entry.gone)
            found = [_with_gone(receipt, gone, entry.time_ns) for receipt in found]
        lacking |= entry.lacking
        if entry.here_again:
            lacking.difference_update(entry.here_again)
            found = [_with_again(receipt, entry) for receipt in found]
        if entry.operation == "forget" or any(each.named for each in entry.forgotten):
            states = tuple(
                ForgottenState(
                    each.commit,
                    each.root or _root(context, each.commit),
                    came=each.commit not in lacking,
                )
                for each in entry.forgotten
            )
            rules = "" if any(each.named for each in entry.forgotten) else entry.note
            found.append(
                Receipt(
                    recorded.sequence,
                    entry.done_ns,
                    author=entry.author,
                    reason=entry.reason,
                    rules=rules,
                    states=states,
                )
            )
    return found


def _root(context: Context, commit: CommitId) -> Root | None:
    there = commits.find(context.store.snapshot, commit)
    return None if there is None else there[1].root


def _with_again(receipt: Receipt, entry: Entry) -> Receipt:
    if not receipt.rules:
        return receipt  # forgotten by name: that is final
    back = set(entry.here_again)
    states = tuple(
        replace(state, again_ns=state.again_ns or entry.time_ns) if state.commit in back else state
        for state in receipt.states
    )
    return replace(receipt, states=states)


def _with_gone(receipt: Receipt, gone: set[CommitId], time_ns: int) -> Receipt:
    states = tuple(
        replace(state, gone_ns=time_ns) if state.commit in gone and state.gone_ns is None else state
        for state in receipt.states
    )
    return replace(receipt, states=states)
