"""Creates the keys of the index, which finds entries of the journal (the log of all changes).

A key has one byte that names a table, a value to search for, and the offset (6 bytes) of the
journal entry that contains this value. The index is a sorted set of keys. Integers are big-endian,
so that the order of keys is the order of the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mvc.canonical import decode_text
from mvc.model.statement import Deployment, Retraction, Statement
from mvc.names import encode_text, is_report
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import Recorded

REF, COMMIT, COMMITTED, MARK, PACK, BLOB, EDGE, REFLOG, OPERATION, UNDONE = (
    b"f", b"c", b"t", b"r", b"k", b"b", b"e", b"l", b"o", b"u",
)  # fmt: skip
"""Names of tables (``entry_keys``, ``blob_keys`` and ``edge_key`` create their keys)."""
DEPLOYED, ORDER, SUBJECT, STATEMENT = b"d", b"s", b"a", b"n"
"""Names of tables of statements (deployments and other assertions about versions).

The value in a key of ``DEPLOYED`` is target and time. In ``ORDER``: kind, target and hybrid time
(``ordered``). In ``SUBJECT``: kind and subject, or target. In ``STATEMENT``: the statement's id.
"""
OWN, MIXED = b"w", b"x"
"""Names of two tables that find journal entries by the target of their statements.

``OWN``: entries that were recorded in this repository. ``MIXED``: entries that were received from
another repository, and entries that are not in turn (``_is_in_turn``).
"""
STATE, WEIGHTS = b"\x40", b"\x41"
"""Additional kinds in keys of ``SUBJECT``.

``STATE``: the entry says whether a version's state is stored here. ``WEIGHTS``: the entry says
whether the weights of one file are stored here.
"""
_TARGET = b"\x80"
_OFFSET = 6
ID_BYTES = 8
_BIAS = 1 << 63
_LAST = (1 << 64) - 1


def number(value: int) -> bytes:
    """A journal offset or sequence number."""
    return value.to_bytes(_OFFSET, "big")


def moment(time_ns: int) -> bytes:
    """A signed nanosecond time in 8 bytes. A time that does not fit becomes the latest time that
    fits.
    """
    return min(time_ns + _BIAS, _LAST).to_bytes(8, "big")


def moment_of(key: bytes) -> int:
    """The time, in ns, in a key that has a time directly before the offset."""
    return int.from_bytes(key[-_OFFSET - 8 : -_OFFSET], "big") - _BIAS


def text(name: str) -> bytes:
    """A name with a terminator, so that no name is a prefix of another name."""
    return encode_text(name) + b"\0"


def offset_of(key: bytes) -> int:
    """The journal offset at the end of a key."""
    return int.from_bytes(key[-_OFFSET:], "big")


def without_offset(key: bytes) -> bytes:
    """A key without the journal offset at its end."""
    return key[:-_OFFSET]


def name_of(key: bytes) -> str:
    """The name in a key whose value is a name, or (in ``DEPLOYED``) a name and a time."""
    end = -_OFFSET - (9 if key[:1] == DEPLOYED else 1)
    return decode_text(key[1:end])


def after(prefix: bytes) -> bytes:
    """A byte string greater than every key that begins with ``prefix``."""
    return prefix + b"\xff" * 16


def entry_keys(recorded: Recorded) -> Iterator[bytes]:
    """The keys of an entry, except the keys of the objects in its records."""
    entry, at = recorded.entry, number(recorded.offset)
    yield OPERATION + number(recorded.sequence) + at
    for change in entry.refs:
        yield REF + text(change.name) + at
        yield REFLOG + text(change.name) + moment(entry.time_ns) + at
    for commit in entry.commits:
        yield COMMIT + commit.id[:8] + at
        yield COMMITTED + moment(commit.time_ns) + at
        yield MARK + commit.root[:8] + at
    for mark in entry.marks:
        yield MARK + mark + at
    for statement in entry.statements:
        for key in _statement_keys(statement):
            yield key + at
    for target in {s.target for s in entry.statements if s.target}:
        if not entry.is_received:
            yield OWN + text(target) + at
        if entry.is_received or not _is_in_turn(entry, target):
            yield MIXED + text(target) + at
    for state in entry.states:
        yield SUBJECT + (WEIGHTS if state.path else STATE) + state.commit[:ID_BYTES] + at
    if entry.undoes is not None:
        yield UNDONE + number(entry.undoes) + at
    packs = sorted({region.pack for region in entry.regions})
    yield from (PACK + pack.to_bytes(4, "big") + at for pack in packs)


def _statement_keys(statement: Statement) -> Iterator[bytes]:
    yield STATEMENT + statement.id[:ID_BYTES]
    yield topic(statement)
    if not statement.target:
        return
    yield ordered(statement.code, statement.target) + moment(statement.hybrid_ns)
    if isinstance(statement, Deployment):
        yield DEPLOYED + text(statement.target) + moment(statement.time_ns)
        if is_report(statement.target):
            return
    yield about(statement.code, statement.subject)


def _is_in_turn(entry: Entry, target: str) -> bool:
    """Whether an entry's statement on a target takes effect regardless of earlier statements.

    This is false if the clock was set back, if the statement retracts a deployment that is not
    live, or if the entry has several statements on the target.
    """
    first, *rest = (statement for statement in entry.statements if statement.target == target)
    is_live = not isinstance(first, Retraction) or first.replaces == first.subject
    return not rest and first.hybrid_ns == first.recorded_ns and is_live


def topic(statement: Statement) -> bytes:
    """Prefix of the keys of all statements of the same topic as ``statement``.

    Statements have the same topic if they have the same target. Statements without a target have
    the same topic if they have the same kind and the same subject (its first 8 bytes).
    """
    if statement.target:
        return on(statement.target)
    return about(statement.code, statement.subject)


def on(target: str) -> bytes:
    """Prefix of the keys of a target's statements."""
    return SUBJECT + _TARGET + text(target)


def about(code: int, subject: bytes) -> bytes:
    """Prefix of the keys of the statements of one kind about a subject."""
    return SUBJECT + bytes((code,)) + subject[:ID_BYTES]


def ordered(code: int, target: str) -> bytes:
    """Prefix of the keys of the statements of one kind on a target, by hybrid time.

    The hybrid time is the clock's time, or a later time if the clock was set back (docs/format.md,
    "Statements").
    """
    return ORDER + bytes((code,)) + text(target)


def blob_keys(objects: Iterable[bytes], offset: int) -> list[bytes]:
    """Keys for the objects that the journal entry at ``offset`` stored.

    ``objects``: the first bytes of the ids of these objects.
    """
    at = number(offset)
    return [BLOB + prefix + at for prefix in objects]


def edge_key(base_offset: int, offset: int) -> bytes:
    """Says that the entry at ``offset`` has deltas from objects of the entry at ``base_offset``."""
    return EDGE + number(base_offset) + number(offset)
