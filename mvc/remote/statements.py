"""Fetch and push: selects the statements to send, and the received statements to record.

A *statement* is an immutable record about a version or about another statement (its subject).
Examples are a deployment, an annotation, and a tombstone (a purge). Repositories with the same
statements give the same answers, in whatever order these arrived. A receiver skips statements that
it has, and statements about an unknown subject: these are sent again together with the subject. It
refuses a deployment of an unknown version. In a push, it refuses a deployment that does not replace
the live deployment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from mvc.errors import HistoryMissing, InvalidName, RefConflict, RemoteRefused, StateForgotten
from mvc.ids import CommitId, StatementId
from mvc.limits import MAX_AHEAD_NS
from mvc.model.statement import (
    KINDS,
    AnnotationStatement,
    Deployment,
    Retraction,
    Signature,
    Statement,
    Tombstone,
)
from mvc.names import NODES, check_ref, is_report, printable
from mvc.remote.transport import RefusedDeployment
from mvc.repo.lookup import availability, commits
from mvc.repo.statements.live import Standings
from mvc.repo.values import check_values
from mvc.store.journal.entries import StateMark
from mvc.store.journal.frames import GENESIS, Position, Recorded
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store
from mvc.times import check_moment, format_time, whole_second

# Limit of deployments to one target at one hybrid logical time. Sorting reads all of them.
_AT_ONE_TIME = 16
_PART = 50  # limit of statements that are recorded under one lock of the journal
Among = Callable[[CommitId], bool]
_ABOUT = [kind for kind in KINDS if kind not in {Deployment, Tombstone}]
"""The kinds of statements that the index finds by their subject.

Deployments have another index (``deployments_of``). Tombstones are sent without their subject.
"""


# -- sending -----------------------------------------------------------------------------------


def statements_to_send(
    snapshot: Snapshot,
    recorded: Recorded,
    among: Among | None = None,
    *,
    reports: bool = False,
) -> tuple[Statement, ...]:
    """The statements of a journal entry to send.

    ``among``: says whether statements about a version are sent; None: all statements are sent.
    Tombstones are always sent. Reports of nodes (machines that serve a model) are sent only with
    ``reports``.
    """

    def travels(statement: Statement) -> bool:
        if is_report(statement.target) and not reports:
            return False
        if among is None or isinstance(statement, Tombstone):
            return True
        version = version_of(snapshot, statement, recorded.entry.statements)
        return version is not None and among(version)

    return tuple(filter(travels, recorded.entry.statements))


def version_of(
    snapshot: Snapshot, statement: Statement, unpublished: Sequence[Statement] = ()
) -> CommitId | None:
    """The version that a statement is about, directly or through its subject.

    The subject of a statement is a version or another statement, which has a subject, too. None if
    a subject is unknown. ``unpublished``: statements outside the journal that may be subjects.
    """
    at = _first_subject(snapshot, statement, unpublished, lambda row: row.commit is not None)
    return None if at is None else at.commit


def _first_subject(
    snapshot: Snapshot,
    statement: Statement,
    unpublished: Sequence[Statement],
    matches: Callable[[Statement], bool],
) -> Statement | None:
    """Goes from a statement to its subject, again and again, until a statement ``matches``.

    None if a subject is unknown.
    """
    at: Statement | None = statement
    while at is not None and not matches(at):
        at = _find(snapshot, at.subject, unpublished)
    return at


def _find(snapshot: Snapshot, id_: bytes, unpublished: Iterable[Statement]) -> Statement | None:
    own = next((row for row in unpublished if row.id == id_), None)
    recorded = snapshot.statement(id_) if own is None else None
    return own if recorded is None else recorded[1]


def about(snapshot: Snapshot, versions: Collection[CommitId]) -> list[int]:
    """The offsets of journal entries with statements about these versions, ascending.

    Entries with tombstones are not included.
    """

    def collect() -> list[int]:
        offsets: set[int] = set()
        for id_ in versions:
            subjects: list[bytes] = [id_]
            for offset in snapshot.deployments_of(id_):
                offsets.add(offset)
                deployments = snapshot.entry(offset).entry.deployments
                subjects += [row.id for row in deployments if row.subject == id_]
            # The list grows: a statement about a subject is a subject, too.
            for subject in subjects:
                for kind in _ABOUT:
                    for recorded, statement in snapshot.about(kind, subject):
                        offsets.add(recorded.offset)
                        subjects.append(statement.id)
        return sorted(offsets)

    return snapshot.retry_on_rewrite(collect)


def tombstones(snapshot: Snapshot, start: Position) -> Iterator[tuple[Statement, ...]]:
    """Yields the tombstones of all entries after ``start``, oldest first, in small parts."""
    every = snapshot.stating(Tombstone) if start == GENESIS else snapshot.entries(start)
    stones = (recorded.entry.of(Tombstone) for recorded in every)
    return (part for statements in stones for part in in_parts(statements))


def in_parts(statements: Sequence[Statement]) -> Iterator[tuple[Statement, ...]]:
    """Splits statements into small parts. Statements on one target stay adjacent."""
    if len(statements) > _PART:
        statements = sorted(statements, key=lambda row: (row.code > Retraction.code, row.target))
    return (tuple(statements[i : i + _PART]) for i in range(0, len(statements), _PART))


# -- receiving ---------------------------------------------------------------------------------


class Admitted(Struct):
    """The received statements that are new here, and the changes of states that they cause.

    ``retained``: versions with a new tombstone. Their states are not deleted, because the
    repository still needs these states.
    """

    statements: list[Statement] = field(default_factory=list)
    states: list[StateMark] = field(default_factory=list)
    retained: list[CommitId] = field(default_factory=list)

    def versions(self, snapshot: Snapshot) -> set[CommitId]:
        """The versions that these statements are about.

        Tombstones, and statements about a target, are left out.
        """
        rows = (s for s in self.statements if not s.target and not isinstance(s, Tombstone))
        versions = (
            version_of(snapshot, row, self.statements)
            for row in rows
            if not _target_of(snapshot, row, self.statements)
        )
        return {version for version in versions if version is not None}

    def targets(self, snapshot: Snapshot) -> set[str]:
        """The targets of these statements. A signature has the target of the signed deployment."""
        every = (_target_of(snapshot, row, self.statements) for row in self.statements)
        return {target for target in every if target}


def _target_of(snapshot: Snapshot, statement: Statement, unpublished: Sequence[Statement]) -> str:
    at = _first_subject(
        snapshot, statement, unpublished, lambda row: bool(row.target) or row.commit is not None
    )
    return "" if at is None else at.target


def admit(store: Store, statements: Iterable[Statement], own: Collection[CommitId]) -> Admitted:
    """Selects the received statements to record. The caller must hold the lock of the journal.

    ``own``: versions that arrive together with the statements. Raises RemoteRefused for a time too
    far in the future, and for two deployments to one target; HistoryMissing for a deployment of an
    unknown version; InvalidName; InvalidTime; WrongUsage.
    """
    snapshot, now_ns = store.snapshot, store.now_ns()
    admitted, targets = Admitted(), set[str]()
    for row in statements:
        check_clock(max(row.recorded_ns, row.hybrid_ns), now_ns, f"a {row.name}")
        is_known = any(row.id == other.id for other in admitted.statements)
        if is_known or snapshot.statement(row.id) is not None:
            continue
        if isinstance(row, Deployment):
            _check_deployment(store, row, own)
            if row.target in targets:
                raise RemoteRefused(f"an operation deploys to {printable(row.target)} twice")
            targets.add(row.target)
        elif isinstance(row, Tombstone):
            _note_tombstone(store, row, admitted)
        elif not _has_subject(store, row, own, admitted.statements):
            continue
        elif isinstance(row, AnnotationStatement):
            check_values(row.metrics, row.params)
        admitted.statements.append(row)
    return admitted


def _has_subject(
    store: Store, statement: Statement, own: Collection[CommitId], unpublished: Sequence[Statement]
) -> bool:
    """Whether the subject of a statement is known, and of the right kind."""
    if statement.commit is not None:
        return statement.commit in own or store.snapshot.has_commit(statement.commit)
    subject = _find(store.snapshot, statement.subject, unpublished)
    if subject is None or not isinstance(statement, Retraction):
        return subject is not None
    return subject.retractable and subject.target == statement.target


def _check_deployment(store: Store, deployment: Deployment, own: Collection[CommitId]) -> None:
    snapshot, commit = store.snapshot, CommitId(deployment.subject)
    check_target(deployment.target)
    check_moment(deployment.time_ns)
    if snapshot.at_hybrid(deployment.target, deployment.hybrid_ns) >= _AT_ONE_TIME:
        raise RemoteRefused(
            f"{printable(deployment.target)} already has {_AT_ONE_TIME} deployments with the "
            "same hybrid logical time",
            hint="no working clock causes this: check the repository that sends them",
        )
    if commit not in own and not store.snapshot.has_commit(commit):
        raise HistoryMissing(
            f"version {commit.short}, deployed to {deployment.target}, is unknown here",
            hint="a fetch or push that names no versions brings it",
        )


def check_target(target: str) -> None:
    """Raises InvalidName for an invalid name of a target."""
    check_ref("deployment target", target)
    if is_report(target) and target.count("/") < 2:
        raise InvalidName(
            f"{target} is not a node's target: the form is {NODES}NAME/TARGET",
            hint="name both the node and the target, such as nodes/berlin/prod",
        )


def _note_tombstone(store: Store, stone: Tombstone, admitted: Admitted) -> None:
    snapshot, id_ = store.snapshot, CommitId(stone.subject)
    commit = commits.find(snapshot, id_)
    if commit is None or snapshot.is_subject(Tombstone, id_):
        return
    from mvc.maintenance.forget import check_forgettable  # a slow import, rarely needed

    try:
        admitted.states += check_forgettable(store, [commit[1]])
    except RefConflict:
        admitted.retained.append(id_)


def check_clock(time_ns: int, now_ns: int, subject: str) -> None:
    """Raises RemoteRefused for a time more than a day ahead of this machine's clock."""
    if time_ns > now_ns + MAX_AHEAD_NS:
        raise RemoteRefused(
            f"{subject} is dated {format_time(whole_second(time_ns))}, over a day ahead of the "
            "receiver's clock",
            hint="correct the clock of the machine that recorded it, or of the receiver",
        )


# -- predecessors in a push --------------------------------------------------------------------


def compared(
    snapshot: Snapshot, statements: Sequence[Statement], standings: Standings
) -> tuple[tuple[Statement, ...], tuple[RefusedDeployment, ...]]:
    """Splits the statements of a push into statements to record, and refused deployments.

    A deployment or retraction is refused if the deployment that it replaces is not live here.
    ``statements``: the statements of one operation that the sender itself recorded. ``standings``:
    finds the live deployments. The caller must hold the lock of the journal.
    """
    refused: list[RefusedDeployment] = []
    for target in {row.target for row in statements if row.target}:
        if is_report(target):
            continue
        new = [row for row in statements if row.target == target and _counts(snapshot, row)]
        deployments = [row for row in new if isinstance(row, Deployment)]
        first = next(iter(deployments or new), None)
        if not isinstance(first, Deployment | Retraction):
            continue
        at = first.time_ns if isinstance(first, Deployment) else None
        live = standings.on(target).then(first.recorded_ns, at)
        if first.replaces == (None if live is None else live.id):
            continue
        seen = RefusedDeployment(target, first.id)
        if live is not None:
            seen = replace(seen, live=live.commit, author=live.author, time_ns=live.time_ns)
        refused += (replace(seen, id=s.id, retracts=isinstance(s, Retraction)) for s in new)
    targets = {deployment.target for deployment in refused}
    left_out = {row.id for row in statements if row.target in targets}
    return without(statements, left_out), tuple(refused)


def without(
    statements: Sequence[Statement], removed: Container[StatementId]
) -> tuple[Statement, ...]:
    """Leaves out the statements with the ids ``removed``, and signatures of these statements."""
    return tuple(
        row
        for row in statements
        if row.id not in removed
        and not (isinstance(row, Signature) and row.of_statement and row.subject in removed)
    )


def _counts(snapshot: Snapshot, statement: Statement) -> bool:
    """Whether a deployment or retraction changes anything in this repository."""
    if isinstance(statement, Retraction):
        is_known = snapshot.statement(statement.subject) is not None
        return is_known and not snapshot.is_subject(Retraction, statement.subject)
    return snapshot.statement(statement.id) is None


# -- purged states -----------------------------------------------------------------------------


def purged_versions(snapshot: Snapshot) -> frozenset[CommitId]:
    """Versions with a tombstone: their states must never be stored again."""
    entries = [recorded.entry for recorded in snapshot.stating(Tombstone)]
    return frozenset(CommitId(stone.subject) for entry in entries for stone in entry.of(Tombstone))


def to_restore(
    snapshot: Snapshot, ids: Iterable[CommitId], *, is_local_request: bool = False
) -> tuple[CommitId, ...]:
    """The versions among ``ids`` whose states are absent here and may be stored again.

    Raises StateForgotten for a purged state. ``is_local_request``: whether this repository, not a
    remote, requests the states. This changes only the hint of the error.
    """
    marks = [(id_, availability.recorded_absence(snapshot, id_)) for id_ in ids]
    for id_, mark in marks:
        if mark is not None and mark.named:
            raise StateForgotten(
                f"the state of version {id_.short} was purged (forgotten by name)",
                hint=f"it cannot be restored; 'mvc forget --list {id_.short}' shows who purged it"
                if is_local_request
                else "'mvc fetch' purges it in this repository, too",
            )
    return tuple(id_ for id_, mark in marks if mark is not None)


class Purged(Container[CommitId]):
    """Versions whose states must not be sent: all purged versions, and ``without``."""

    def __init__(self, snapshot: Snapshot, without: Collection[CommitId]) -> None:
        self._snapshot, self._ids = snapshot, {*without}

    def __contains__(self, id_: object) -> bool:
        assert isinstance(id_, CommitId)
        return id_ in self._ids or self._snapshot.is_subject(Tombstone, id_)

    def contains_all_of(self, recorded: Recorded) -> bool:
        """Whether an entry published versions, and the states of all these must not be sent."""
        published = recorded.entry.commits
        return bool(published) and all(commit.id in self for commit in published)
