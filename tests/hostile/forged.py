"""Repositories written by hand: every checksum is right, what it covers is a lie."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mvc.api.repository import Repository
from mvc.codecs.payload import pack_chunks
from mvc.model.hashing import blob_id
from mvc.model.tensor import TensorSpec
from mvc.pipelines.pipeline import Pipeline
from mvc.store.journal.entries import Entry, Region
from mvc.store.journal.frames import GENESIS, encode_entry, scan
from mvc.store.packs.reader import PACK_HEADER
from mvc.store.packs.records import BLOB, Coding, Member, encode_header, payload_check

FULL = "planes | zstd:huff"
DELTA = "sub | zigzag | elide | planes | zstd:huff"


@dataclass
class Piece:
    """A member to be: ``base`` is the whole id of the base or empty, ``inputs`` are such ids."""

    id: bytes
    nbytes: int
    payload: bytes
    text: str = FULL
    base: bytes = b""
    start: int = 0
    kind: int = BLOB
    inputs: Sequence[bytes] = ()


@dataclass
class Forger:
    """A repository folder whose one pack and journal are put together here."""

    root: Path
    pack: bytearray = field(default_factory=lambda: bytearray(PACK_HEADER))
    journal: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        Repository.init(self.root).close()
        self.journal += (self.root / ".mvc/journal").read_bytes()
        *_, last = scan(Bytes(self.journal), GENESIS)
        self.at = last.after

    def record(self, pieces: Sequence[Piece], *, group: bytes | None = None) -> Region:
        """Appends one record; ``group`` is the payload that its members share."""
        members, body = [], bytearray()
        for piece in pieces:
            payload = piece.payload if group is None else group
            members.append(
                Member(
                    piece.kind, piece.id, piece.start, piece.nbytes, Coding(piece.text),
                    piece.base[:8], len(body), len(payload), payload_check([payload]),
                    tuple(id_[:8] for id_ in piece.inputs),
                )
            )  # fmt: skip
            body += b"" if group is not None else payload
        body += group or b""
        head = encode_header(members, group=group is not None, body_size=len(body))
        start = len(self.pack)
        self.pack += head + body
        return Region(1, start, len(self.pack) - start)

    def entry(self, entry: Entry) -> None:
        frames, self.at = encode_entry(entry, self.at)
        self.journal += frames

    def publish(self, *regions: Region, **fields: Any) -> None:
        """One journal entry for these regions."""
        self.entry(Entry("commit", 1, regions=regions, **fields))

    def write(self) -> Path:
        """Puts pack and journal in place; the folder of the repository."""
        (self.root / ".mvc/packs/00000001.pack").write_bytes(self.pack)
        (self.root / ".mvc/journal").write_bytes(self.journal)
        (self.root / ".mvc/witness").unlink(missing_ok=True)
        return self.root


class Bytes(io.BytesIO):
    """Bytes as what the journal is read from."""

    path = Path("journal")

    def __init__(self, data: bytes) -> None:
        super().__init__(data)

    def size(self) -> int:
        return len(self.getbuffer())

    def read(self, offset: int, length: int) -> bytes:  # type: ignore[override]
        return bytes(self.getbuffer()[offset : offset + length])


def full(data: bytes, width: int = 4, text: str = FULL) -> bytes:
    """An honest payload of a full record."""
    chunk = Pipeline.parse(text).encode_chunk(memoryview(data), None, width)
    return b"".join(map(bytes, pack_chunks([chunk], width, 1 << 20)))


def delta(new: bytes, base: bytes, width: int = 4, text: str = DELTA) -> bytes:
    """An honest payload of a delta."""
    chunk = Pipeline.parse(text).encode_chunk(memoryview(new), memoryview(base), width)
    return b"".join(map(bytes, pack_chunks([chunk], width, 1 << 20)))


def name(number: int) -> bytes:
    """An id that no content has."""
    return number.to_bytes(8, "big") + bytes(24)


def raw_id(data: bytes) -> bytes:
    return bytes(blob_id(TensorSpec("raw", (len(data),)), memoryview(data)))


def recover(root: str, id_: str, nbytes: int) -> None:
    """Asks for an object as every reader does; for ``bounded``."""
    with Repository.open(root) as repo:
        spec = TensorSpec("raw", (nbytes,))
        repo.handle.store.recovery.blob(bytes.fromhex(id_), spec)
