"""``mvc undo``: reverts an operation of the repository, such as a commit.

An undo moves refs back to their values before the operation. If the operation added annotations,
the undo retracts these annotations. If the operation retracted annotations, the undo adds copies of
these annotations. Data that the operation received from another repository remain. The undo of an
undo redoes the operation. A deployment cannot be undone, because its record is never deleted.
Instead, retract the deployment, or deploy the previous version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import RefConflict
from mvc.ids import CommitId, StatementId
from mvc.model.statement import AnnotationStatement, Retraction, Statement
from mvc.names import REMOTE, an, printable
from mvc.repo.config import Config
from mvc.repo.lookup import availability, commits
from mvc.repo.lookup.refs import BRANCH, HEAD, TAG, Head, head
from mvc.repo.oplog.oplog import Operation, find, label, undoes, undone_by
from mvc.repo.recording import refuse_recorded
from mvc.repo.statements.live import Deployed, deployment_with, live_at, live_now, of_commit
from mvc.store.journal.entries import Entry, RefChange, RefValue
from mvc.store.journal.frames import Recorded
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store
from mvc.times import format_time

_NOT_UNDONE = {
    "init": "cannot be undone, because it created the repository",
    "clone": "cannot be undone, because it created the repository",
    "fetch": "cannot be undone: data received from a remote remain here",
    "push": "cannot be undone: data sent to a remote remain there",
    "forget": "cannot be undone: the data of forgotten states are deleted",
    "drop-weights": "cannot be undone: undo does not restore dropped weights",
}
_OF_REMOTES = {"fetch", "push"}
"""If the user does not name an operation, ``undo`` skips these operations."""


class Undoing(Struct, frozen=True):
    """The changes of an undo of ``operation``.

    ``entry``: the journal entry that records the undo. ``before``, ``after``: HEAD before and after
    the undo. ``deployments``: deployments that the operation recorded, which the undo does not
    change; for an import, live deployments of the imported versions, too. ``remedies``: for each
    deployment, commands that correct it. The last command retracts it. ``number``: number of the
    undo; None if only planned.
    """

    operation: Operation
    entry: Entry
    before: Head
    after: Head
    deployments: tuple[Deployed, ...]
    remedies: tuple[tuple[str, ...], ...]
    number: int | None = None


def plan(store: Store, config: Config, number: int | None = None, *, reason: str = "") -> Undoing:
    """Returns the result of ``undo``, but changes nothing. Raises the errors of ``undo``."""
    return store.fresh().retry_on_rewrite(lambda: _plan(store, config, number, reason))


def undo(store: Store, config: Config, number: int | None = None, *, reason: str = "") -> Undoing:
    """Undoes an operation, durably. Working files do not change.

    Without ``number``, undoes the newest operation that moved refs or changed annotations, and that
    is neither an undo nor undone. Raises UnknownOperation. Raises RefConflict if there is nothing
    to undo; if the operation, or without ``number`` a newer operation, cannot be undone (such as a
    deployment); if the operation is undone already; if a ref has moved since; if a ref's previous
    commit was deleted; or if a training commits to a branch that the undo would move.
    """
    planned: list[Undoing] = []

    def make() -> Entry:
        undoing = _plan(store, config, number, reason)
        planned[:] = [undoing]
        return undoing.entry

    recorded = store.publish(make)
    return replace(planned[0], number=recorded.sequence)


def _plan(store: Store, config: Config, number: int | None, reason: str) -> Undoing:
    snapshot = store.snapshot
    operation, revert = _chosen(store, number)
    revert.check()
    entry = Entry(
        "undo",
        store.clock.now_ns(),
        operation.entry.operation,
        refs=revert.refs,
        undoes=operation.number,
        author=config.author,
        reason=reason,
        statements=revert.statements(config.author, reason),
    )
    in_force = (
        deployed
        for deployment in operation.entry.deployments
        for deployed in of_commit(snapshot, CommitId(deployment.subject))
        if deployed.id == deployment.id and not deployed.retracted
    )
    live = _live_imports(store, revert.refs) if operation.entry.operation == "import" else ()
    remaining = (*in_force, *live)
    remedies = (
        _remedies(snapshot, d.target, d.commit, at=d.time_ns, replaces=d.replaces)
        for d in remaining
    )
    before, after = head(snapshot), revert.head()
    return Undoing(
        operation, entry, before, after, deployments=remaining, remedies=(*map(tuple, remedies),)
    )


def _live_imports(store: Store, refs: Sequence[RefChange]) -> Iterator[Deployed]:
    """Live deployments of versions that the refs reach before the undo, but not after the undo."""
    snapshot = store.snapshot
    old, new = (
        commits.Ancestors(snapshot, [id_ for id_ in side if isinstance(id_, CommitId)])
        for side in ([change.old for change in refs], [change.new for change in refs])
    )
    for commit, names in live_now(store).items():
        if commit in old and commit not in new:
            yield from (live_at(store, None, target) for target in names)


def _chosen(store: Store, number: int | None) -> tuple[Operation, _Revert]:
    snapshot = store.snapshot
    if number is None:
        final: Recorded | None = None  # the newest operation that cannot be undone
        for recorded in snapshot.newest_first():
            if recorded.entry.undoes is not None:
                continue
            revert = _Revert(store, recorded)
            if not revert.moves:
                if recorded.sequence and _is_final(store, recorded):
                    final = final or recorded
            elif undone_by(snapshot, recorded.sequence) is None:
                if final is not None:
                    raise _cannot(store, final, before=recorded)
                return Operation(recorded.sequence, recorded.entry, None), revert
        if final is not None:
            raise _cannot(store, final)
        raise RefConflict("there is nothing to undo", hint="'mvc undo --list' lists the operations")
    named = find(snapshot, number)
    if (undone := undone_by(snapshot, number)) is not None:
        raise RefConflict(
            f"operation {number} is undone already, by operation {undone}",
            hint=f"'mvc undo {undone}' redoes it",
        )
    revert = _Revert(store, named)
    if not revert.moves:
        raise _cannot(store, named)
    return Operation(number, named.entry, None), revert


def _is_final(store: Store, recorded: Recorded) -> bool:
    """Whether an operation cannot be undone and still has an effect.

    An operation that dropped weights has no effect if all these weights are stored again.
    """
    if recorded.entry.operation == "drop-weights":
        return bool(_still_dropped(store, recorded))
    entry = recorded.entry
    return entry.operation in _NOT_UNDONE.keys() - _OF_REMOTES or _evidence(entry) is not None


def _evidence(entry: Entry) -> Statement | None:
    """The first statement that no undo reverts (such as a deployment), or None.

    None, too, if the statements come from another repository.
    """
    local = () if entry.is_received else entry.statements
    return next((statement for statement in local if statement.is_evidence), None)


def _still_dropped(store: Store, recorded: Recorded) -> list[CommitId]:
    """The versions whose weights an operation dropped, if these weights are still dropped."""
    return [
        mark.commit
        for mark in recorded.entry.states
        if mark.change == "dropped" and availability.dropped(store, mark.commit) is not None
    ]


def _remedies(
    snapshot: Snapshot, target: str, commit: CommitId, *, at: int, replaces: StatementId | None
) -> list[str]:
    """Commands that correct a mistaken deployment. The last command retracts the deployment."""
    retract = (
        f"'mvc deploy {commit.short} {printable(target)} --retract --at {format_time(at)}' "
        f"records that {commit.short} was not live"
    )
    previous = None if replaces is None else deployment_with(snapshot, replaces)
    if (
        previous is None
        or previous[1].subject == commit
        or snapshot.is_subject(Retraction, previous[1].id)
    ):
        return [retract]
    return [
        f"'mvc deploy {CommitId(previous[1].subject).short} {printable(target)}' deploys the "
        "version that was live before",
        retract,
    ]


def _cannot(store: Store, recorded: Recorded, before: Recorded | None = None) -> RefConflict:
    """The error for an operation that cannot be undone. The hint has commands to use instead.

    ``before``: the newest operation that can be undone, if the caller named no operation.
    """
    entry, remedies = recorded.entry, []
    for deployment in entry.deployments:
        remedies += _remedies(
            store.snapshot, deployment.target, CommitId(deployment.subject),
            at=deployment.time_ns, replaces=deployment.replaces,
        )  # fmt: skip
    for retraction in entry.retractions:
        retracted = deployment_with(store.snapshot, StatementId(retraction.subject))
        if retracted is not None:
            at, short = format_time(retracted[1].time_ns), CommitId(retracted[1].subject).short
            remedies.append(
                f"'mvc deploy {short} {retraction.target} --at {at}' records the deployment again"
            )
    dropped = [commit.short for commit in _still_dropped(store, recorded)]
    if dropped:
        remedies.append(f"'mvc retrain --trust-code {' '.join(dropped[:5])}' restores them")
    if before is not None:
        name = printable(before.entry.operation)
        remedies.append(f"'mvc undo {before.sequence}' undoes the {name} before it")
    nothing = "moved no branch, tag or HEAD: there is nothing to undo"
    if (evidence := _evidence(entry)) is not None:
        nothing = f"recorded {an(evidence.name)}, which cannot be undone"
    problem = f"({printable(entry.operation)}) {_NOT_UNDONE.get(entry.operation, nothing)}"
    return RefConflict(f"operation {recorded.sequence} {problem}", hint="; ".join(remedies) or None)


class _Revert:
    """The changes that undo an operation. ``refs``: changes of refs."""

    def __init__(self, store: Store, recorded: Recorded) -> None:
        self._store = store
        self._snapshot = store.snapshot
        self._recorded = recorded
        first: dict[str, RefValue] = {}
        last: dict[str, RefValue] = {}
        keeps_refs = recorded.entry.operation in {"clone", *_OF_REMOTES}
        for change in () if keeps_refs else recorded.entry.refs:
            if change.name.startswith(REMOTE):
                continue  # an undo here does not change the remote
            first.setdefault(change.name, change.old)
            last[change.name] = change.new
        self.refs = tuple(RefChange(n, last[n], old) for n, old in first.items() if last[n] != old)
        self._values: Mapping[str, RefValue] = {c.name: c.new for c in self.refs}

    @property
    def moves(self) -> bool:
        """Whether there is anything to undo.

        False for the operation that created the repository.
        """
        return self._recorded.sequence != 0 and bool(self.refs or self.statements("", ""))

    def statements(self, author: str, reason: str) -> tuple[Statement, ...]:
        """Retractions of annotations that the operation added, and copies of annotations that it
        retracted.

        If the operation was undone and redone, the redo is reverted instead.
        """
        snapshot, at = self._snapshot, self._recorded
        while (later := snapshot.newest_undo(at.sequence)) is not None:
            undoes(later)  # raises DamagedData if the undos form a cycle
            at = later
        if at.entry.is_received:
            return ()
        statements: list[Statement] = [
            Retraction(subject=annotation.id, author=author, reason=reason)
            for annotation in at.entry.of(AnnotationStatement)
            if not snapshot.is_subject(Retraction, annotation.id)
        ]
        for retraction in at.entry.retractions:
            retracted = None if retraction.target else snapshot.statement(retraction.subject)
            if retracted is not None and isinstance(retracted[1], AnnotationStatement):
                statements.append(
                    AnnotationStatement(
                        subject=retracted[1].subject,
                        author=author,
                        reason=reason,
                        metrics=retracted[1].metrics,
                        params=retracted[1].params,
                        note=retracted[1].note,
                    )
                )
        return tuple(statements)

    def head(self) -> Head:
        at = self._after(HEAD)
        if not isinstance(at, str):
            return Head(None, at)
        tip = self._after(BRANCH + at)
        return Head(at, tip if isinstance(tip, CommitId) else None)

    def check(self) -> None:
        """Raises RefConflict if the undo is impossible."""
        for change in self.refs:
            shown = printable(label(change.name))
            if self._snapshot.ref(change.name) != change.old:
                later = self._snapshot.newest_ref_change(change.name)
                raise self._since(f"{shown} has moved", later)
            new = change.new
            if isinstance(new, CommitId) and commits.find(self._snapshot, new) is None:
                raise RefConflict(
                    f"{shown} pointed to {new.short}, which was deleted",
                    hint="'mvc log' lists the versions",
                )
        for name in self._values:
            if name.startswith(BRANCH):
                refuse_recorded(self._store, name.removeprefix(BRANCH))
        self._refuse_namesakes()
        self._refuse_lost_branch()
        self._refuse_forgotten()

    def _after(self, name: str) -> RefValue:
        return self._values[name] if name in self._values else self._snapshot.ref(name)

    def _before(self, name: str) -> RefValue:
        at, known = self._recorded.offset, self._values
        return known[name] if name in known else self._snapshot.ref_before(name, at)

    def _since(self, change: str, later: Recorded | None) -> RefConflict:
        since = f"{change} since operation {self._recorded.sequence}"
        if later is None:
            return RefConflict(since, hint="'mvc undo --list' lists the operations")
        return RefConflict(
            f"{since}: operation {later.sequence} ({printable(later.entry.operation)}) did that",
            hint=f"undo the later operation first: 'mvc undo {later.sequence}'",
        )

    def _refuse_namesakes(self) -> None:
        """Refuses an undo after which a branch and a tag would have the same name."""
        branch = self._after(HEAD)
        for name in {c.name.removeprefix(BRANCH).removeprefix(TAG) for c in self.refs} | {branch}:
            if not isinstance(name, str) or name == HEAD:
                continue
            is_branch = name == branch or self._after(BRANCH + name) is not None
            if is_branch and self._after(TAG + name) is not None:
                raise RefConflict(
                    f"{printable(name)} would be a branch and a tag at once",
                    hint=f"rename or delete the present one: 'mvc branch -m {name} NEW' "
                    f"or 'mvc tag -d {name}'",
                )

    def _refuse_forgotten(self) -> None:
        """Refuses to move HEAD to a forgotten version, which cannot be the parent of a commit."""
        at = self.head().commit
        if at is None or at == head(self._snapshot).commit:
            return
        if (absence := availability.forgotten(self._store, at)) is not None:
            when = format_time(absence.time_ns, precise=False)
            raise RefConflict(
                f"HEAD would move to {at.short}, whose state was forgotten on {when}",
                hint="switch to another branch first",
            )

    def _refuse_lost_branch(self) -> None:
        """Refuses an undo after which HEAD would be on a branch without a version.

        Exception: HEAD was on this empty branch before the operation.
        """
        branch = self._after(HEAD)
        if not isinstance(branch, str) or self._after(BRANCH + branch) is not None:
            return
        if self._values.keys().isdisjoint({HEAD, BRANCH + branch}) or (
            self._before(HEAD) == branch and self._before(BRANCH + branch) is None
        ):
            return
        if HEAD in self._values:
            later = self._snapshot.newest_ref_change(BRANCH + branch)
            raise self._since(f"{printable(branch)} was deleted", later)
        raise RefConflict(
            f"{printable(branch)} would be deleted, but is the current branch",
            hint="switch to another branch first",
        )
