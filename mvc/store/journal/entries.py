"""Entries of the journal, the log of all operations of a repository.

An entry describes one operation, such as a commit or a push. It contains the refs that the
operation changed, its new commits and statements, and which states it stored or deleted. A
*statement* is a record about a version, such as a deployment. An entry does not contain tensors: it
names the regions of packs (files of encoded objects) in which the operation stored them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Literal, TypeVar, get_args

from msgspec import Struct

from mvc.canonical import Reader, Writer
from mvc.ids import CommitId, StatementId
from mvc.limits import (
    MAX_COMMIT,
    MAX_NAME_BYTES,
    MAX_REASON,
    MAX_REF_BYTES,
    MAX_TRACKING_BYTES,
)
from mvc.model.commit import Commit
from mvc.model.statement import (
    MAX_STATEMENT,
    Deployment,
    Retraction,
    Statement,
    Tombstone,
    check_reason,
)
from mvc.names import REMOTE
from mvc.types import FIRST_RELEASE

_MANY = 1_000_000
_FAR = 1 << 62  # bytes
_T = TypeVar("_T")
_S = TypeVar("_S", bound=Statement)

RefValue = CommitId | str | None
"""The value of a ref: a commit, the name of a branch (for HEAD), or None if the ref is missing."""

StateChange = Literal["absent", "forgotten", "stored", "dropped", "no residue"]
STATE_CHANGES: tuple[StateChange, ...] = get_args(StateChange)

RECEIVED = frozenset({"receive", "fetch", "clone"})
"""The operations whose statements come from another repository."""


class Region(Struct, frozen=True):
    """The bytes [start, start + length) of a pack, which are one or more whole records."""

    pack: int
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


class RefChange(Struct, frozen=True):
    """A ref's value before and after the operation."""

    name: str
    old: RefValue
    new: RefValue


class StateMark(Struct, frozen=True):
    """Says whether a version's state is stored here. With ``path``: the weights of this file.

    ``absent``: the state was never received. ``forgotten``: it was deleted by a rule. ``stored``:
    it is stored again. ``dropped``: the weights were deleted, but a recipe can compute them again.
    ``no residue``: no byte of a deleted state is left in the repository.
    """

    commit: CommitId
    change: StateChange
    path: str = ""


class Entry(Struct, frozen=True, dict=True):
    """One operation. ``author``, ``reason``: empty if only its statements or commits have these.

    For a received push, ``author`` is the token or account that pushed. ``undoes``: number of the
    operation that this operation undoes. ``marks``: first 8 bytes of the files' ``state_id``, to
    search versions by file. ``previous``: for each statement, the number of the newest earlier
    entry with a statement on the same topic, or None.
    """

    operation: str
    time_ns: int
    note: str = ""
    author: str = ""
    reason: str = ""
    undoes: int | None = None
    regions: tuple[Region, ...] = ()
    commits: tuple[Commit, ...] = ()
    refs: tuple[RefChange, ...] = ()
    marks: tuple[bytes, ...] = ()
    statements: tuple[Statement, ...] = ()
    previous: tuple[int | None, ...] = ()
    states: tuple[StateMark, ...] = ()

    @property
    def is_received(self) -> bool:
        """Whether the entry's statements come from another repository."""
        return self.operation in RECEIVED

    @property
    def sender(self) -> str:
        """The token or account that pushed the entry's statements and commits; empty if none."""
        return self.author if self.operation == "receive" else ""

    @property
    def done_by(self) -> str:
        """The author of the entry, or else the first author of its statements and commits.

        For an entry from another repository, the authors of statements and commits come first.
        """
        authors = [s.author for s in self.statements] + [c.author for c in self.commits]
        first = next(filter(None, authors), "")
        return first if first and (self.is_received or not self.author) else self.author

    @property
    def why(self) -> str:
        """The reason of the entry, or of its first statement."""
        return self.reason or next((s.reason for s in self.statements), "")

    def of(self, kind: type[_S]) -> tuple[_S, ...]:
        return tuple([s for s in self.statements if isinstance(s, kind)])

    @property
    def deployments(self) -> tuple[Deployment, ...]:
        return self.of(Deployment)

    @property
    def retractions(self) -> tuple[Retraction, ...]:
        return self.of(Retraction)

    @cached_property
    def by_id(self) -> dict[StatementId, Statement]:
        return {s.id: s for s in self.statements}

    def before(self, statement: Statement) -> int | None:
        """The number of the newest earlier entry with a statement on the same topic, or None.

        The topic of a statement is its target. If it has no target, the topic is its kind and
        subject.
        """
        topic = statement.topic
        pairs = zip(self.statements, self._previous, strict=True)
        return next(number for s, number in pairs if s.topic == topic)

    def value_of(self, ref: str) -> RefValue:
        """The value to which the entry sets a ref.

        None if the entry deletes the ref, or does not change the ref.
        """
        return next((change.new for change in reversed(self.refs) if change.name == ref), None)

    def says_of(self, mark: StateChange) -> tuple[CommitId, ...]:
        """The versions whose state the entry changes to ``mark``. Single files do not count."""
        return tuple(s.commit for s in self.states if s.change == mark and not s.path)

    @property
    def forgets(self) -> frozenset[CommitId]:
        """The versions whose states are forgotten, absent or purged since this entry."""
        stones = (CommitId(s.subject) for s in self.of(Tombstone))
        return frozenset([*stones, *self.says_of("forgotten"), *self.says_of("absent")])

    @property
    def about(self) -> frozenset[CommitId]:
        """The versions that must exist in this repository, because statements refer to them.

        Tombstones, which say that a state was deleted, do not count.
        """
        required = (s.commit for s in self.statements if not isinstance(s, Tombstone))
        return frozenset(commit for commit in required if commit is not None)

    @property
    def features(self) -> frozenset[str]:
        """The format features (see ``mvc.store.format``) that a reader of the statements needs."""
        return frozenset([s.feature for s in self.statements]) - {FIRST_RELEASE}

    @cached_property
    def encoded(self) -> bytes:
        writer = Writer().uint(1).text(self.operation).uint(self.time_ns).text(self.note)
        writer.text(self.author).text(check_reason(self.reason)).uint(_or_zero(self.undoes))
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
        writer.uint(len(self.marks))
        for mark in self.marks:
            writer.raw(mark)
        writer.uint(len(self.statements))
        for statement, before in zip(self.statements, self._previous, strict=True):
            writer.blob(statement.encoded).uint(_or_zero(before))
        writer.uint(len(self.states))
        for state in self.states:
            writer.raw(state.commit).text(state.path).uint(STATE_CHANGES.index(state.change))
        return writer.done()

    @property
    def _previous(self) -> tuple[int | None, ...]:
        return self.previous or (None,) * len(self.statements)

    @classmethod
    def decode(cls, data: bytes, where: str) -> Entry:
        """Inverse of ``encoded``. Raises DamagedData if ``data`` is not in canonical form."""
        reader = Reader(data, where)
        reader.version()
        operation, time_ns = reader.text(MAX_REF_BYTES), reader.uint()
        note, author = reader.text(MAX_COMMIT), reader.text(MAX_NAME_BYTES)
        reason, undoes = reader.text(MAX_REASON), _or_none(reader.uint())
        regions = _many(
            reader,
            lambda reader: Region(reader.uint(1 << 32), reader.uint(_FAR), reader.uint(_FAR)),
        )
        commits = _many(reader, lambda reader: Commit.decode(reader.blob(MAX_COMMIT)))
        refs = _many(reader, lambda reader: _read_change(reader, commits))
        marks = _many(reader, lambda reader: reader.raw(8))
        rows = _many(
            reader,
            lambda reader: (
                Statement.decode(reader.blob(MAX_STATEMENT), where),
                _or_none(reader.uint()),
            ),
        )
        states = _many(reader, _read_state)
        reader.end()
        return cls(
            operation,
            time_ns,
            note,
            author,
            reason=reason,
            undoes=undoes,
            regions=regions,
            commits=commits,
            refs=refs,
            marks=marks,
            statements=tuple([statement for statement, _ in rows]),
            previous=tuple([before for _, before in rows]),
            states=states,
        )


def _many(reader: Reader, read: Callable[[Reader], _T]) -> tuple[_T, ...]:
    """Reads a count, and then as many values."""
    count = reader.count(_MANY)
    return tuple([read(reader) for _ in range(count)]) if count else ()


def _read_change(reader: Reader, commits: Sequence[Commit]) -> RefChange:
    name = reader.text(MAX_TRACKING_BYTES)
    if len(name) > MAX_REF_BYTES and not name.startswith(REMOTE):
        raise reader.fail(f"a ref's name is longer than {MAX_REF_BYTES} bytes")
    return RefChange(name, _read_value(reader, commits), _read_value(reader, commits))


def _read_state(reader: Reader) -> StateMark:
    commit, path = CommitId(reader.raw(32)), reader.text(MAX_NAME_BYTES)
    return StateMark(commit, STATE_CHANGES[reader.uint(len(STATE_CHANGES) - 1)], path)


def _or_zero(sequence: int | None) -> int:
    """Encodes None as 0, and each sequence number as the next number."""
    return 0 if sequence is None else sequence + 1


def _or_none(number: int) -> int | None:
    return number - 1 if number else None


# Kinds of encoded ref values. If an entry has one commit, _NEW is this commit, and _PARENT is its
# first parent. So these frequent values take one byte, and not 33 bytes.
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
        return CommitId(reader.raw(32))
    if len(commits) != 1 or (tag == _PARENT and not commits[0].parents):
        raise reader.fail("a ref points to a commit that the entry does not have")
    return commits[0].id if tag == _NEW else commits[0].parents[0]
