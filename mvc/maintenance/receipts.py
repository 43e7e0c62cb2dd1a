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
from mvc.repo.lookup import commits
from mvc.store.snapshot import Snapshot


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


def receipts(snapshot: Snapshot) -> list[Receipt]:
    """Every receipt, oldest first. Raises DamagedData."""
    found: list[Receipt] = []
    lacking = set[CommitId]()
    for recorded in snapshot.forgetting():
        entry = recorded.entry
        if gone := {*entry.says_of("no residue")}:
            found = [_with(receipt, gone, gone_ns=entry.time_ns) for receipt in found]
        lacking |= {*entry.says_of("absent")}
        if back := {*entry.says_of("stored")}:
            lacking -= back
            # A state that was forgotten by name is so for good.
            found = [
                _with(receipt, back, again_ns=entry.time_ns) if receipt.rules else receipt
                for receipt in found
            ]
        by_cause: dict[tuple[int, str, str, str], list[ForgottenState]] = {}
        for each in entry.of(Tombstone):
            id_ = CommitId(each.subject)
            root = _root(snapshot, id_) or each.root  # which a stranger may have said
            state = ForgottenState(id_, root, came=id_ not in lacking)
            by_cause.setdefault((each.recorded_ns, each.author, each.reason, ""), []).append(state)
        for id_ in entry.says_of("forgotten") if entry.operation == "forget" else ():
            state = ForgottenState(id_, _root(snapshot, id_), came=id_ not in lacking)
            cause = (entry.time_ns, entry.author, entry.reason, entry.note)
            by_cause.setdefault(cause, []).append(state)
        found += (
            Receipt(recorded.sequence, *cause, states=tuple(states))
            for cause, states in by_cause.items()
        )
    return found


def _root(snapshot: Snapshot, commit: CommitId) -> Root | None:
    there = commits.find(snapshot, commit)
    return None if there is None else there[1].root


def _with(
    receipt: Receipt, ids: set[CommitId], *, gone_ns: int | None = None, again_ns: int | None = None
) -> Receipt:
    """A receipt with times of these states, as far as they have none yet."""
    states = tuple(
        replace(state, gone_ns=state.gone_ns or gone_ns, again_ns=state.again_ns or again_ns)
        if state.commit in ids
        else state
        for state in receipt.states
    )
    return replace(receipt, states=states)
