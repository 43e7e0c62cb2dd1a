"""The keys of the index: one byte for the table, what is searched, then a journal offset.

Every key ends in the 6-byte offset of the entry that it was made from; the index holds no
values. Integers are big-endian so that byte order is number order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mvc.names import encode_text, is_report
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import Recorded

REF, COMMIT, DEPLOYED, TARGET, RETRACTED, MARK, PACK, BLOB, EDGE, REFLOG, LIVE = (
    b"f", b"c", b"d", b"t", b"x", b"r", b"k", b"b", b"e", b"l", b"v",
)  # fmt: skip
FORGOTTEN, OPERATION, UNDONE, RELINKED, WEIGHTS = b"g", b"o", b"u", b"h", b"w"
EVIDENCE, STAMPED, LATE_STAMP = b"a", b"s", b"n"
_OFFSET = 6
ID_BYTES = 8
_BIAS = 1 << 63
_LAST = (1 << 64) - 1


def number(value: int) -> bytes:
    """A journal offset or sequence number."""
    return value.to_bytes(_OFFSET, "big")


def moment(time_ns: int) -> bytes:
    """A signed nanosecond time in 8 bytes.

    A later time than fits, written under a clock that was wrong, becomes the last moment.
    """
    return min(time_ns + _BIAS, _LAST).to_bytes(8, "big")


def moment_of(key: bytes) -> int:
    """The time in ns before the offset at the end of a key."""
    return int.from_bytes(key[-_OFFSET - 8 : -_OFFSET], "big") - _BIAS


def text(name: str) -> bytes:
    """A name, terminated so that no name is a prefix of another."""
    return encode_text(name) + b"\0"


def offset_of(key: bytes) -> int:
    """The journal offset at the end of a key."""
    return int.from_bytes(key[-_OFFSET:], "big")


def without_offset(key: bytes) -> bytes:
    """A key up to its journal offset."""
    return key[:-_OFFSET]


def name_of(key: bytes) -> str:
    """The name in a key of a table, a name and an offset."""
    return key[1 : -_OFFSET - 1].decode("utf-8", "surrogateescape")


def after(prefix: bytes) -> bytes:
    """The first byte string greater than everything that begins with ``prefix``."""
    return prefix + b"\xff" * 16


def entry_keys(recorded: Recorded) -> Iterator[bytes]:
    """The keys of an entry, without those of its records."""
    entry, at = recorded.entry, number(recorded.offset)
    yield OPERATION + number(recorded.sequence) + at
    for change in entry.refs:
        yield REF + text(change.name) + at
        yield REFLOG + text(change.name) + moment(entry.time_ns) + at
    for commit in entry.commits:
        yield COMMIT + commit.id[:8] + at
        yield MARK + commit.root[:8] + at
    for mark in entry.marks:
        yield MARK + mark + at
    for deployment in entry.deployments:
        yield DEPLOYED + text(deployment.target) + moment(deployment.time_ns) + at
        yield TARGET + text(deployment.target) + at
        if not is_report(deployment.target):
            yield LIVE + deployment.commit[:8] + at
        hybrid = recorded.sequence if deployment.stamp is None else deployment.stamp.hybrid_ns
        yield STAMPED + text(deployment.target) + moment(hybrid) + at
    for late in entry.stamps:
        yield STAMPED + text(late.target) + moment(late.stamp.hybrid_ns) + at
        yield LATE_STAMP + text(late.target) + number(late.sequence) + at
    for retraction in entry.retractions:
        yield RETRACTED + text(retraction.target) + number(retraction.sequence) + at
    marked = (each.commit for each in entry.forgotten)
    for commit_id in {*marked, *entry.gone, *entry.here_again}:
        yield FORGOTTEN + commit_id[:8] + at
    for weights in entry.weights:
        yield WEIGHTS + weights.commit[:8] + at
    for commit_id in entry.told_of:
        yield EVIDENCE + commit_id[:8] + at
    if entry.undoes is not None:
        yield UNDONE + number(entry.undoes) + at
    for relink in entry.relinks:
        yield RELINKED + text(relink.target) + number(relink.sequence) + at
    yield from _pack_keys(entry, at)


def _pack_keys(entry: Entry, at: bytes) -> Iterator[bytes]:
    for pack in sorted({region.pack for region in entry.regions}):
        yield PACK + pack.to_bytes(4, "big") + at


def blob_keys(objects: Iterable[bytes], offset: int) -> list[bytes]:
    """A key for every object in an entry's records; ``objects``: the first bytes of their ids."""
    at = number(offset)
    return [BLOB + each + at for each in objects]


def edge_key(base_offset: int, offset: int) -> bytes:
    """The entry at ``offset`` holds deltas against objects of the entry at ``base_offset``."""
    return EDGE + number(base_offset) + number(offset)
