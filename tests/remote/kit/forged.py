"""Slices taken apart, changed by hand, and put together again with every checksum right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from mvc.codecs.patch import encode_patch
from mvc.codecs.payload import pack_chunks
from mvc.ids import CommitId
from mvc.limits import CHUNK
from mvc.model.commit import Commit
from mvc.model.manifest import Manifest
from mvc.pipelines.pipeline import Pipeline
from mvc.remote.slices import Sent, decode_entries, encode_entries
from mvc.remote.transport import Move, Place, Slice
from mvc.store.packs.records import (
    CHECK_SIZE,
    MANIFEST,
    PREFIX_SIZE,
    Coding,
    Member,
    decode_header,
    encode_header,
    patch_extra,
    payload_check,
    read_prefix,
)

__all__ = ["Forged", "Record", "full", "taken_apart"]


@dataclass
class Record:
    """Members and the payload of each (of a group: the one of all)."""

    members: list[Member]
    payloads: list[bytes]
    group: bool = False

    @property
    def encoded(self) -> bytes:
        """Checks and places are those of the payloads, whatever the members say."""
        if self.group:
            (payload,) = self.payloads
            members = [m._replace(check=payload_check([payload])) for m in self.members]
            return encode_header(members, group=True, body_size=len(payload)) + payload
        members, at = [], 0
        for member, data in zip(self.members, self.payloads, strict=True):
            check = payload_check([data])
            members.append(member._replace(at=at, stored=len(data), check=check))
            at += len(data)
        return encode_header(members, group=False, body_size=at) + b"".join(self.payloads)


@dataclass
class Forged:
    """``records``: those of each entry. What is put together has the sizes that follow."""

    entries: list[Sent]
    records: list[list[Record]]
    moves: tuple[Move, ...] = ()
    place: Place | None = None
    features: frozenset[str] = frozenset()
    trailing: bytes = b""
    size: int | None = None
    head: bytes | None = None
    cut: int = 0
    sizes: list[int] = field(default_factory=list)

    def each(self) -> Iterator[tuple[int, int]]:
        """Places of the members in the records of the entries: (entry, record)."""
        for i, records in enumerate(self.records):
            for j in range(len(records)):
                yield i, j

    def slice(self) -> Slice:
        bodies = [b"".join(r.encoded for r in records) for records in self.records]
        sizes = self.sizes or [len(body) for body in bodies]
        entries = [replace(s, size=n) for s, n in zip(self.entries, sizes, strict=True)]
        data = b"".join(bodies) + self.trailing
        data = data[: len(data) - self.cut]
        head = encode_entries(entries) if self.head is None else self.head
        size = len(data) if self.size is None else self.size
        parts = [data[at : at + 5000] for at in range(0, len(data), 5000)]
        return Slice(head, size, parts, self.moves, place=self.place, features=self.features)


def taken_apart(given: Slice) -> Forged:
    """An honest slice, to be changed."""
    data = b"".join(bytes(part) for part in given.records)
    entries, records, at = list(decode_entries(given.head)), [], 0
    for sent in entries:
        end, own = at + sent.size, []
        while at < end:
            record, at = _record(data, at)
            own.append(record)
        records.append(own)
    return Forged(entries, records, given.moves, given.place, given.features)


def _record(data: bytes, at: int) -> tuple[Record, int]:
    size, _ = read_prefix(data[at : at + PREFIX_SIZE], len(data) - at, "a slice")
    header = decode_header(data[at : at + PREFIX_SIZE + size + CHECK_SIZE], "a slice")
    body = data[at + header.body_at : at + header.size]
    members = list(header.members)
    payloads = [body] if header.group else [body[m.at : m.at + m.stored] for m in members]
    return Record(members, payloads, header.group), at + header.size


def full(id_: bytes, data: bytes, kind: int = 1) -> Record:
    """A record that says that ``data`` is the object."""
    if kind == MANIFEST:
        member = Member(kind, id_, 0, len(data), Coding("patch"), b"", 0, 0, b"")
        payload = encode_patch(memoryview(data), memoryview(b""), patch_extra([member], MANIFEST))
        return Record([member], [payload])
    pipeline = Pipeline.parse("planes | zstd:1").coding()
    chunks = [
        pipeline.encode_chunk(memoryview(data)[at : at + CHUNK], None, 4)
        for at in range(0, len(data), CHUNK)
    ]
    payload = b"".join(pack_chunks(chunks, 4, CHUNK))
    member = Member(kind, id_, 0, len(data), Coding(pipeline.text), b"", 0, 0, b"")
    return Record([member], [payload])


def add_version(forged: Forged, manifest: Manifest, like: Commit, parent: CommitId) -> Commit:
    """A further entry that publishes a version with this manifest, as it stands."""
    made = replace(like, manifest=manifest.id, root=manifest.root, parents=(parent,))
    forged.entries.append(Sent(commits=(made.encoded,)))
    forged.records.append([full(manifest.id, manifest.encoded, MANIFEST)])
    return made
