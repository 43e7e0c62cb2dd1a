"""Statements that travel: which of them a receiver is given, and which it takes over.

Repositories take the union: a statement that is here is passed over by its id, so that repositories
with the same statements give the same answers, in whatever order these came. One about what is not
here is passed over, too: who sends the subject later sends all statements about it. A deployment of
a version that is not here is refused. What a deployment replaces is a condition of a push alone.
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
from mvc.times import check_moment, format_time

_AT_ONE_TIME = 16  # deployments on a target: all of one hybrid time are read to put them in order
_PART = 50  # statements that are admitted at once, under the journal's lock
Among = Callable[[CommitId], bool]
_ABOUT = [kind for kind in KINDS if kind not in {Deployment, Tombstone}]
"""Kinds that go along with their subject. Tombstones need none; a table has deployments."""


# -- sending -----------------------------------------------------------------------------------


def told(
    snapshot: Snapshot,
    recorded: Recorded,
    among: Among | None = None,
    *,
    reports: bool = False,
) -> tuple[Statement, ...]:
    """The statements of an entry that travel: those about versions ``among`` these, or all.

    Tombstones always do; what nodes report does with ``reports`` only.
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
    snapshot: Snapshot, statement: Statement, others: Sequence[Statement] = ()
) -> CommitId | None:
    """The version that a statement is about, by way of its subjects; None if one is not here.

    ``others``: statements that may be its subject, beside those on record.
    """
    at = _followed(snapshot, statement, others, lambda each: each.commit is not None)
    return None if at is None else at.commit


def _followed(
    snapshot: Snapshot,
    statement: Statement,
    others: Sequence[Statement],
    ends: Callable[[Statement], bool],
) -> Statement | None:
    """The first that ``ends`` of a statement, its subject, and so on; None if one is not here."""
    at: Statement | None = statement
    while at is not None and not ends(at):
        at = _find(snapshot, at.subject, others)
    return at


def _find(snapshot: Snapshot, id_: bytes, others: Iterable[Statement]) -> Statement | None:
    own = next((each for each in others if each.id == id_), None)
    found = snapshot.statement(id_) if own is None else None
    return own if found is None else found[1]


def about(snapshot: Snapshot, versions: Collection[CommitId]) -> list[int]:
    """Offsets of the entries with statements about these versions, ascending; no tombstones."""

    def look() -> list[int]:
        found: set[int] = set()
        for id_ in versions:
            subjects: list[bytes] = [id_]
            for offset in snapshot.deployments_of(id_):
                found.add(offset)
                made = snapshot.entry(offset).entry.deployments
                subjects += [each.id for each in made if each.subject == id_]
            for subject in subjects:  # grows: statements about it are subjects themselves
                for kind in _ABOUT:
                    for recorded, each in snapshot.about(kind, subject):
                        found.add(recorded.offset)
                        subjects.append(each.id)
        return sorted(found)

    return snapshot.retry_on_rewrite(look)


def tombstones(snapshot: Snapshot, start: Position) -> Iterator[tuple[Statement, ...]]:
    """Those of each entry from ``start`` on, oldest first: they travel first."""
    every = snapshot.stating(Tombstone) if start == GENESIS else snapshot.entries(start)
    found = (recorded.entry.of(Tombstone) for recorded in every)
    return (part for each in found for part in in_parts(each))


def in_parts(statements: Sequence[Statement]) -> Iterator[tuple[Statement, ...]]:
    """The same in parts of few, those on one target one after the other."""
    if len(statements) > _PART:
        statements = sorted(statements, key=lambda each: (each.code > Retraction.code, each.target))
    return (tuple(statements[i : i + _PART]) for i in range(0, len(statements), _PART))


# -- receiving ---------------------------------------------------------------------------------


class Admitted(Struct):
    """What is taken over of statements that came: those that are new here, and ``states``: of
    versions that have their weights again. ``held``: versions with a new tombstone that something
    here stands on.
    """

    statements: list[Statement] = field(default_factory=list)
    states: list[StateMark] = field(default_factory=list)
    held: list[CommitId] = field(default_factory=list)

    def versions(self, snapshot: Snapshot) -> set[CommitId]:
        """The versions that it says something of, but for deployments and tombstones."""
        others = (s for s in self.statements if not s.target and not isinstance(s, Tombstone))
        found = (
            version_of(snapshot, each, self.statements)
            for each in others
            if not _target_of(snapshot, each, self.statements)
        )
        return {version for version in found if version is not None}

    def targets(self, snapshot: Snapshot) -> set[str]:
        """The targets that it says something of, or vouches for."""
        every = (_target_of(snapshot, each, self.statements) for each in self.statements)
        return {target for target in every if target}


def _target_of(snapshot: Snapshot, statement: Statement, others: Sequence[Statement]) -> str:
    at = _followed(
        snapshot, statement, others, lambda each: bool(each.target) or each.commit is not None
    )
    return "" if at is None else at.target


def admit(store: Store, statements: Iterable[Statement], own: Collection[CommitId]) -> Admitted:
    """What is new here of statements that came; ``own``: versions that come with them.

    Call it under the journal's lock. Raises RemoteRefused for what is dated too far ahead,
    HistoryMissing for a deployment of a version that is not here, InvalidName, InvalidTime,
    WrongUsage.
    """
    snapshot, now_ns = store.snapshot, store.now_ns()
    found, targets = Admitted(), set[str]()
    for each in statements:
        check_clock(max(each.recorded_ns, each.hybrid_ns), now_ns, f"a {each.name}")
        is_there = any(each.id == other.id for other in found.statements)
        if is_there or snapshot.statement(each.id) is not None:
            continue
        if isinstance(each, Deployment):
            _check_deployment(store, each, own)
            if each.target in targets:
                raise RemoteRefused(f"an operation deploys twice on {printable(each.target)}")
            targets.add(each.target)
        elif isinstance(each, Tombstone):
            _note_tombstone(store, each, found)
        elif not _has_subject(store, each, own, found.statements):
            continue
        elif isinstance(each, AnnotationStatement):
            check_values(each.metrics, each.params)
        found.statements.append(each)
    return found


def _has_subject(
    store: Store, statement: Statement, own: Collection[CommitId], others: Sequence[Statement]
) -> bool:
    """Whether what it is about is here, and is of the kind that it says."""
    if statement.commit is not None:
        return statement.commit in own or store.snapshot.has_commit(statement.commit)
    subject = _find(store.snapshot, statement.subject, others)
    if subject is None or not isinstance(statement, Retraction):
        return subject is not None
    return subject.retractable and subject.target == statement.target


def _check_deployment(store: Store, made: Deployment, own: Collection[CommitId]) -> None:
    snapshot, commit = store.snapshot, CommitId(made.subject)
    check_target(made.target)
    check_moment(made.time_ns)
    if snapshot.at_hybrid(made.target, made.hybrid_ns) >= _AT_ONE_TIME:
        raise RemoteRefused(
            f"{_AT_ONE_TIME} deployments on {printable(made.target)} have one hybrid time already",
            hint="no clock makes so many: ask who sends them",
        )
    if commit not in own and not store.snapshot.has_commit(commit):
        raise HistoryMissing(
            f"version {commit.short} was deployed on {made.target}, and is not here",
            hint="it comes with a fetch or push that names no versions",
        )


def check_target(target: str) -> None:
    """Raises InvalidName for a target on which nothing can be deployed or reported."""
    check_ref("deployment target", target)
    if is_report(target) and target.count("/") < 2:
        raise InvalidName(
            f"a node reports on {NODES}NAME/TARGET, and not on {target}",
            hint="its name has no '/', and is given with 'mvc follow --as NAME'",
        )


def _note_tombstone(store: Store, stone: Tombstone, found: Admitted) -> None:
    snapshot, id_ = store.snapshot, CommitId(stone.subject)
    commit = commits.find(snapshot, id_)
    if commit is None or snapshot.is_subject(Tombstone, id_):
        return
    from mvc.maintenance.forget import check_forgettable  # far more than a transfer needs

    try:
        found.states += check_forgettable(store, [commit[1]])
    except RefConflict:
        found.held.append(id_)


def check_clock(time_ns: int, now_ns: int, what: str) -> None:
    """Raises RemoteRefused for what is dated more than a day ahead."""
    if time_ns > now_ns + MAX_AHEAD_NS:
        raise RemoteRefused(
            f"{what} is dated {format_time(time_ns)}, more than a day ahead of the clock here",
            hint="set the clock of the computer that recorded it, or of this one",
        )


# -- what a push may say -----------------------------------------------------------------------


def compared(
    snapshot: Snapshot, statements: Sequence[Statement], standings: Standings
) -> tuple[tuple[Statement, ...], tuple[RefusedDeployment, ...]]:
    """What a push may say: without statements that replace what is not live here any more.

    ``statements``: of one operation that the sender recorded itself. Under the journal's lock.
    """
    refused: list[RefusedDeployment] = []
    for target in {each.target for each in statements if each.target}:
        if is_report(target):
            continue
        new = [each for each in statements if each.target == target and _counts(snapshot, each)]
        made = [each for each in new if isinstance(each, Deployment)]
        first = next(iter(made or new), None)
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
    targets = {each.target for each in refused}
    left_out = {each.id for each in statements if each.target in targets}
    return without(statements, left_out), tuple(refused)


def without(statements: Sequence[Statement], gone: Container[StatementId]) -> tuple[Statement, ...]:
    """Statements but for these, and for signatures of these."""
    return tuple(
        each
        for each in statements
        if each.id not in gone
        and not (isinstance(each, Signature) and each.of_statement and each.subject in gone)
    )


def _counts(snapshot: Snapshot, statement: Statement) -> bool:
    """Whether a deployment or retraction changes anything here."""
    if isinstance(statement, Retraction):
        is_here = snapshot.statement(statement.subject) is not None
        return is_here and not snapshot.is_subject(Retraction, statement.subject)
    return snapshot.statement(statement.id) is None


# -- states that are gone for good -------------------------------------------------------------


def by_name(snapshot: Snapshot) -> frozenset[CommitId]:
    """Versions with a tombstone: their states must not come back."""
    entries = [recorded.entry for recorded in snapshot.stating(Tombstone)]
    return frozenset(CommitId(each.subject) for entry in entries for each in entry.of(Tombstone))


def here_again(
    snapshot: Snapshot, ids: Iterable[CommitId], *, asked: bool = False
) -> tuple[CommitId, ...]:
    """Those whose state is not here, for the entry that brings their states.

    Raises StateForgotten for one with a tombstone. ``asked``: here, and not by who sends.
    """
    marks = [(id_, availability.gone(snapshot, id_)) for id_ in ids]
    for id_, mark in marks:
        if mark is not None and mark.named:
            raise StateForgotten(
                f"the state of version {id_.short} was forgotten by name",
                hint=f"it never comes back: 'mvc forget --list {id_.short}' says who forgot it"
                if asked
                else "fetch: then it is forgotten on this side, too",
            )
    return tuple(id_ for id_, mark in marks if mark is not None)


class Buried(Container[CommitId]):
    """Versions whose states are given to nobody, or not to one who refuses ``without``."""

    def __init__(self, snapshot: Snapshot, without: Collection[CommitId]) -> None:
        self._snapshot, self._ids = snapshot, {*without}

    def __contains__(self, id_: object) -> bool:
        assert isinstance(id_, CommitId)
        return id_ in self._ids or self._snapshot.is_subject(Tombstone, id_)

    def hold(self, recorded: Recorded) -> bool:
        """Whether all that an entry published is among them."""
        published = recorded.entry.commits
        return bool(published) and all(commit.id in self for commit in published)
