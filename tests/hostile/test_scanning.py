"""Looking for the next sound frame or record in garbage: work in proportion to the garbage."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mvc.errors import DamagedData
from mvc.io.files import FileSystem
from mvc.store import journal, packs, records
from mvc.store.entries import Entry, Region
from mvc.store.packs import PACK_HEADER, PackReader
from tests.hostile.forged import Bytes


class Counted:
    """blake3, counting the bytes that it is given."""

    def __init__(self, real: Any) -> None:
        self.real, self.hashed = real, 0

    def __call__(self, data: bytes = b"") -> Any:
        self.hashed += len(data)
        return self.real(data)


def test_frames_that_claim_to_be_long(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = journal.encode_entry(Entry("init", 1), journal.GENESIS)
    head = struct.pack("<4sIQ16s", b"mvJ1", 20_000, 9, bytes(16))
    data = first + head * 1000 + bytes(20_000)
    counted = Counted(journal.blake3)
    monkeypatch.setattr(journal, "blake3", counted)
    with suppress(DamagedData):
        list(journal.scan(Bytes(data), journal.GENESIS))
    assert counted.hashed < 16 * len(data)


def test_records_that_claim_to_be_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = struct.pack("<4sIQ", b"mvR1", 20_000, 0)
    data = PACK_HEADER + head * 1000 + bytes(40_000)
    packs.pack_path(tmp_path, 1).write_bytes(data)
    counted = Counted(records.blake3)
    monkeypatch.setattr(records, "blake3", counted)
    reader = PackReader(FileSystem(), tmp_path)
    region = Region(1, len(PACK_HEADER), len(data) - len(PACK_HEADER))
    found = list(reader.sound_records(region, lambda damage: None))
    reader.close()
    assert found == []
    assert counted.hashed < 16 * len(data)
