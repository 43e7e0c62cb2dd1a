"""Receipts of forgotten states: who forgot them, why, and when their last bytes were deleted.

Receipts are read from the journal, which has one entry for each operation. The entries of
``forget`` name versions, author and reason. The entries of ``gc`` record when the last byte of a
state was deleted. No ``gc`` deletes these entries. A state that was received as absent has a
receipt only if it was forgotten by name.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from mvc.ids import CommitId, Root
from mvc.model.statement import Tombstone
from mvc.repo.lookup import commits
from mvc.store.snapshot import Snapshot


class ForgottenState(Struct, frozen=True):
    """A forgotten state of the version ``commit``.

    ``root``: the hash of the state. None if the hash is unknown, because the commit was deleted.
    ``gone_ns``: when the last byte was deleted from the repository's files. None if bytes may be
    left. ``again_ns``: when the state was stored again. ``came``: whether the state was ever stored
    here, so that there were bytes to delete.
    """

    commit: CommitId
    root: Root | None
    gone_ns: int | None = None
    again_ns: int | None = None
    came: bool = True


class Receipt(Struct, frozen=True):
    """The operation with the number ``number`` forgot ``states``.

    ``rules``: the retention rules, as options of ``mvc forget``. Empty if the user named versions.
    """

    number: int
    time_ns: int
    author: str
    reason: str
    rules: str
    states: tuple[ForgottenState, ...]


def receipts(snapshot: Snapshot) -> list[Receipt]:
    """Every receipt, oldest first. Raises DamagedData."""
    results: list[Receipt] = []
    absent = set[CommitId]()
    for recorded in snapshot.forgetting():
        entry = recorded.entry
        if deleted := {*entry.says_of("no residue")}:
            results = [_with(receipt, deleted, gone_ns=entry.time_ns) for receipt in results]
        absent |= {*entry.says_of("absent")}
        if restored := {*entry.says_of("stored")}:
            absent -= restored
            # A state that was forgotten by name cannot be stored again.
            results = [
                _with(receipt, restored, again_ns=entry.time_ns) if receipt.rules else receipt
                for receipt in results
            ]
        by_cause: dict[tuple[int, str, str, str], list[ForgottenState]] = {}
        for stone in entry.of(Tombstone):
            id_ = CommitId(stone.subject)
            root = _root(snapshot, id_) or stone.root  # a remote may have sent this root
            state = ForgottenState(id_, root, came=id_ not in absent)
            by_cause.setdefault((stone.recorded_ns, stone.author, stone.reason, ""), []).append(
                state
            )
        for id_ in entry.says_of("forgotten") if entry.operation == "forget" else ():
            state = ForgottenState(id_, _root(snapshot, id_), came=id_ not in absent)
            cause = (entry.time_ns, entry.author, entry.reason, entry.note)
            by_cause.setdefault(cause, []).append(state)
        results += (
            Receipt(recorded.sequence, *cause, states=tuple(states))
            for cause, states in by_cause.items()
        )
    return results


def _root(snapshot: Snapshot, commit: CommitId) -> Root | None:
    known = commits.find(snapshot, commit)
    return None if known is None else known[1].root


def _with(
    receipt: Receipt, ids: set[CommitId], *, gone_ns: int | None = None, again_ns: int | None = None
) -> Receipt:
    """Sets the times for the states of ``ids``. Keeps a time that is already set."""
    states = tuple(
        replace(state, gone_ns=state.gone_ns or gone_ns, again_ns=state.again_ns or again_ns)
        if state.commit in ids
        else state
        for state in receipt.states
    )
    return replace(receipt, states=states)
