"""A whole journal: frames, copies, chain, interrupted ends."""

from mvc.store.journal.entries import Entry, RefChange
from mvc.store.journal.frames import GENESIS, encode_entry, read_entry, scan
from tests.hostile.forged import Bytes


def run(data: bytes) -> None:
    source = Bytes(data)
    for recorded in scan(source, GENESIS):
        assert read_entry(source, recorded.offset).sequence == recorded.sequence


def seeds() -> list[bytes]:
    at, journal = GENESIS, b""
    for i in range(3):
        entry = Entry("commit", i, "note", refs=(RefChange("HEAD", None, "main"),))
        frames, at = encode_entry(entry, at)
        journal += frames
    half = len(frames) // 2
    return [journal, journal[:-half], journal[: -half - 5], journal + b"mvJ1"]
