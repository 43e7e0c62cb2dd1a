"""The content of a journal entry: refs moved, commits published, deployments, retractions.

An entry is an operation. It names the pack regions it makes part of the repository
and carries the canonical bytes of the commits it publishes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from mvc.errors import DamagedData, WrongUsage
from mvc.ids import CommitId, DeploymentId, Root
from mvc.limits import (
    MAX_COMMIT,
    MAX_MESSAGE,
    MAX_NAME_BYTES,
    MAX_REASON,
    MAX_REF_BYTES,
    MAX_TRACKING_BYTES,
)
from mvc.model.canonical import Reader, Writer, decode_text, signed
from mvc.model.commit import Commit, read_metrics, read_params, write_metrics, write_params
from mvc.model.layout import Forms, number
from mvc.names import REMOTE, encode_text
from mvc.store.journal.signatures import Signature, read_signatures, write_signatures
from mvc.store.journal.stamps import (
    LateStamp,
    Replaces,
    Stamp,
    check_all_known,
    deployment_id,
    read_replaces,
    read_stamps,
    write_replaces,
    write_stamps,
)

_AUTHOR, _REASON, _RETURNS, _EVIDENCE, _ROOTS = "author", "reason", "returns", "evidence", "roots"
_GONE, _STAMPS, _HERE_AGAIN, _ORIGIN, _AHEAD = "gone", "stamps", "here again", "origin", "ahead"
_SIGNED, _REPLACES, _SENDER = "signed", "replaces", "sender"
_FREE = frozenset({_STAMPS, _REPLACES})
_LARGEST = 1 << 24  # bytes of an entry
_FURTHER = {
    _AUTHOR: MAX_NAME_BYTES, _REASON: MAX_REASON, _RETURNS: MAX_COMMIT, _EVIDENCE: 2 * MAX_COMMIT,
    _ROOTS: _LARGEST, _GONE: _LARGEST, _STAMPS: _LARGEST, _HERE_AGAIN: _LARGEST, _ORIGIN: 10,
    _AHEAD: _LARGEST, _SIGNED: _LARGEST, _REPLACES: _LARGEST, _SENDER: MAX_NAME_BYTES,
}  # fmt: skip
"""The fields that stand last, with the most bytes of each."""
_MANY = 1_000_000
_FAR = 1 << 62  # bytes
_T = TypeVar("_T")

RefValue = CommitId | str | None
"""A commit, the name of another ref (HEAD on a branch), or nothing."""


class Region(Struct, frozen=True):
    """Bytes [start, start + length) of a pack, a whole number of records."""

    pack: int
    start: int
    length: int


class RefChange(Struct, frozen=True):
    """A ref's value before and after the operation."""

    name: str
    old: RefValue
    new: RefValue


class Deployment(Struct, frozen=True):
    """``commit`` went live on ``target`` at ``time_ns``.

    ``previous`` is the sequence number of the target's deployment recorded before this
    one, or None: a gap in the evidence is seen. ``returns_to``: of a rollback, the sequence number
    of the deployment that it went back to. ``stamp``: see ``Snapshot.stamp_of`` for one without.
    ``ahead_ms``: of what a node
    reports, how far its clock was ahead when the report came, in milliseconds.
    """

    target: str
    time_ns: int
    commit: CommitId
    previous: int | None
    returns_to: int | None = None
    stamp: Stamp | None = None
    ahead_ms: int | None = None

    def id(self, stamp: Stamp) -> DeploymentId:
        """Its name in every repository, given its stamp."""
        return deployment_id(self.target, self.time_ns, self.commit, stamp)


class Retraction(Struct, frozen=True):
    """Retracts the deployment on ``target`` that entry ``sequence`` recorded."""

    target: str
    sequence: int


class Relink(Struct, frozen=True):
    """Corrects the predecessor of the deployment on ``target`` that entry ``sequence`` recorded.

    From then on ``previous`` replaces what the deployment itself says.
    """

    target: str
    sequence: int
    previous: int | None


class Forgotten(Struct, frozen=True):
    """The content of ``commit`` is deleted; the commit itself stays.

    ``named``: the user named it, so none of its bytes may stay as bases of other versions.
    ``root``: its Merkle root, None if an earlier version of mvc recorded this.
    """

    commit: CommitId
    named: bool
    root: Root | None = None


class Weights(Struct, frozen=True):
    """What became of the weights that the recipe of ``commit`` makes at ``path``.

    ``kind``: ``proven`` (a replay made them again), ``dropped`` (given up; the recipe stays) or
    ``restored`` (stored again). ``milliseconds`` are those of the last replay, or of the training
    if there was none; ``where`` is the environment of that replay, empty without one.
    """

    commit: CommitId
    kind: str
    path: str
    milliseconds: int
    where: str = ""


class Evidence(Struct, frozen=True):
    """What somebody found out about ``commit`` later: metrics and params by name, a note."""

    commit: CommitId
    metrics: Mapping[str, float] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


_WEIGHTS = ("proven", "dropped", "restored")


class Entry(Struct, frozen=True, dict=True):
    """One operation. ``removed``: paths to leave out of the next commit, None if untouched.

    ``marks``: the first 8 bytes of content roots, for finding versions by content.
    ``undoes``: the sequence number of the operation that this one takes back.
    ``author`` and ``reason``: who did it, and why; empty if that is not recorded.
    ``gone``: forgotten versions of whose states no byte is left in the repository's files.
    ``evidence``: annotations of versions.
    ``stamps``: of deployments that earlier entries recorded. ``here_again``: versions whose state,
    forgotten by rule, is stored again; it ends no mark by name. ``origin_ns``: when the operation
    was done in the repository that it comes from; None: in this one. ``signatures``: of versions
    and deployments, its own or others. ``replaces``: by target what was live there when the
    operation was recorded (of a dated deployment, at its time); no entry where nothing was.
    ``sender``: the token or account that pushed it here.
    """

    operation: str
    time_ns: int
    note: str = ""
    regions: tuple[Region, ...] = ()
    commits: tuple[Commit, ...] = ()
    refs: tuple[RefChange, ...] = ()
    deployments: tuple[Deployment, ...] = ()
    retractions: tuple[Retraction, ...] = ()
    removed: tuple[str, ...] | None = None
    marks: tuple[bytes, ...] = ()
    forgotten: tuple[Forgotten, ...] = ()
    undoes: int | None = None
    relinks: tuple[Relink, ...] = ()
    weights: tuple[Weights, ...] = ()
    author: str = ""
    reason: str = ""
    evidence: tuple[Evidence, ...] = ()
    gone: tuple[CommitId, ...] = ()
    stamps: tuple[LateStamp, ...] = ()
    here_again: tuple[CommitId, ...] = ()
    origin_ns: int | None = None
    signatures: tuple[Signature, ...] = ()
    replaces: Replaces = ()
    sender: str = ""

    @property
    def done_by(self) -> str:
        """Who did it, as far as recorded; of a commit its author."""
        return self.author or next((commit.author for commit in self.commits), "")

    @property
    def lacking(self) -> frozenset[CommitId]:
        """The versions that it publishes without their states, which never came."""
        own = {commit.id for commit in self.commits} if self.forgotten else set()
        return frozenset(each.commit for each in self.forgotten if each.commit in own)

    @property
    def absent(self) -> frozenset[CommitId]:
        """Those of them that nobody forgot by name: a fetch may bring their states."""
        return self.lacking - {each.commit for each in self.forgotten if each.named}

    @property
    def done_ns(self) -> int:
        """When it was done, in whatever repository, in ns since 1970."""
        return self.time_ns if self.origin_ns is None else self.origin_ns

    @property
    def told_of(self) -> frozenset[CommitId]:
        """The versions of which its evidence and its signatures say something."""
        signed = {each.commit for each in self.signatures}
        return frozenset(signed.union(each.commit for each in self.evidence))

    def _further(self) -> dict[str, bytes]:
        """The fields that stand last, those that are not empty."""
        found: dict[str, bytes] = {}
        if self.author:
            found[_AUTHOR] = encode_text(self.author)
        if self.reason:
            found[_REASON] = encode_text(self.reason)
            if len(found[_REASON]) > MAX_REASON:
                raise WrongUsage(f"the reason is longer than {MAX_REASON:,} bytes")
        returns = [_or_zero(each.returns_to) for each in self.deployments]
        if any(returns):
            found[_RETURNS] = Writer().uints(returns).done()
        if self.evidence:
            found[_EVIDENCE] = evidence_bytes(self.evidence)
        if any(each.root is not None for each in self.forgotten):
            found[_ROOTS] = b"".join(each.root or bytes(32) for each in self.forgotten)
        if self.gone:
            found[_GONE] = b"".join(self.gone)
        own = [(each.target, each.stamp) for each in self.deployments if each.stamp is not None]
        if own or self.stamps:
            found[_STAMPS] = write_stamps(own, self.stamps)
        if self.here_again:
            found[_HERE_AGAIN] = b"".join(self.here_again)
        if self.origin_ns is not None:
            found[_ORIGIN] = Writer().uint(self.origin_ns).done()
        if any(each.ahead_ms is not None for each in self.deployments):
            found[_AHEAD] = _write_ahead(self.deployments)
        if self.signatures:
            found[_SIGNED] = write_signatures(self.signatures)
        if self.replaces:
            found[_REPLACES] = write_replaces(self.replaces)
        if self.sender:
            found[_SENDER] = encode_text(self.sender)
        return found

    @cached_property
    def encoded(self) -> bytes:
        writer = Writer().uint(1).text(self.operation).uint(self.time_ns).text(self.note)
        writer.uint(len(self.regions))
        for region in self.regions:
            writer.uint(region.pack).uint(region.start).uint(region.length)
        writer.uint(len(self.commits))
        for commit in self.commits:
            writer.blob(commit.encoded)
        writer.uint(len(self.refs))
        for change in self.refs:
            writer.text(change.name)
            _write_value(writer, change.old, self.commits)
            _write_value(writer, change.new, self.commits)
        writer.uint(len(self.deployments))
        for deployment in self.deployments:
            writer.text(deployment.target).sint(deployment.time_ns)
            _write_value(writer, deployment.commit, self.commits)
            writer.uint(_or_zero(deployment.previous))
        writer.uint(len(self.retractions))
        for retraction in self.retractions:
            writer.text(retraction.target).uint(retraction.sequence)
        _write_removed(writer, self.removed)
        writer.uint(len(self.marks))
        for mark in self.marks:
            writer.raw(mark)
        writer.uint(len(self.forgotten))
        for each in self.forgotten:
            writer.raw(each.commit).uint(1 if each.named else 0)
        writer.uint(_or_zero(self.undoes))
        _write_relinks(writer, self.relinks)
        _write_weights(writer, self.weights)
        further = self._further()
        for name in _FURTHER:
            writer.blob(further.get(name, b""))
        return writer.done()

    @classmethod
    def decode(cls, data: bytes, where: str) -> Entry:
        """Raises DamagedData unless ``data`` is canonical."""
        if (found := _forms.read(data)) is not None:
            return found
        reader = Reader(data, where)
        reader.version()
        operation, time_ns = reader.text(MAX_REF_BYTES), reader.free_uint()
        note = reader.text(MAX_COMMIT)
        regions = _many(reader, _read_region)
        commits = _many(reader, lambda reader: Commit.decode(reader.free_blob(MAX_COMMIT)))
        refs = _many(reader, lambda reader: _read_change(reader, commits))
        deployments = _many(reader, lambda reader: _read_deployment(reader, commits))
        retractions = _many(
            reader, lambda reader: Retraction(reader.text(MAX_REF_BYTES), reader.uint())
        )
        removed = None
        if count := reader.uint(_MANY):
            removed = tuple(reader.text(MAX_NAME_BYTES) for _ in range(count - 1))
        marks = _many(reader, lambda reader: reader.free_raw(8))
        forgotten = _many(reader, _read_forgotten)
        undoes = _or_none(reader.uint())
        relinks = _many(reader, _read_relink)
        weights = _many(reader, _read_weights)
        fields = {}
        for name, most in _FURTHER.items():
            if value := (reader.free_blob if name in _FREE else reader.blob)(most):
                fields[name] = value
        reader.end()
        own, late = read_stamps(fields[_STAMPS], where) if _STAMPS in fields else ({}, ())
        deployments = _stamped(_returning(deployments, fields.get(_RETURNS), where), own, where)
        deployments = _ahead(deployments, fields.get(_AHEAD), where)
        made = cls(
            operation,
            time_ns,
            note,
            regions,
            commits=commits,
            refs=refs,
            deployments=deployments,
            retractions=retractions,
            removed=removed,
            marks=marks,
            forgotten=_rooted(forgotten, fields.get(_ROOTS), where),
            undoes=undoes,
            relinks=relinks,
            weights=weights,
            gone=_ids(fields.get(_GONE, b""), where),
            stamps=late,
            here_again=_ids(fields.get(_HERE_AGAIN, b""), where),
            origin_ns=_origin(fields.get(_ORIGIN), where),
            author=decode_text(fields.get(_AUTHOR, b"")),
            reason=decode_text(fields.get(_REASON, b"")),
            evidence=read_evidence(fields.get(_EVIDENCE, b"\0"), where),
            signatures=read_signatures(fields.get(_SIGNED, b"\0"), where),
            replaces=read_replaces(fields.get(_REPLACES, b"\0"), where),
            sender=decode_text(fields.get(_SENDER, b"")),
        )
        if made._further() != fields:
            raise reader.fail("it is not in canonical form")
        if _is_form(made) and made.encoded == data:
            _forms.add(data, reader.fields, made)
        return made


def evidence_bytes(evidence: Sequence[Evidence]) -> bytes:
    """Annotations in canonical form: equal ones have equal bytes, also with a NaN."""
    writer = Writer().uint(len(evidence))
    for each in evidence:
        writer.raw(each.commit)
        write_metrics(writer, each.metrics)
        write_params(writer, each.params)
        writer.text(each.note)
    return writer.done()


def read_evidence(data: bytes, where: str) -> tuple[Evidence, ...]:
    """The annotations that have these bytes. Raises DamagedData."""
    reader = Reader(data, where)

    def read(reader: Reader) -> Evidence:
        id_, metrics = CommitId(reader.raw(32)), read_metrics(reader)
        return Evidence(id_, metrics, read_params(reader), reader.text(MAX_MESSAGE))

    evidence = _many(reader, read)
    reader.end()
    return evidence


def _is_form(entry: Entry) -> bool:
    """Whether an entry publishes at most one commit, and has no fields that are rare."""
    if entry.forgotten or entry.undoes is not None or entry.relinks or entry.weights or entry.gone:
        return False
    if entry.stamps or entry.here_again or entry.origin_ns is not None or entry.signatures:
        return False
    if len(entry.deployments) > 1 or any(each.ahead_ms is not None for each in entry.deployments):
        return False
    return len(entry.commits) <= 1 and not entry.evidence


def _like(known: Entry, fields: Sequence[bytes]) -> Entry:
    """The entry with these fields that is like another one in all else."""
    field = iter(fields).__next__
    time_ns = number(field())
    regions = [Region(r.pack, number(field(), _FAR), number(field(), _FAR)) for r in known.regions]
    commits = tuple([Commit.decode(field()) for _ in known.commits])
    ids: dict[Any, Any] = {None: None}  # what needs no field of its own
    for old, new in zip(known.commits, commits, strict=True):
        if len(new.parents) != len(old.parents):
            raise ValueError("what it names as the parent is something else")
        ids[old.id] = new.id
        ids.update(zip(old.parents[:1], new.parents[:1], strict=True))

    def value(old: Any) -> Any:
        if old in ids or isinstance(old, str):
            return ids.get(old, old)
        return CommitId(field())

    refs = [RefChange(each.name, value(each.old), value(each.new)) for each in known.refs]
    deployments = []
    for each in known.deployments:
        at, commit = signed(number(field())), value(each.commit)
        previous = _or_none(number(field()))
        deployments.append(replace(each, time_ns=at, commit=commit, previous=previous))
    marks = tuple([field() for _ in known.marks])
    if stamps := field():
        deployments = [replace(d, stamp=_stamp_like(d.target, stamps)) for d in deployments]
    replaces = known.replaces
    if data := field():
        replaces = tuple([(target, DeploymentId(data[-16:])) for target, _ in replaces])
        if data != write_replaces(replaces):
            raise ValueError("it says something else of what it replaces")
    return replace(
        known,
        time_ns=time_ns,
        regions=tuple(regions),
        commits=commits,
        refs=tuple(refs),
        deployments=tuple(deployments),
        marks=marks,
        replaces=replaces,
    )


def _stamp_like(target: str, data: bytes) -> Stamp:
    """The stamp of an entry's only deployment; ValueError if the field says something else."""
    try:
        own, _ = read_stamps(data, "")
    except DamagedData as error:
        raise ValueError from error
    if write_stamps(own.items(), ()) != data or own.keys() != {target}:
        raise ValueError("it stamps something else")
    return own[target]


_forms = Forms(_like)


def _many(reader: Reader, read: Callable[[Reader], _T]) -> tuple[_T, ...]:
    """A number, and so many values."""
    count = reader.count(_MANY)
    return tuple([read(reader) for _ in range(count)]) if count else ()


def _read_region(reader: Reader) -> Region:
    return Region(reader.uint(1 << 32), reader.free_uint(_FAR), reader.free_uint(_FAR))


def _read_change(reader: Reader, commits: Sequence[Commit]) -> RefChange:
    name = reader.text(MAX_TRACKING_BYTES)
    if len(name) > MAX_REF_BYTES and not name.startswith(REMOTE):
        raise reader.fail(f"the name of a ref is longer than {MAX_REF_BYTES} bytes")
    return RefChange(name, _read_value(reader, commits), _read_value(reader, commits))


def _read_forgotten(reader: Reader) -> Forgotten:
    return Forgotten(CommitId(reader.raw(32)), bool(reader.uint(1)))


def _write_relinks(writer: Writer, relinks: Sequence[Relink]) -> None:
    writer.uint(len(relinks))
    for each in relinks:
        writer.text(each.target).uint(each.sequence)
        writer.uint(_or_zero(each.previous))


def _read_relink(reader: Reader) -> Relink:
    return Relink(reader.text(MAX_REF_BYTES), reader.uint(), _or_none(reader.uint()))


def _write_weights(writer: Writer, weights: Sequence[Weights]) -> None:
    writer.uint(len(weights))
    for each in weights:
        writer.raw(each.commit).uint(_WEIGHTS.index(each.kind)).text(each.path)
        writer.uint(each.milliseconds).text(each.where)


def _read_weights(reader: Reader) -> Weights:
    return Weights(
        CommitId(reader.raw(32)),
        _WEIGHTS[reader.uint(len(_WEIGHTS) - 1)],
        reader.text(MAX_NAME_BYTES),
        reader.uint(1 << 62),
        where=reader.text(MAX_NAME_BYTES),
    )


def _returning(
    deployments: tuple[Deployment, ...], data: bytes | None, where: str
) -> tuple[Deployment, ...]:
    """Deployments with what they went back to."""
    if data is None:
        return deployments
    reader = Reader(data, where)
    returns = reader.uints(len(deployments))
    reader.end()
    if len(returns) != len(deployments):
        raise reader.fail("it says of other deployments what they went back to")
    pairs = zip(deployments, returns, strict=True)
    return tuple(replace(each, returns_to=_or_none(to)) for each, to in pairs)


def _stamped(
    deployments: tuple[Deployment, ...], own: Mapping[str, Stamp], where: str
) -> tuple[Deployment, ...]:
    """Deployments with their stamps."""
    if not own:
        return deployments
    check_all_known(own, [each.target for each in deployments], where)
    return tuple(replace(each, stamp=own.get(each.target)) for each in deployments)


def _write_ahead(deployments: Sequence[Deployment]) -> bytes:
    writer = Writer().uint(len(deployments))
    for each in deployments:
        writer.uint(0 if each.ahead_ms is None else 1)
        if each.ahead_ms is not None:
            writer.sint(each.ahead_ms)
    return writer.done()


def _ahead(
    deployments: tuple[Deployment, ...], data: bytes | None, where: str
) -> tuple[Deployment, ...]:
    """Reports with what is known of their nodes' clocks."""
    if data is None:
        return deployments
    reader = Reader(data, where)
    found = _many(reader, lambda reader: reader.sint() if reader.uint(1) else None)
    reader.end()
    if len(found) != len(deployments):
        raise reader.fail("it says of other deployments how clocks were ahead")
    pairs = zip(deployments, found, strict=True)
    return tuple(replace(each, ahead_ms=ahead_ms) for each, ahead_ms in pairs)


def _origin(data: bytes | None, where: str) -> int | None:
    if data is None:
        return None
    reader = Reader(data, where)
    time_ns = reader.uint(1 << 63)
    reader.end()
    return time_ns


def _rooted(
    forgotten: tuple[Forgotten, ...], data: bytes | None, where: str
) -> tuple[Forgotten, ...]:
    """Forgotten versions with their roots."""
    if data is None:
        return forgotten
    roots = _digests(data, where)
    if len(roots) != len(forgotten):
        raise Reader(data, where).fail("it has roots of other states than those forgotten")
    pairs = zip(forgotten, roots, strict=True)
    return tuple(replace(each, root=Root(root) if any(root) else None) for each, root in pairs)


def _ids(data: bytes, where: str) -> tuple[CommitId, ...]:
    return tuple(map(CommitId, _digests(data, where)))


def _digests(data: bytes, where: str) -> list[bytes]:
    if len(data) % 32:
        raise Reader(data, where).fail("a list of hashes is cut off")
    return [data[at : at + 32] for at in range(0, len(data), 32)]


def _or_zero(sequence: int | None) -> int:
    """A number of which 0 says that there is none."""
    return 0 if sequence is None else sequence + 1


def _or_none(number: int) -> int | None:
    return number - 1 if number else None


def _write_removed(writer: Writer, removed: Sequence[str] | None) -> None:
    writer.uint(0 if removed is None else len(removed) + 1)
    for path in removed or ():
        writer.text(path)


# A value that the entry's own commits already say costs one byte instead of 33.
_NONE, _ID, _NAME, _NEW, _PARENT = range(5)


def _write_value(writer: Writer, value: RefValue, commits: Sequence[Commit]) -> None:
    if value is None:
        writer.uint(_NONE)
    elif isinstance(value, str):
        writer.uint(_NAME).text(value)
    elif len(commits) == 1 and value == commits[0].id:
        writer.uint(_NEW)
    elif len(commits) == 1 and commits[0].parents[:1] == (value,):
        writer.uint(_PARENT)
    else:
        writer.uint(_ID).raw(value)


def _read_value(reader: Reader, commits: Sequence[Commit]) -> RefValue:
    tag = reader.uint(_PARENT)
    if tag == _NONE:
        return None
    if tag == _NAME:
        return reader.text(MAX_REF_BYTES)
    if tag == _ID:
        return CommitId(reader.free_raw(32))
    if len(commits) != 1 or (tag == _PARENT and not commits[0].parents):
        raise reader.fail("a ref points to a commit that is not there")
    return commits[0].id if tag == _NEW else commits[0].parents[0]


def _read_deployment(reader: Reader, commits: Sequence[Commit]) -> Deployment:
    target, time_ns = reader.text(MAX_REF_BYTES), signed(reader.free_uint())
    commit, previous = _read_value(reader, commits), _or_none(reader.free_uint())
    if not isinstance(commit, CommitId):
        raise reader.fail("a deployment names no commit")
    return Deployment(target, time_ns, commit, previous)
