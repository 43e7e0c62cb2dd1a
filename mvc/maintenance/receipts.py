"""Receipts of forgotten states: who forgot them, why, and since when no byte is left of them.

They are read from the journal: tombstones and the marks of ``forget`` say who, why and what, and
the ``gc`` that has deleted the last byte says so. No collection drops either of the two. That a
state never came is no receipt.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from mvc.ids import CommitId, Root
from mvc.model.statement import Tombstone
from mvc.repo.context import Context
from mvc.repo.lookup import commits


class ForgottenState(Struct, frozen=True):
    """The state of ``commit``, by its Merkle root: None if a rule forgot it and the commit is gone.

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
        if gone := {*entry.says_of("no residue")}:
            found = [_with_gone(receipt, gone, entry.time_ns) for receipt in found]
        lacking |= {*entry.says_of("absent")}
        if back := {*entry.says_of("stored")}:
            lacking -= back
            found = [_with_again(receipt, back, entry.time_ns) for receipt in found]
        by_cause: dict[tuple[int, str, str, str], list[ForgottenState]] = {}
        for each in entry.of(Tombstone):
            id_ = CommitId(each.subject)
            root = _root(context, id_) or each.root  # which a stranger may have said
            state = ForgottenState(id_, root, came=id_ not in lacking)
            by_cause.setdefault((each.recorded_ns, each.author, each.reason, ""), []).append(state)
        for id_ in entry.says_of("forgotten") if entry.operation == "forget" else ():
            state = ForgottenState(id_, _root(context, id_), came=id_ not in lacking)
            cause = (entry.time_ns, entry.author, entry.reason, entry.note)
            by_cause.setdefault(cause, []).append(state)
        found += (
            Receipt(recorded.sequence, *cause, states=tuple(states))
            for cause, states in by_cause.items()
        )
    return found


def _root(context: Context, commit: CommitId) -> Root | None:
    there = commits.find(context.store.snapshot, commit)
    return None if there is None else there[1].root


def _with_again(receipt: Receipt, back: set[CommitId], time_ns: int) -> Receipt:
    if not receipt.rules:
        return receipt  # forgotten by name: that is final
    states = tuple(
        replace(state, again_ns=state.again_ns or time_ns) if state.commit in back else state
        for state in receipt.states
    )
    return replace(receipt, states=states)


def _with_gone(receipt: Receipt, gone: set[CommitId], time_ns: int) -> Receipt:
    states = tuple(
        replace(state, gone_ns=time_ns) if state.commit in gone and state.gone_ns is None else state
        for state in receipt.states
    )
    return replace(receipt, states=states)
