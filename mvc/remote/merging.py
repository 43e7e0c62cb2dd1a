"""What an entry says beside its versions, as it travels, and how a receiver takes it over.

These truths only grow: deployments and their retractions, annotations, signatures, and that a
state was forgotten by name. Each has a name or a content of its own, so that what is here already
is passed over, and repositories that have taken the same come to the same answers, in whatever
order. Retractions, annotations and signatures of what is not here are passed over: who sends it
later sends them, too. A deployment of a version that is not here is refused.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Container,
    Hashable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import suppress
from operator import attrgetter
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from mvc.errors import (
    DamagedData,
    HistoryMissing,
    InvalidName,
    RefConflict,
    RemoteRefused,
    StateForgotten,
)
from mvc.ids import CommitId, DeploymentId, Root
from mvc.limits import MAX_ENTRY, MAX_NAME_BYTES, MAX_REASON
from mvc.model.canonical import decode_text
from mvc.names import NODES, check_ref, encode_text, is_report, printable
from mvc.remote.door import RefusedDeployment
from mvc.repo.context import Context
from mvc.repo.live import Standings
from mvc.repo.lookup import availability, commits, stamping
from mvc.repo.lookup.undos import undone_by
from mvc.repo.values import check_values
from mvc.store.journal.entries import (
    Deployment,
    Entry,
    Evidence,
    Forgotten,
    Retraction,
    Weights,
    evidence_bytes,
    read_evidence,
)
from mvc.store.journal.frames import GENESIS, Position, Recorded
from mvc.store.journal.signatures import Signature, read_signatures, write_signatures
from mvc.store.journal.stamps import NODE, Stamp, deployment_id
from mvc.store.snapshot import Snapshot
from mvc.times import check_moment, format_time

HELD = "held"
"""The file in ``.mvc`` of what others forgot by name and is kept for now."""

AHEAD_NS = 24 * 3600 * 10**9
"""What is dated further ahead of the receiver's clock is refused."""

_AT_ONE_TIME = 16  # deployments on a target: all of one hybrid time are read to find one by its id
_NOTE, _RECEIVED = "an annotation that was received", "a signature that was received"
_PART = 50  # statements that are merged at once, under the journal's lock
_Time = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
_Id = Annotated[bytes, Meta(min_length=16, max_length=16)]


class SentDeployment(Struct, frozen=True, array_like=True):
    """``returns_to``: of a rollback, the id and hybrid time of what it went back to. ``ahead_ms``:
    of a report, how far the node's clock was ahead of that of the remote that took it first.
    """

    target: str
    time_ns: int
    commit: _Digest
    node: Annotated[bytes, Meta(min_length=NODE, max_length=NODE)]
    recorded_ns: _Time
    hybrid_ns: _Time
    returns_to: tuple[_Id, _Time] | None = None
    ahead_ms: Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)] | None = None

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.node, self.recorded_ns, self.hybrid_ns)

    @property
    def id(self) -> DeploymentId:
        return deployment_id(self.target, self.time_ns, CommitId(self.commit), self.stamp)


class SentRetraction(Struct, frozen=True, array_like=True):
    """Of the deployment with this id and hybrid time."""

    target: str
    id: _Id
    hybrid_ns: _Time


class Tombstone(Struct, frozen=True, array_like=True):
    """The state of ``commit`` was forgotten by name; ``root`` is its Merkle root, if known."""

    commit: _Digest
    root: _Digest | None = None


class Truths(Struct, frozen=True, array_like=True):
    """What one entry says; ``author`` did it at ``time_ns``, because of ``reason``.

    ``annotations`` and ``signatures`` are canonical bytes (``evidence_bytes``,
    ``write_signatures``), texts are bytes of UTF-8. ``replaces``: see ``Entry``; a push compares it
    for statements that the sender itself recorded (``is_own``).
    """

    time_ns: _Time
    author: Annotated[bytes, Meta(max_length=MAX_NAME_BYTES)] = b""
    reason: Annotated[bytes, Meta(max_length=MAX_REASON)] = b""
    deployments: tuple[SentDeployment, ...] = ()
    retractions: tuple[SentRetraction, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    annotations: bytes = b""
    signatures: bytes = b""
    replaces: tuple[tuple[str, _Id], ...] = ()
    is_own: bool = False

    @property
    def targets(self) -> frozenset[str]:
        deployed, retracted = self.deployments, self.retractions
        return frozenset([*(d.target for d in deployed), *(r.target for r in retracted)])

    @property
    def is_report(self) -> bool:
        """Whether nodes report with it what they serve, and nothing else is said."""
        others = self.author or self.reason or self.retractions or self.tombstones
        return (
            bool(self.deployments)
            and not (others or self.annotations or self.signatures)
            and all(is_report(each.target) for each in self.deployments)
        )

    def signatures_but(self, deployments: Container[bytes] | None) -> bytes:
        """Those of versions, and of other deployments than these; None: of no deployment.

        Raises DamagedData.
        """
        every = read_signatures(self.signatures, _RECEIVED) if self.signatures else ()

        def stays(each: Signature) -> bool:
            return deployments is not None and each.deployment not in deployments

        return _signed([each for each in every if not each.target or stays(each)])

    def __bool__(self) -> bool:
        return bool(self.targets or self.tombstones or self.annotations or self.signatures)


def _signed(signatures: Sequence[Signature]) -> bytes:
    return write_signatures(signatures) if signatures else b""


# -- sending -----------------------------------------------------------------------------------


Among = Callable[[CommitId], bool]


class TruthReader:
    """Says what entries say, as it travels.

    What nodes report is left out unless ``reports`` is set.
    """

    def __init__(self, snapshot: Snapshot, *, reports: bool = False) -> None:
        self._snapshot, self._reports = snapshot, reports

    def of(self, recorded: Recorded, among: Among | None = None) -> Truths | None:
        """Of an entry, what it says of versions ``among`` these (None: of all); None if nothing.

        Tombstones are always told. An undo that gives an annotation back tells it again.
        """
        entry, among = recorded.entry, among or (lambda _: True)
        origin = self._given_back(recorded)
        evidence = [e for e in origin.evidence if among(e.commit)]
        signatures = [s for s in entry.signatures if among(s.commit) and self._tells(s.target)]
        found = Truths(
            origin.done_ns,
            encode_text(origin.done_by),
            encode_text(origin.reason),
            deployments=tuple(
                self._deployment(recorded, each)
                for each in entry.deployments
                if self._tells(each.target) and among(each.commit)
            ),
            retractions=tuple(
                sent
                for each in entry.retractions
                if self._tells(each.target) and (sent := self._retraction(each, among)) is not None
            ),
            tombstones=tuple(
                Tombstone(bytes(each.commit), None if each.root is None else bytes(each.root))
                for each in entry.forgotten
                if each.named
            ),
            annotations=evidence_bytes(evidence) if evidence else b"",
            signatures=_signed(signatures),
            replaces=tuple((target, bytes(id_)) for target, id_ in entry.replaces),
            is_own=entry.origin_ns is None,
        )
        return found or None

    def _tells(self, target: str) -> bool:
        return self._reports or not is_report(target)

    def about(self, ids: Collection[CommitId]) -> list[int]:
        """Offsets of the entries that deploy, retract, annotate or sign these, ascending."""
        snapshot = self._snapshot

        def look() -> list[int]:
            found: set[int] = set()
            for id_ in ids:
                for offset in snapshot.deployments_of(id_):
                    recorded = snapshot.entry(offset)
                    found.add(offset)
                    for made in recorded.entry.deployments:
                        taken = snapshot.retractions(made.target, recorded.sequence)
                        found.update(each.offset for each in taken)
                found.update(each.offset for each, _ in snapshot.evidence(id_))
                found.update(each.offset for each, _ in snapshot.signatures(id_))
            return sorted(found)

        return snapshot.retry_on_rewrite(look)

    def tombstones(self, start: Position) -> Iterator[Truths]:
        """What was forgotten by name from ``start`` on, oldest first: it travels first."""
        snapshot = self._snapshot
        every = snapshot.forgetting() if start == GENESIS else snapshot.entries(start)
        for recorded in every:
            if (found := self.of(recorded, lambda _: False)) is not None and found.tombstones:
                stones = found.tombstones
                yield Truths(found.time_ns, found.author, found.reason, tombstones=stones)

    def _given_back(self, recorded: Recorded) -> Entry:
        """The entry itself; without its annotations if they are undone. Of an undo of an undo the
        operation that is in force again.
        """
        snapshot, origin = self._snapshot, recorded
        while origin.entry.undoes is not None and origin.entry.undoes < origin.sequence:
            if (there := snapshot.by_sequence(origin.entry.undoes)) is None:
                break
            origin = there
        entry = origin.entry
        if entry.evidence and undone_by(snapshot, origin.sequence) is not None:
            return replace(recorded.entry, evidence=())
        return entry if entry.evidence else recorded.entry

    def _deployment(self, recorded: Recorded, made: Deployment) -> SentDeployment:
        stamp, back = self._snapshot.stamp_of(recorded, made), None
        if made.returns_to is not None:
            there = self._snapshot.by_sequence(made.returns_to)
            origin = None if there is None else stamping.on(there, made.target)
            if there is not None and origin is not None:
                behind = self._snapshot.stamp_of(there, origin)
                back = bytes(origin.id(behind)), behind.hybrid_ns
        return SentDeployment(
            made.target,
            made.time_ns,
            bytes(made.commit),
            stamp.node,
            recorded_ns=stamp.recorded_ns,
            hybrid_ns=stamp.hybrid_ns,
            returns_to=back,
            ahead_ms=made.ahead_ms,
        )

    def _retraction(self, taken: Retraction, among: Among) -> SentRetraction | None:
        there = self._snapshot.by_sequence(taken.sequence)
        made = None if there is None else stamping.on(there, taken.target)
        if there is None or made is None or not among(made.commit):
            return None
        stamp = self._snapshot.stamp_of(there, made)
        return SentRetraction(taken.target, bytes(made.id(stamp)), stamp.hybrid_ns)


# -- receiving ---------------------------------------------------------------------------------


class Merger:
    """Takes truths over into a repository: one for as many entries as come in together."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known = _OnRecord(context)

    def prepare(self) -> None:
        """Forgets what was kept for others so far. Not under the journal's lock."""
        bury(self._context)

    def merge(
        self, truths: Truths, entry: Entry, own: Collection[CommitId] = ()
    ) -> tuple[Entry, tuple[CommitId, ...]]:
        """``entry`` with what is new here, itself if nothing is; and what is kept for now.

        Call it under the journal's lock, after ``prepare``. ``own``: the versions that the entry
        itself publishes. Kept are versions that were forgotten by name elsewhere and that something
        here stands on: ``hold`` remembers them. Raises RemoteRefused for what is dated too far
        ahead, HistoryMissing for a deployment of a version that is not here, InvalidName,
        InvalidTime, DamagedData.
        """
        context, now_ns = self._context, self._context.store.now_ns()
        check_clock(truths.time_ns, now_ns, "an operation")
        forgotten, weights, held = _forgotten(context, truths, self._known)
        deployments = tuple(_deployments(context, truths, own, now_ns))
        retractions = tuple(_retractions(context.store.snapshot, truths, self._known))
        evidence = tuple(_evidence(context, truths, own, self._known))
        signatures = tuple(_signatures(context, truths, own, self._known))
        if signatures:
            entry = replace(entry, signatures=signatures)
        if not (deployments or retractions or forgotten or evidence):
            return entry, held
        merged = replace(
            entry,
            author=decode_text(truths.author),
            reason=decode_text(truths.reason),
            origin_ns=truths.time_ns,
            deployments=deployments,
            retractions=retractions,
            forgotten=(*forgotten, *entry.forgotten),
            weights=(*weights, *entry.weights),
            evidence=evidence,
            replaces=tuple(
                (target, DeploymentId(id_))
                for target, id_ in truths.replaces
                if target in {d.target for d in deployments} | {r.target for r in retractions}
            ),
        )
        return merged, held


def arrived(truths: Truths, now_ns: int, *, gathered: bool = False) -> Truths:
    """Truths that came just now: of what a node reports, as of this repository's clock.

    What such a report says of the time is when its node sent it, and how far its clock is ahead.
    ``gathered``: truths that went through here before keep their times.
    """
    made = truths.deployments
    if not truths.is_report or (gathered and all(each.ahead_ms is not None for each in made)):
        return truths
    ahead_ms = (truths.time_ns - now_ns) // 10**6
    noted = tuple(replace(each, ahead_ms=ahead_ms) for each in made)
    return replace(truths, time_ns=now_ns, deployments=noted)


def in_parts(truths: Truths) -> Iterator[Truths]:
    """The same in parts of few statements, those on one target one after the other.

    Raises DamagedData.
    """
    every: list[Struct] = [*truths.deployments, *truths.retractions]
    every.sort(key=attrgetter("target"))
    every += truths.tombstones
    every += read_evidence(truths.annotations, _NOTE) if truths.annotations else ()
    every += read_signatures(truths.signatures, _RECEIVED) if truths.signatures else ()
    if len(every) <= _PART:
        yield truths
        return
    replaces = dict(truths.replaces)
    for begin in range(0, len(every), _PART):
        part = every[begin : begin + _PART]
        targets = {
            each.target for each in part if isinstance(each, SentDeployment | SentRetraction)
        }
        evidence = [each for each in part if isinstance(each, Evidence)]
        yield replace(
            truths,
            deployments=tuple(each for each in part if isinstance(each, SentDeployment)),
            retractions=tuple(each for each in part if isinstance(each, SentRetraction)),
            tombstones=tuple(each for each in part if isinstance(each, Tombstone)),
            annotations=evidence_bytes(evidence) if evidence else b"",
            signatures=_signed([each for each in part if isinstance(each, Signature)]),
            replaces=tuple((name, replaces[name]) for name in sorted(targets & replaces.keys())),
        )


def compared(
    snapshot: Snapshot, truths: Truths, standings: Standings
) -> tuple[Truths, tuple[RefusedDeployment, ...]]:
    """What a push may say: without statements that replace what is not live here any more.

    Only statements count that the sender recorded itself. Under the journal's lock.
    """
    refused: list[RefusedDeployment] = []
    for target in truths.targets if truths.is_own else ():
        if is_report(target):
            continue
        new = [d for d in truths.deployments if d.target == target and not _has(snapshot, d)]
        taken = [t for t in truths.retractions if t.target == target and _counts(snapshot, t)]
        if not (new or taken):
            continue
        now_ns, at = truths.time_ns, None
        if new:
            now_ns, at = new[0].recorded_ns, new[0].time_ns
        live = standings.on(target).then(now_ns, at)
        expected = dict(truths.replaces).get(target)
        if expected == (None if live is None else live.id):
            continue
        seen = RefusedDeployment(target, DeploymentId(b""))
        if live is not None:
            seen = replace(seen, live=live.commit, author=live.author, time_ns=live.time_ns)
        refused += (replace(seen, id=each.id) for each in new)
        refused += (replace(seen, id=DeploymentId(each.id), retracts=True) for each in taken)
    if not refused:
        return truths, ()
    targets = {each.target for each in refused}
    kept = replace(
        truths,
        deployments=tuple(d for d in truths.deployments if d.target not in targets),
        retractions=tuple(t for t in truths.retractions if t.target not in targets),
        signatures=truths.signatures_but({bytes(each.id) for each in refused}),
    )
    return kept, tuple(refused)


def _has(snapshot: Snapshot, sent: SentDeployment) -> bool:
    return stamping.with_id(snapshot, sent.target, sent.hybrid_ns, sent.id) is not None


def _counts(snapshot: Snapshot, sent: SentRetraction) -> bool:
    """Whether a retraction changes anything here."""
    number = _number(snapshot, sent.target, (sent.id, sent.hybrid_ns))
    return number is not None and not snapshot.retractions(sent.target, number)


def check_clock(time_ns: int, now_ns: int, what: str) -> None:
    """Raises RemoteRefused for what is dated more than a day ahead."""
    if time_ns > now_ns + AHEAD_NS:
        raise RemoteRefused(
            f"{what} is dated {format_time(time_ns)}, more than a day ahead of the clock here",
            hint="set the clock of the computer that recorded it, or of this one",
        )


def by_name(snapshot: Snapshot) -> frozenset[CommitId]:
    """Versions whose states were forgotten by name here, and must not come back."""
    marks = (each for recorded in snapshot.forgetting() for each in recorded.entry.forgotten)
    return frozenset(each.commit for each in marks if each.named)


def here_again(
    context: Context, ids: Iterable[CommitId], *, asked: bool = False
) -> tuple[CommitId, ...]:
    """Those whose state was forgotten by rule, for the entry that brings their states.

    Raises StateForgotten for one that was forgotten by name. ``asked``: here, and not by who sends.
    """
    marks = [(id_, availability.forgotten(context, id_)) for id_ in ids]
    for id_, mark in marks:
        if mark is not None and mark.named:
            raise StateForgotten(
                f"the state of version {id_.short} was forgotten by name",
                hint=f"it never comes back: 'mvc forget --list {id_.short}' says who forgot it"
                if asked
                else "fetch: then it is forgotten on this side, too",
            )
    return tuple(id_ for id_, mark in marks if mark is not None)


def _deployments(
    context: Context, truths: Truths, own: Collection[CommitId], now_ns: int
) -> Iterator[Deployment]:
    snapshot, seen = context.store.snapshot, set[str]()
    for sent in truths.deployments:
        target, commit = check_ref("deployment target", sent.target), CommitId(sent.commit)
        if is_report(target) and target.count("/") < 2:
            raise InvalidName(
                f"a node reports on {NODES}NAME/TARGET, and not on {target}",
                hint="its name has no '/', and is given with 'mvc follow --as NAME'",
            )
        check_moment(sent.time_ns)
        check_clock(max(sent.recorded_ns, sent.hybrid_ns), now_ns, "a deployment")
        if target in seen:
            raise RemoteRefused(f"an operation deploys twice on {target}")
        seen.add(target)
        if stamping.with_id(snapshot, target, sent.hybrid_ns, sent.id) is not None:
            continue
        if len(snapshot.stamped_at(target, sent.hybrid_ns)) >= _AT_ONE_TIME:
            raise RemoteRefused(
                f"{_AT_ONE_TIME} deployments on {printable(target)} have one hybrid time already",
                hint="no clock makes so many: ask who sends them",
            )
        if commit not in own and not context.store.has_commit(commit):
            raise HistoryMissing(
                f"version {commit.short} was deployed on {target}, and is not here",
                hint="it comes with a fetch or push that names no versions",
            )
        before = snapshot.newest_deployment(target)
        yield Deployment(
            target,
            sent.time_ns,
            commit,
            previous=None if before is None else before.sequence,
            returns_to=_number(snapshot, target, sent.returns_to),
            stamp=sent.stamp,
            ahead_ms=sent.ahead_ms,
        )


def _number(snapshot: Snapshot, target: str, name: tuple[bytes, int] | None) -> int | None:
    """The number here of the operation that recorded a deployment; None if it is not here."""
    if name is None:
        return None
    there = stamping.with_id(snapshot, target, name[1], DeploymentId(name[0]))
    return None if there is None else there.sequence


def _retractions(snapshot: Snapshot, truths: Truths, known: _OnRecord) -> Iterator[Retraction]:
    for sent in truths.retractions:
        target = check_ref("deployment target", sent.target)
        number = _number(snapshot, target, (sent.id, sent.hybrid_ns))
        if number is None:
            continue
        retraction, topic = Retraction(target, number), snapshot.retracting(target, number)
        if not known.has(topic, (_origin(truths), retraction)):
            yield retraction


def _evidence(
    context: Context, truths: Truths, own: Collection[CommitId], known: _OnRecord
) -> Iterator[Evidence]:
    if not truths.annotations:
        return
    for each in read_evidence(truths.annotations, _NOTE):
        if each.commit not in own and not context.store.has_commit(each.commit):
            continue
        check_values(each.metrics, each.params)
        topic = context.store.snapshot.telling(each.commit)
        if not known.has(topic, (_origin(truths), evidence_bytes([each]))):
            yield each


def _signatures(
    context: Context, truths: Truths, own: Collection[CommitId], known: _OnRecord
) -> Iterator[Signature]:
    """Those of versions that are here; what they are worth is found out where it is asked for."""
    if not truths.signatures:
        return
    new = set[Signature]()
    for each in read_signatures(truths.signatures, _RECEIVED):
        if each.commit not in own and not context.store.has_commit(each.commit):
            continue
        if each.target:
            check_ref("deployment target", each.target)
        topic = context.store.snapshot.telling(each.commit)
        if each not in new and not known.has(topic, each):
            new.add(each)
            yield each


class _OnRecord:
    """Statements on record. Each entry is read once, however many are about one subject."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._begin()

    def _begin(self) -> None:
        self._generation = self._context.store.snapshot.generation
        self._read: set[int] = set()  # offsets of entries
        self._reached: dict[bytes, int] = {}  # by topic
        self._rows: set[Hashable] = set()

    def has(self, topic: bytes, row: Hashable) -> bool:
        """Whether an entry under ``topic``, a prefix of keys of the index, has this row."""
        snapshot = self._context.store.snapshot
        if snapshot.generation != self._generation:
            self._begin()
        for offset in snapshot.offsets_under(topic, self._reached.get(topic, 0)):
            self._reached[topic] = offset + 1
            if offset not in self._read:
                self._read.add(offset)
                self._rows.update(_rows(snapshot.entry(offset).entry))
        return row in self._rows


def _rows(entry: Entry) -> Iterator[Hashable]:
    """What an entry says of retractions, annotations, signatures and states forgotten by name."""
    origin = entry.done_ns, entry.done_by, entry.reason
    yield from ((origin, each) for each in entry.retractions)
    yield from ((origin, evidence_bytes([each])) for each in entry.evidence)
    yield from entry.signatures
    for each in entry.forgotten:
        if each.named:
            yield from (each.commit, (origin, each.commit))


def _origin(truths: Truths) -> tuple[int, str, str]:
    return truths.time_ns, decode_text(truths.author), decode_text(truths.reason)


def _forgotten(
    context: Context, truths: Truths, known: _OnRecord
) -> tuple[tuple[Forgotten, ...], tuple[Weights, ...], tuple[CommitId, ...]]:
    """Marks of what is to be forgotten here as well, and what is kept for now."""
    marks: list[Forgotten] = []
    again: list[Weights] = []
    held: list[CommitId] = []
    if truths.tombstones:
        from mvc.maintenance.forget import check_forgettable  # far more than a transfer needs
    for sent in truths.tombstones:
        id_ = CommitId(sent.commit)
        topic = context.store.snapshot.marking(id_)
        if known.has(topic, (_origin(truths), id_)):
            continue
        commit = commits.find(context.store.snapshot, id_)
        try:
            if commit is not None and not known.has(topic, id_):
                again += check_forgettable(context, [commit[1]])
        except RefConflict:
            held.append(id_)
            continue
        root = sent.root if commit is None else commit[1].root
        marks.append(Forgotten(id_, True, None if root is None else Root(root)))
    return tuple(marks), tuple(again), tuple(held)


# -- what is forgotten elsewhere, and kept here for now ----------------------------------------


def held_back(context: Context) -> frozenset[CommitId]:
    """Versions that another repository forgot by name, and that stay here for now.

    Their states are given to nobody.
    """
    return frozenset(CommitId(s.commit) for each in _held(context) for s in each.tombstones)


class Buried(Container[CommitId]):
    """Versions whose states are given to nobody, or not to one who refuses ``without``."""

    def __init__(self, context: Context, without: Collection[CommitId]) -> None:
        self._context, self._ids = context, {*without} | held_back(context)

    def __contains__(self, id_: object) -> bool:
        assert isinstance(id_, CommitId)
        mark = availability.forgotten(self._context, id_)
        return id_ in self._ids or (mark is not None and mark.named)

    def hold(self, recorded: Recorded) -> bool:
        """Whether all that an entry published is among them."""
        published = recorded.entry.commits
        return bool(published) and all(commit.id in self for commit in published)


def bury(context: Context) -> tuple[CommitId, ...]:
    """Forgets what is held back, where nothing stands in the way any more; durable on return."""
    if not (waiting := _held(context)):
        return ()
    store, done = context.store, list[CommitId]()
    for truths in waiting:

        def make(truths: Truths = truths) -> Entry:
            marks, weights, held = _forgotten(context, truths, _OnRecord(context))
            if not marks:  # what was published before is durable by now
                _write_held(context, [each for each in _held(context) if each != truths])
                hold(context, truths, held)
                raise _NothingToBury
            return Entry(
                "forget",
                store.now_ns(),
                "by name",
                author=decode_text(truths.author),
                reason=decode_text(truths.reason),
                origin_ns=truths.time_ns,
                forgotten=marks,
                weights=weights,
            )

        with suppress(_NothingToBury):
            while True:
                done += (each.commit for each in store.publish(make).entry.forgotten)
    return tuple(done)


class _NothingToBury(Exception):
    """It is forgotten already, or still in use."""


def hold(context: Context, truths: Truths, held: Collection[CommitId]) -> None:
    """Remembers tombstones that are not in force yet; under the journal's lock."""
    if not held:
        return
    stones = tuple(each for each in truths.tombstones if each.commit in held)
    kept = Truths(truths.time_ns, truths.author, truths.reason, tombstones=stones)
    if kept not in (waiting := _held(context)):
        _write_held(context, [*waiting, kept])


def _held(context: Context) -> list[Truths]:
    store = context.store
    if store.fs.stat(store.folder / HELD) is None:
        return []
    data = store.fs.read_bytes(store.folder / HELD, MAX_ENTRY)
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, ValueError) as error:
        raise DamagedData(
            f"the file {HELD} is damaged, which lists versions that others have forgotten",
            hint=f"delete .mvc/{HELD}, and .mvc/remotes: then a fetch asks for all of it again",
        ) from error


def _write_held(context: Context, waiting: Sequence[Truths]) -> None:
    store = context.store
    if waiting:
        store.fs.write_atomic(store.folder / HELD, msgspec.msgpack.encode(waiting))
    else:
        store.fs.unlink(store.folder / HELD, missing_ok=True)


_decoder = msgspec.msgpack.Decoder(list[Truths])
