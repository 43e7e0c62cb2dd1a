"""Looking for the next sound frame or record in garbage: work in proportion to the garbage."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mvc.errors import DamagedData
from mvc.io.files import FileSystem
from mvc.store.journal import frames as journal_frames
from mvc.store.journal.entries import Entry, Region
from mvc.store.packs import reader as pack_reader
from mvc.store.packs import records
from mvc.store.packs.reader import PACK_HEADER, PackReader
from tests.hostile.forged import Bytes


class Counted:
    """blake3, counting the bytes that it is given."""

    def __init__(self, real: Any) -> None:
        self.real, self.hashed = real, 0

    def __call__(self, data: bytes = b"") -> Any:
        self.hashed += len(data)
        return self.real(data)


def test_frames_that_claim_to_be_long(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = journal_frames.encode_entry(Entry("init", 1), journal_frames.GENESIS)
    head = struct.pack("<4sIQ16s", b"mvJ1", 20_000, 9, bytes(16))
    data = first + head * 1000 + bytes(20_000)
    counted = Counted(journal_frames.blake3)
    monkeypatch.setattr(journal_frames, "blake3", counted)
    with suppress(DamagedData):
        list(journal_frames.scan(Bytes(data), journal_frames.GENESIS))
    assert counted.hashed < 16 * len(data)


def test_records_that_claim_to_be_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = struct.pack("<4sIQ", b"mvR1", 20_000, 0)
    data = PACK_HEADER + head * 1000 + bytes(40_000)
    pack_reader.pack_path(tmp_path, 1).write_bytes(data)
    counted = Counted(records.blake3)
    monkeypatch.setattr(records, "blake3", counted)
    reader = PackReader(FileSystem(), tmp_path)
    region = Region(1, len(PACK_HEADER), len(data) - len(PACK_HEADER))
    found = list(reader.sound_records(region, lambda damage: None))
    reader.close()
    assert found == []
    assert counted.hashed < 16 * len(data)
