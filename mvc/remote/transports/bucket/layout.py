"""Encodes and decodes the objects of a remote in a bucket, such as S3 (docs/format.md).

The objects are a head, parts of the journal (the log of operations), and packs (files of records
with tensors). The head names the parts. Each part names the packs that its entries need. Only the
head changes. The name of a part or pack is its hash. An attacker may have forged any object. So
lengths are checked before data are fetched, and hashes before data are used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

from blake3 import blake3
from msgspec import Struct

from mvc.canonical import Reader, Writer
from mvc.errors import DamagedData, UnsupportedFormat
from mvc.ids import DIGEST_SIZE
from mvc.limits import MAX_ENTRY, MAX_RECORD_HEADER, MIB
from mvc.store.journal.frames import GENESIS, Position, single_frames
from mvc.store.packs.reader import PACK_HEADER
from mvc.store.packs.records import CHECK_SIZE, PREFIX_SIZE, read_prefix

HEAD, JOURNAL_PARTS, PACK_OBJECTS, DROPPED = "head", "journal/", "packs/", "dropped/"
MAX_HEAD = 16 << 10
PART = MIB  # a part gets no more entries when its entries have this number of bytes
_MOST_PARTS = 32  # in a long journal, the limit is 1/32 of the number of bytes of all entries
_LONGEST_PART = 32 * MIB
MAX_PART = 2 * _LONGEST_PART + 2 * MAX_ENTRY
MAX_DROPPED = 64 * MIB
_VERSION = 1
_HEAD_MAGIC, _PART_MAGIC, _DROPPED_MAGIC = b"mvcbkt1\n", b"mvcjrn1\n", b"mvcdrp1\n"
_CHECK = 16
NONCE = 16
"""Number of random bytes in an object. They make the hash of the object, its name, unique."""
_MOST_PACKS = 1 << 24
_LARGEST_PACK = 1 << 40
_MOST_FEATURES = 256
_NUMBER = 10  # number of bytes of the longest encoded number
_MAX_FEATURE = 64


class PackObject(Struct, frozen=True, array_like=True):
    """An object with a pack. ``number``: the number of the pack in the repository.

    ``size``: number of bytes of the pack. ``headers``: number of bytes after the pack in the
    object. These bytes have a copy of the headers of the pack's records, and random bytes.
    """

    number: int
    hash: bytes
    size: int
    headers: int

    @property
    def name(self) -> str:
        return PACK_OBJECTS + self.hash.hex()


class JournalPart(Struct, frozen=True):
    """An object with consecutive entries of the journal.

    ``size``: number of bytes of the object. ``frames``: number of bytes of the entries.
    """

    hash: bytes
    size: int
    frames: int

    @property
    def name(self) -> str:
        return JOURNAL_PARTS + self.hash.hex()


class BucketHead(Struct, frozen=True):
    """The head: the only object that changes. It names the parts, and the newest packs.

    ``rewrites``: number of replacements of the journal. ``swaps``: number of replacements of the
    head, so that no two heads of a bucket are equal. ``sequence``, ``chain``: the end of the
    journal. ``frames``: the newest entries, which are in no part yet. ``packs``: the packs that the
    newest entries name.
    """

    features: frozenset[str]
    rewrites: int
    swaps: int
    sequence: int
    chain: bytes
    parts: tuple[JournalPart, ...]
    packs: tuple[PackObject, ...]
    frames: bytes

    @property
    def end(self) -> Position:
        """The end of this journal in a repository. A repository stores each entry twice."""
        frames = sum(part.frames for part in self.parts) + len(self.frames)
        return Position(2 * frames, self.sequence, self.chain)

    def encoded(self) -> bytes:
        writer = Writer().raw(_HEAD_MAGIC).uint(_VERSION).uint(len(self.features))
        for feature in sorted(self.features):
            writer.text(feature)
        writer.uint(self.rewrites).uint(self.swaps).uint(self.sequence).raw(self.chain)
        writer.uint(len(self.parts))
        for part in self.parts:
            writer.raw(part.hash).uint(part.size).uint(part.frames)
        _write_packs(writer, self.packs)
        data = writer.blob(self.frames).done()
        return data + blake3(data).digest(_CHECK)

    @classmethod
    def decode(cls, data: bytes, url: str) -> BucketHead:
        """Decodes a head. Raises DamagedData and UnsupportedFormat."""
        name = f"the head of {url}"
        body, check = data[:-_CHECK], data[-_CHECK:]
        if len(data) > MAX_HEAD or blake3(body).digest(_CHECK) != check:
            raise DamagedData(f"{name} is damaged: it does not match its checksum")
        reader = Reader(body, name)
        if reader.raw(len(_HEAD_MAGIC)) != _HEAD_MAGIC:
            raise reader.fail("its first bytes are wrong")
        if reader.uint() != _VERSION:
            raise UnsupportedFormat(f"{url} needs a newer mvc", hint="upgrade mvc")
        features = [reader.text(_MAX_FEATURE) for _ in range(reader.count(_MOST_FEATURES))]
        counts = reader.uint(), reader.uint(), reader.uint()
        chain = reader.raw(len(GENESIS.chain))
        parts = tuple(
            JournalPart(reader.raw(DIGEST_SIZE), reader.uint(MAX_PART), reader.uint(MAX_PART))
            for _ in range(reader.count(MAX_HEAD))
        )
        packs = _read_packs(reader)
        frames = reader.blob(MAX_HEAD)
        reader.end()
        rewrites, swaps, sequence = counts
        return cls(
            frozenset(features), rewrites, swaps, sequence,
            chain=chain, parts=parts, packs=packs, frames=frames,
        )  # fmt: skip


class PartOfJournal(Struct, frozen=True):
    """The content of a part: journal entries (``frames``), and the packs that they name."""

    packs: tuple[PackObject, ...]
    frames: bytes

    def encoded(self) -> bytes:
        """The bytes of the part, with random bytes that are new in each call."""
        writer = Writer().raw(_PART_MAGIC + os.urandom(NONCE))
        _write_packs(writer, self.packs)
        return writer.raw(self.frames).done()

    def object(self, data: bytes) -> JournalPart:
        return JournalPart(blake3(data).digest(), len(data), len(self.frames))

    @classmethod
    def decode(cls, data: bytes, part: JournalPart, url: str) -> PartOfJournal:
        name = f"{part.name} of {url}"
        if len(data) != part.size or blake3(data).digest() != part.hash:
            raise DamagedData(f"{name} does not match its hash")
        reader = Reader(data, name)
        if reader.raw(len(_PART_MAGIC)) != _PART_MAGIC:
            raise reader.fail("its first bytes are wrong")
        reader.raw(NONCE)
        packs = _read_packs(reader)
        frames = reader.raw(part.frames)
        reader.end()
        return cls(packs, frames)


def final_size(frames: int) -> int:
    """The size at which a part gets no more entries. ``frames``: number of bytes of all entries."""
    return max(PART, min(frames // _MOST_PARTS, _LONGEST_PART))


def _write_packs(writer: Writer, packs: Sequence[PackObject]) -> None:
    writer.uint(len(packs))
    for pack in packs:
        writer.uint(pack.number).raw(pack.hash).uint(pack.size).uint(pack.headers)


def _read_packs(reader: Reader) -> tuple[PackObject, ...]:
    return tuple(_read_pack(reader) for _ in range(reader.count(_MOST_PACKS)))


def _read_pack(reader: Reader) -> PackObject:
    number, hash_ = reader.uint((1 << 32) - 1), reader.raw(DIGEST_SIZE)
    size, headers = reader.uint(_LARGEST_PACK), reader.uint(_LARGEST_PACK)
    if not number or size < len(PACK_HEADER) or headers > size + PREFIX_SIZE + NONCE:
        raise reader.fail("a pack's sizes are impossible")
    return PackObject(number, hash_, size, headers)


# -- packs ----------------------------------------------------------------------------------------


def encode_headers(records: Mapping[int, bytes]) -> bytes:
    """The bytes that follow a pack in its object, up to the random bytes.

    ``records``: maps the offset of each record in the pack to its header. Before each header, the
    result has the number of unused bytes between the previous record and this record.
    """
    writer, at = Writer().uint(len(records)), len(PACK_HEADER)
    for offset in sorted(records):
        header = records[offset]
        writer.uint(offset - at).raw(header)
        at = offset + len(header) + read_prefix(header, 1 << 62, "a pack")[1]
    return writer.done()


def decode_headers(
    parts: Iterable[bytes], pack: PackObject, url: str
) -> Iterator[tuple[int, bytes]]:
    """Yields (offset, header) for the records of a pack.

    Raises DamagedData if the records do not fit into the pack. Reads ``parts`` lazily.
    """
    name = f"the end of {pack.name} of {url}"
    source, at = iter(parts), len(PACK_HEADER)
    left, reader = b"", Reader(b"", name)

    def with_bytes(size: int) -> Reader:
        """A reader that has at least ``size`` unread bytes, or all remaining bytes."""
        nonlocal left, reader
        if len(left) - reader.position < size:
            buffered = [left[reader.position :]]
            while sum(map(len, buffered)) < size and (part := next(source, b"")):
                buffered.append(part)
            left = b"".join(buffered)
            reader = Reader(left, name)
        return reader

    for _ in range(with_bytes(_NUMBER).count(pack.size)):
        at += with_bytes(_NUMBER).uint(pack.size)
        prefix = with_bytes(PREFIX_SIZE).raw(PREFIX_SIZE)
        header_size, body_size = read_prefix(prefix, pack.size - at, name)
        if header_size > MAX_RECORD_HEADER:
            raise reader.fail("a header is too long")
        yield at, prefix + with_bytes(header_size + CHECK_SIZE).raw(header_size + CHECK_SIZE)
        at += PREFIX_SIZE + header_size + CHECK_SIZE + body_size
    with_bytes(NONCE + 1).raw(NONCE)
    reader.end()


# -- packs dropped by a rewrite -------------------------------------------------------------------


def encode_dropped(hashes: Iterable[bytes]) -> bytes:
    """The bytes of a list of packs that a new head does not name any more.

    The list is written before the new head.
    """
    return _DROPPED_MAGIC + b"".join(sorted(hashes))


def decode_dropped(data: bytes, url: str) -> set[bytes]:
    """The hashes in a list of packs. Raises DamagedData."""
    reader = Reader(data, f"a list of dropped packs in {url}")
    if reader.raw(len(_DROPPED_MAGIC)) != _DROPPED_MAGIC or (len(data) - 8) % DIGEST_SIZE:
        raise reader.fail("its first bytes are wrong")
    return {reader.raw(DIGEST_SIZE) for _ in range((len(data) - 8) // DIGEST_SIZE)}


# -- entries --------------------------------------------------------------------------------------


def follow(frames: bytes, begin: int, at: Position, name: str) -> tuple[bytes, Position] | None:
    """The entries in ``frames`` from the position ``at`` on, and the position of their end.

    Returns each entry twice, as in the journal of a repository. ``begin``: the offset of the first
    entry of ``frames`` in that journal. Returns None if the first entry that is not before ``at``
    does not follow the entry that ends at ``at``.
    """
    offset = begin
    out: list[bytes] = []
    for frame, sequence, chain, check in single_frames(frames, name):
        if offset >= at.offset:
            if offset != at.offset or chain != at.chain or sequence < at.sequence:
                if not out:
                    return None
                raise DamagedData(f"{name} is damaged: its chain breaks at entry {at.sequence}")
            out.append(frame * 2)
            at = Position(offset + 2 * len(frame), sequence + 1, check)
        offset += 2 * len(frame)
    return b"".join(out), at
