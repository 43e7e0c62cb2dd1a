"""Keys of the index: one byte that names a table, a value to search for, then a journal offset.

The offset (6 bytes) is where the journal entry with this value begins. The index stores keys
without values. Integers are big-endian, so that the order of keys is the order of the numbers.
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
"""Tables of entries, by what an entry has (``entry_keys``, ``blob_keys``, ``edge_key``)."""
DEPLOYED, ORDER, SUBJECT, STATEMENT = b"d", b"s", b"a", b"n"
"""Tables of statements (deployments and other assertions about versions).

Their keys are: in ``DEPLOYED`` target and time; in ``ORDER`` kind, target and hybrid time
(``ordered``); in ``SUBJECT`` kind and subject, or target; in ``STATEMENT`` the id.
"""
OWN, MIXED = b"w", b"x"
"""Tables of operations, by target.

``OWN`` has the operations that were recorded in this repository. ``MIXED`` has those that were
received or are not in turn (``_is_in_turn``).
"""
STATE, WEIGHTS = b"\x40", b"\x41"
"""Kinds of marks. Keys of ``SUBJECT`` use them like kinds of statements.

A mark says whether a version's state (``STATE``) or one file's weights (``WEIGHTS``) are stored.
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
    """A signed nanosecond time in 8 bytes.

    A time that is too late for 8 bytes, because a clock was wrong, becomes the latest time that
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
    """The name in a key of table, name and offset. Keys in ``DEPLOYED`` also have a time."""
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

    A topic is a target. For statements without a target, it is one kind and one subject. Subjects
    with equal first bytes share a prefix.
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
    """A key for every object in the records of the entry at ``offset``.

    ``objects``: first bytes of the ids of these objects.
    """
    at = number(offset)
    return [BLOB + prefix + at for prefix in objects]


def edge_key(base_offset: int, offset: int) -> bytes:
    """Says that the entry at ``offset`` has deltas from objects of the entry at ``base_offset``."""
    return EDGE + number(base_offset) + number(offset)
