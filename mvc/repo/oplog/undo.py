"""undo: reverts an operation; the undo is an operation itself.

An operation that moved refs or changed the staged removals is undone by an entry that restores
their previous values. That is possible only while they have the values that the operation set.
Undoing an undo redoes the operation. Deployments are evidence: they are not undone, but can be
retracted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mvc.errors import RefConflict
from mvc.ids import CommitId
from mvc.model.names import printable
from mvc.repo import deployments
from mvc.repo.context import Context
from mvc.repo.deployments import Deployed
from mvc.repo.lookup import commits, manifests
from mvc.repo.lookup.refs import BRANCH, HEAD, TAG, Head, head, staged_removals
from mvc.repo.oplog.oplog import Operation, find, label, undone_by
from mvc.repo.times import format_time
from mvc.store.journal.entries import Entry, RefChange, RefValue
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot

__all__ = ["Undoing", "plan", "undo"]

_NOT_UNDONE = {
    "init": ("made the repository", None),
    "deploy": (
        "recorded a deployment, which is retracted, not undone",
        "use 'mvc deploy REV TARGET --retract'",
    ),
    "retract": (
        "retracted a deployment, which is recorded anew, not undone",
        "use 'mvc deploy REV TARGET --at TIME'",
    ),
    "forget": ("gave up states, which are gone", None),
}


@dataclass(frozen=True, slots=True)
class Undoing:
    """The changes of an undo, planned or done.

    ``entry``: the journal entry of the undo. ``before`` and ``after``: HEAD. ``deployments``: those
    that the operation recorded; they stay in force. ``number``: the undo's number; None if it is
    only planned.
    """

    operation: Operation
    entry: Entry
    before: Head
    after: Head
    deployments: tuple[Deployed, ...]
    number: int | None = None


def plan(context: Context, number: int | None = None) -> Undoing:
    """What ``undo`` would do. Raises the errors of ``undo``."""
    snapshot = context.fresh()
    return snapshot.retry_on_rewrite(lambda: _plan(context, number))


def undo(context: Context, number: int | None = None) -> Undoing:
    """Undoes an operation; durable on return. Working files do not change.

    Without a number, the operation is the newest that moved a ref or staged removals, is no undo
    and is not undone. Raises UnknownOperation. Raises RefConflict if there is nothing to undo, if
    the operation moved nothing or is undone already, and if a ref has moved since or its previous
    commit is gone.
    """
    planned: list[Undoing] = []

    def make() -> Entry:
        found = _plan(context, number)
        planned[:] = [found]
        return found.entry

    recorded = context.store.publish(make)
    return replace(planned[0], number=recorded.sequence)


def _plan(context: Context, number: int | None) -> Undoing:
    snapshot = context.store.snapshot
    operation, recorded = _chosen(snapshot, number)
    revert = _Revert(context, recorded)
    revert.check()
    entry = Entry(
        "undo",
        context.store.clock.now_ns(),
        operation.entry.operation,
        refs=revert.refs,
        removed=revert.removed,
        undoes=operation.number,
    )
    return Undoing(
        operation,
        entry,
        head(context),
        revert.head(),
        _standing(snapshot, operation),
    )


def _chosen(snapshot: Snapshot, number: int | None) -> tuple[Operation, Recorded]:
    if number is None:
        return _newest(snapshot)
    operation = find(snapshot, number)
    recorded = snapshot.by_sequence(number)
    assert recorded is not None
    if operation.undone_by is not None:
        raise RefConflict(
            f"operation {number} is undone already, by operation {operation.undone_by}",
            hint=f"'mvc undo {operation.undone_by}' does it again",
        )
    if not _moved(snapshot, recorded):
        name = operation.entry.operation
        what, hint = _NOT_UNDONE.get(name, ("moved no branch, no tag and not HEAD", None))
        raise RefConflict(
            f"operation {number} ({printable(name)}) {what}: there is nothing to undo", hint=hint
        )
    return operation, recorded


def _newest(snapshot: Snapshot) -> tuple[Operation, Recorded]:
    for recorded in snapshot.newest_first():
        if recorded.entry.undoes is None and _moved(snapshot, recorded):
            undoer = undone_by(snapshot, recorded.sequence)
            if undoer is None:
                return Operation(recorded.sequence, recorded.entry, None), recorded
    raise RefConflict("there is nothing to undo", hint="'mvc oplog' lists the operations")


def _moved(snapshot: Snapshot, recorded: Recorded) -> bool:
    if recorded.sequence == 0:  # it made the repository
        return False
    refs, removed = _inverse(snapshot, recorded)
    return bool(refs) or removed is not None


def _inverse(
    snapshot: Snapshot, recorded: Recorded
) -> tuple[tuple[RefChange, ...], tuple[str, ...] | None]:
    """The inverse of an operation's changes, without those that changed nothing."""
    first: dict[str, RefValue] = {}
    last: dict[str, RefValue] = {}
    for change in recorded.entry.refs:
        first.setdefault(change.name, change.old)
        last[change.name] = change.new
    refs = tuple(RefChange(n, last[n], old) for n, old in first.items() if last[n] != old)
    removed = recorded.entry.removed
    if removed is None:
        return refs, None
    before = snapshot.staged_removals_before(recorded.offset)
    old_list = () if before is None else before.entry.removed or ()
    return refs, None if old_list == removed else old_list


class _Revert:
    """The refs and staged removals after the undo."""

    def __init__(self, context: Context, recorded: Recorded) -> None:
        self._context = context
        self._snapshot = context.store.snapshot
        self._recorded = recorded
        self._number = recorded.sequence
        self.refs, self.removed = _inverse(self._snapshot, recorded)
        self._values: Mapping[str, RefValue] = {c.name: c.new for c in self.refs}

    def head(self) -> Head:
        at = self._after(HEAD)
        if not isinstance(at, str):
            return Head(None, at)
        tip = self._after(BRANCH + at)
        return Head(at, tip if isinstance(tip, CommitId) else None)

    def check(self) -> None:
        """Raises RefConflict if the undo is not possible."""
        for change in self.refs:
            if self._context.store.ref(change.name) != change.old:
                later = self._snapshot.newest_ref_change(change.name)
                raise self._since(f"{_shown(change.name)} has moved", later)
            if (
                isinstance(change.new, CommitId)
                and commits.find(self._snapshot, change.new) is None
            ):
                raise RefConflict(
                    f"{_shown(change.name)} pointed to {change.new.short}, which is gone",
                    hint="'mvc log' lists the versions there are",
                )
        listed = self._recorded.entry.removed
        if self.removed is not None and staged_removals(self._context) != listed:
            later = self._snapshot.newest_staged_removals()
            raise self._since("the list of removed paths has changed", later)
        self._refuse_namesakes()
        self._refuse_lost_branch()
        self._refuse_forgotten()

    def _after(self, name: str) -> RefValue:
        return self._values[name] if name in self._values else self._context.store.ref(name)

    def _before(self, name: str) -> RefValue:
        """A ref's value when the operation began."""
        if name in self._values:
            return self._values[name]
        before = self._snapshot.ref_change_before(name, self._recorded.offset)
        if before is None:
            return None
        return next(c.new for c in reversed(before.entry.refs) if c.name == name)

    def _since(self, what: str, later: Recorded | None) -> RefConflict:
        since = f"{what} since operation {self._number}"
        if later is None:
            return RefConflict(since, hint="'mvc oplog' lists the operations")
        return RefConflict(
            f"{since}: operation {later.sequence} ({printable(later.entry.operation)}) did that",
            hint=f"undo that one first: 'mvc undo {later.sequence}'",
        )

    def _refuse_namesakes(self) -> None:
        """Refuses a name that would be restored but is used by another ref now."""
        branch = self._after(HEAD)
        for name in {c.name.removeprefix(BRANCH).removeprefix(TAG) for c in self.refs} | {branch}:
            if not isinstance(name, str) or name == HEAD:
                continue
            is_branch = name == branch or self._after(BRANCH + name) is not None
            if is_branch and self._after(TAG + name) is not None:
                raise RefConflict(
                    f"{printable(name)} would be a branch and a tag at once",
                    hint=f"rename or delete the one that there is: 'mvc branch -m {name} NEW' "
                    f"or 'mvc tag -d {name}'",
                )

    def _refuse_forgotten(self) -> None:
        """Refuses to move HEAD to a forgotten version, which cannot be committed on."""
        at = self.head().commit
        if at is None or at == head(self._context).commit:
            return
        time_ns = manifests.forgotten_ns(self._context, at)
        if time_ns is not None:
            when = format_time(time_ns, precise=False)
            raise RefConflict(
                f"HEAD would stand on {at.short}, whose state was forgotten on {when}",
                hint="switch to another branch first",
            )

    def _refuse_lost_branch(self) -> None:
        """Refuses to leave HEAD on a branch without a version, unless it was so before."""
        branch = self._after(HEAD)
        if not isinstance(branch, str) or self._after(BRANCH + branch) is not None:
            return
        if HEAD not in self._values and BRANCH + branch not in self._values:
            return
        if self._before(HEAD) == branch and self._before(BRANCH + branch) is None:
            return
        if HEAD not in self._values:
            raise RefConflict(
                f"{printable(branch)}, which would go, is the current branch",
                hint="switch to another one first",
            )
        later = self._snapshot.newest_ref_change(BRANCH + branch)
        raise self._since(f"{printable(branch)} went away", later)


def _shown(ref: str) -> str:
    return printable(label(ref))


def _standing(snapshot: Snapshot, operation: Operation) -> tuple[Deployed, ...]:
    return tuple(
        deployed
        for made in operation.entry.deployments
        for deployed in deployments.of_commit(snapshot, made.commit)
        if deployed.sequence == operation.number
        and deployed.target == made.target
        and not deployed.retracted
    )
