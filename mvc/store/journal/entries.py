"""The content of a journal entry: refs moved, commits published, statements, states.

An entry is an operation. It names the pack regions it makes part of the repository
and carries the canonical bytes of the commits and statements it publishes.
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
"""A commit, the name of another ref (HEAD on a branch), or nothing."""

What = Literal["absent", "forgotten", "stored", "dropped", "no residue"]
WHAT: tuple[What, ...] = get_args(What)

RECEIVED = frozenset({"receive", "fetch", "clone"})
"""Operations whose statements were made elsewhere."""


class Region(Struct, frozen=True):
    """Bytes [start, start + length) of a pack, a whole number of records."""

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
    """What became here of the state of ``commit``, or with a path of its weights there.

    ``absent``: it did not come with the commit. ``forgotten``: deleted by a rule. ``stored``: it is
    stored again. ``dropped``: the recipe makes the weights again. ``no residue``: no byte is left
    of a state that is gone.
    """

    commit: CommitId
    what: What
    path: str = ""


class Entry(Struct, frozen=True, dict=True):
    """One operation.

    ``author`` and ``reason``: who did it, and why; empty where statements or commits say it. Of a
    push that came in, the token or account that pushed.
    ``undoes``: the sequence number of the operation that this one takes back.
    ``marks``: the first 8 bytes of content roots, for finding versions by content.
    ``previous``: for each of the ``statements`` the number of the entry before this one with a
    statement of its topic, or None; publishing finds them.
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
        """Whether another repository made its statements."""
        return self.operation in RECEIVED

    @property
    def sender(self) -> str:
        """The token or account that pushed it here."""
        return self.author if self.operation == "receive" else ""

    @property
    def done_by(self) -> str:
        """Who did it, as far as recorded: by a statement or a commit, or by the entry itself."""
        authors = [each.author for each in self.statements] + [c.author for c in self.commits]
        says = next(filter(None, authors), "")
        return says if says and (self.is_received or not self.author) else self.author

    @property
    def why(self) -> str:
        """Its reason, or that of a statement."""
        return self.reason or next((each.reason for each in self.statements), "")

    def of(self, kind: type[_S]) -> tuple[_S, ...]:
        """Its statements of one kind."""
        return tuple([each for each in self.statements if isinstance(each, kind)])

    @property
    def deployments(self) -> tuple[Deployment, ...]:
        return self.of(Deployment)

    @property
    def retractions(self) -> tuple[Retraction, ...]:
        return self.of(Retraction)

    @cached_property
    def by_id(self) -> dict[StatementId, Statement]:
        """Its statements by their ids."""
        return {each.id: each for each in self.statements}

    def before(self, statement: Statement) -> int | None:
        """The number of the entry before this one with a statement of the same topic."""
        topic = statement.topic
        pairs = zip(self.statements, self._previous, strict=True)
        return next(number for each, number in pairs if each.topic == topic)

    def value_of(self, ref: str) -> RefValue:
        """What it sets a ref to; None also for a ref that it does not change."""
        return next((change.new for change in reversed(self.refs) if change.name == ref), None)

    def says_of(self, what: What) -> tuple[CommitId, ...]:
        """The versions whose whole state it says this of."""
        return tuple(each.commit for each in self.states if each.what == what and not each.path)

    @property
    def forgets(self) -> frozenset[CommitId]:
        """The versions whose states are gone by it: deleted by name or rule, or never here."""
        stones = (CommitId(each.subject) for each in self.of(Tombstone))
        return frozenset([*stones, *self.says_of("forgotten"), *self.says_of("absent")])

    @property
    def about(self) -> frozenset[CommitId]:
        """The versions that its statements are about and that must be here."""
        found = (each.commit for each in self.statements if not isinstance(each, Tombstone))
        return frozenset(each for each in found if each is not None)

    @property
    def features(self) -> frozenset[str]:
        """What a reader of its statements must know beyond the first release."""
        return frozenset([each.feature for each in self.statements]) - {FIRST_RELEASE}

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
        for each, before in zip(self.statements, self._previous, strict=True):
            writer.blob(each.encoded).uint(_or_zero(before))
        writer.uint(len(self.states))
        for state in self.states:
            writer.raw(state.commit).text(state.path).uint(WHAT.index(state.what))
        return writer.done()

    @property
    def _previous(self) -> tuple[int | None, ...]:
        return self.previous or (None,) * len(self.statements)

    @classmethod
    def decode(cls, data: bytes, where: str) -> Entry:
        """Raises DamagedData unless ``data`` is canonical."""
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
    """A number, and so many values."""
    count = reader.count(_MANY)
    return tuple([read(reader) for _ in range(count)]) if count else ()


def _read_change(reader: Reader, commits: Sequence[Commit]) -> RefChange:
    name = reader.text(MAX_TRACKING_BYTES)
    if len(name) > MAX_REF_BYTES and not name.startswith(REMOTE):
        raise reader.fail(f"the name of a ref is longer than {MAX_REF_BYTES} bytes")
    return RefChange(name, _read_value(reader, commits), _read_value(reader, commits))


def _read_state(reader: Reader) -> StateMark:
    commit, path = CommitId(reader.raw(32)), reader.text(MAX_NAME_BYTES)
    return StateMark(commit, WHAT[reader.uint(len(WHAT) - 1)], path)


def _or_zero(sequence: int | None) -> int:
    """A number of which 0 says that there is none."""
    return 0 if sequence is None else sequence + 1


def _or_none(number: int) -> int | None:
    return number - 1 if number else None


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
        return CommitId(reader.raw(32))
    if len(commits) != 1 or (tag == _PARENT and not commits[0].parents):
        raise reader.fail("a ref points to a commit that is not there")
    return commits[0].id if tag == _NEW else commits[0].parents[0]
