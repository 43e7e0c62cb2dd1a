"""undo: reverts an operation; the undo is an operation itself.

An operation that moved refs is undone by an entry that restores their previous values. That is
possible only while they have the values that the operation set. An annotation is undone by a
retraction, and that by an annotation of the same. What came from another repository stays: where
its branches were, what it said of versions. Undoing an undo redoes the operation. Deployments are
evidence: they are not undone, but can be retracted, or what was live before deployed again.
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
    "init": "made the repository",
    "clone": "made the repository",
    "fetch": "took over what a remote has, which stays",
    "push": "gave a remote what it has, which stays there",
    "forget": "gave up states, which are gone",
    "drop-weights": "gave up weights, which undo does not bring back",
}
_OF_REMOTES = {"fetch", "push"}
"""Operations that an undo of the newest passes over."""


class Undoing(Struct, frozen=True):
    """The changes of an undo, planned or done.

    ``entry``: the journal entry of the undo. ``before`` and ``after``: HEAD. ``deployments``: those
    that the operation recorded, of an import those that are live; they stay in force. ``ways``: of
    each what helps if it was a mistake, last how to retract it. ``number``: the undo's number; None
    if it is only planned.
    """

    operation: Operation
    entry: Entry
    before: Head
    after: Head
    deployments: tuple[Deployed, ...]
    ways: tuple[tuple[str, ...], ...]
    number: int | None = None


def plan(store: Store, config: Config, number: int | None = None, *, reason: str = "") -> Undoing:
    """What ``undo`` would do. Raises the errors of ``undo``."""
    return store.fresh().retry_on_rewrite(lambda: _plan(store, config, number, reason))


def undo(store: Store, config: Config, number: int | None = None, *, reason: str = "") -> Undoing:
    """Undoes an operation; durable on return. Working files do not change.

    Without a number, the operation is the newest that is no undo and is not undone; those that only
    rearranged stored bytes, or changed nothing, are passed over. Raises UnknownOperation. Raises
    RefConflict if there is nothing to undo, if the operation cannot be undone (a deployment) or is
    undone already, and if a ref has moved since, its previous commit is gone, or a training records
    on a branch that would go.
    """
    planned: list[Undoing] = []

    def make() -> Entry:
        found = _plan(store, config, number, reason)
        planned[:] = [found]
        return found.entry

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
    standing = (
        deployed
        for made in operation.entry.deployments
        for deployed in of_commit(snapshot, CommitId(made.subject))
        if deployed.id == made.id and not deployed.retracted
    )
    live = _live_imports(store, revert.refs) if operation.entry.operation == "import" else ()
    stay = (*standing, *live)
    ways = (
        ways_back(snapshot, each.target, each.commit, at=each.time_ns, replaces=each.replaces)
        for each in stay
    )
    before, after = head(snapshot), revert.head()
    return Undoing(operation, entry, before, after, deployments=stay, ways=(*map(tuple, ways),))


def _live_imports(store: Store, refs: Sequence[RefChange]) -> Iterator[Deployed]:
    """What is live of the versions that an import made, which no branch will lead to any more."""
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
        final: Recorded | None = None  # the newest that cannot be undone
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
    found = find(snapshot, number)
    if (undone := undone_by(snapshot, number)) is not None:
        raise RefConflict(
            f"operation {number} is undone already, by operation {undone}",
            hint=f"'mvc undo {undone}' does it again",
        )
    revert = _Revert(store, found)
    if not revert.moves:
        raise _cannot(store, found)
    return Operation(number, found.entry, None), revert


def _is_final(store: Store, recorded: Recorded) -> bool:
    """Whether it cannot be undone, and has an effect still: weights may be stored again."""
    if recorded.entry.operation == "drop-weights":
        return bool(_given_up(store, recorded))
    entry = recorded.entry
    return entry.operation in _NOT_UNDONE.keys() - _OF_REMOTES or _evidence(entry) is not None


def _evidence(entry: Entry) -> Statement | None:
    """A statement that was recorded here and that no undo takes back."""
    every = () if entry.is_received else entry.statements
    return next((each for each in every if each.stays), None)


def _given_up(store: Store, recorded: Recorded) -> list[CommitId]:
    """The versions whose weights an operation gave up, and that are still without them."""
    return [
        mark.commit
        for mark in recorded.entry.states
        if mark.what == "dropped" and availability.dropped(store, mark.commit) is not None
    ]


def ways_back(
    snapshot: Snapshot, target: str, commit: CommitId, *, at: int, replaces: StatementId | None
) -> list[str]:
    """What to do about a deployment that was a mistake: last, how to retract it."""
    retract = (
        f"'mvc deploy {commit.short} {printable(target)} --retract --at {format_time(at)}' "
        f"says that {commit.short} was not live"
    )
    found = None if replaces is None else deployment_with(snapshot, replaces)
    if found is None or found[1].subject == commit or snapshot.is_subject(Retraction, found[1].id):
        return [retract]
    return [
        f"'mvc deploy {CommitId(found[1].subject).short} {printable(target)}' deploys what was "
        "live before",
        retract,
    ]


def _cannot(store: Store, recorded: Recorded, before: Recorded | None = None) -> RefConflict:
    """The error for an operation that moved nothing, which names the command that helps.

    ``before`` is the newest operation that can be undone, where none was named.
    """
    entry, ways = recorded.entry, []
    for made in entry.deployments:
        ways += ways_back(
            store.snapshot, made.target, CommitId(made.subject),
            at=made.time_ns, replaces=made.replaces,
        )  # fmt: skip
    for taken in entry.retractions:
        there = deployment_with(store.snapshot, StatementId(taken.subject))
        if there is not None:
            at, short = format_time(there[1].time_ns), CommitId(there[1].subject).short
            ways.append(f"'mvc deploy {short} {taken.target} --at {at}' records it")
    gone = [each.short for each in _given_up(store, recorded)]
    if gone:
        ways.append(f"'mvc retrain --trust-code {' '.join(gone[:5])}' stores them again")
    if before is not None:
        name = printable(before.entry.operation)
        ways.append(f"'mvc undo {before.sequence}' takes back the {name} before it")
    nothing = "moved no branch, no tag and not HEAD: there is nothing to undo"
    if (evidence := _evidence(entry)) is not None:
        nothing = f"recorded {an(evidence.name)}, which is not undone"
    what = f"({printable(entry.operation)}) {_NOT_UNDONE.get(entry.operation, nothing)}"
    return RefConflict(f"operation {recorded.sequence} {what}", hint="; ".join(ways) or None)


class _Revert:
    """The inverse of an operation's changes, without those that changed nothing.

    ``refs`` are those of the undo.
    """

    def __init__(self, store: Store, recorded: Recorded) -> None:
        self._store = store
        self._snapshot = store.snapshot
        self._recorded = recorded
        first: dict[str, RefValue] = {}
        last: dict[str, RefValue] = {}
        stays = recorded.entry.operation in {"clone", *_OF_REMOTES}
        for change in () if stays else recorded.entry.refs:
            if change.name.startswith(REMOTE):
                continue  # where a remote is does not change because it is undone here
            first.setdefault(change.name, change.old)
            last[change.name] = change.new
        self.refs = tuple(RefChange(n, last[n], old) for n, old in first.items() if last[n] != old)
        self._values: Mapping[str, RefValue] = {c.name: c.new for c in self.refs}

    @property
    def moves(self) -> bool:
        """Whether there is anything to undo; not in the operation that made the repository."""
        return self._recorded.sequence != 0 and bool(self.refs or self.statements("", ""))

    def statements(self, author: str, reason: str) -> tuple[Statement, ...]:
        """What takes back its annotations, or annotates anew what it took back."""
        snapshot, at = self._snapshot, self._recorded
        while (later := snapshot.newest_undo(at.sequence)) is not None:
            undoes(later)
            at = later
        if at.entry.is_received:
            return ()
        found: list[Statement] = [
            Retraction(subject=made.id, author=author, reason=reason)
            for made in at.entry.of(AnnotationStatement)
            if not snapshot.is_subject(Retraction, made.id)
        ]
        for taken in at.entry.retractions:
            there = None if taken.target else snapshot.statement(taken.subject)
            if there is not None and isinstance(there[1], AnnotationStatement):
                found.append(
                    AnnotationStatement(
                        subject=there[1].subject,
                        author=author,
                        reason=reason,
                        metrics=there[1].metrics,
                        params=there[1].params,
                        note=there[1].note,
                    )
                )
        return tuple(found)

    def head(self) -> Head:
        at = self._after(HEAD)
        if not isinstance(at, str):
            return Head(None, at)
        tip = self._after(BRANCH + at)
        return Head(at, tip if isinstance(tip, CommitId) else None)

    def check(self) -> None:
        """Raises RefConflict if the undo is not possible."""
        for change in self.refs:
            shown = printable(label(change.name))
            if self._snapshot.ref(change.name) != change.old:
                later = self._snapshot.newest_ref_change(change.name)
                raise self._since(f"{shown} has moved", later)
            new = change.new
            if isinstance(new, CommitId) and commits.find(self._snapshot, new) is None:
                raise RefConflict(
                    f"{shown} pointed to {new.short}, which is gone",
                    hint="'mvc log' lists the versions there are",
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

    def _since(self, what: str, later: Recorded | None) -> RefConflict:
        since = f"{what} since operation {self._recorded.sequence}"
        if later is None:
            return RefConflict(since, hint="'mvc undo --list' lists the operations")
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
        if at is None or at == head(self._snapshot).commit:
            return
        if (gone := availability.forgotten(self._store, at)) is not None:
            when = format_time(gone.time_ns, precise=False)
            raise RefConflict(
                f"HEAD would stand on {at.short}, whose state was forgotten on {when}",
                hint="switch to another branch first",
            )

    def _refuse_lost_branch(self) -> None:
        """Refuses to leave HEAD on a branch without a version, unless that was so before."""
        branch = self._after(HEAD)
        if not isinstance(branch, str) or self._after(BRANCH + branch) is not None:
            return
        if self._values.keys().isdisjoint({HEAD, BRANCH + branch}) or (
            self._before(HEAD) == branch and self._before(BRANCH + branch) is None
        ):
            return
        if HEAD in self._values:
            later = self._snapshot.newest_ref_change(BRANCH + branch)
            raise self._since(f"{printable(branch)} went away", later)
        raise RefConflict(
            f"{printable(branch)}, which would go, is the current branch",
            hint="switch to another one first",
        )
