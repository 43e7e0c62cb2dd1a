"""A reader of buckets written from docs/format.md: the example there, and a real bucket."""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3

from mvc.api.repository import Repository
from mvc.remote.transports.bucket.layout import BucketHead, PackObject
from mvc.store.format import format_line
from tests.oracle.reader import Cursor as OracleCursor
from tests.oracle.test_document import example
from tests.remote.bucket.kit import Team
from tests.remote.kit.same import assert_clean, assert_same


class Cursor(OracleCursor):
    def uint(self) -> int:
        return int(self.get("uint"))

    def bytes(self) -> bytes:
        return self.raw(self.uint())

    def raw(self, length: int) -> bytes:
        return bytes(self.take(length))


class Head:
    """``features``, ``parts``, ``packs``, ``frames`` and the numbers of a head."""

    def __init__(self, data: bytes) -> None:
        assert data[:8] == b"mvcbkt1\n"
        assert blake3(data[:-16]).digest(16) == data[-16:]
        cursor = Cursor(data[8:-16])
        assert cursor.uint() == 1
        self.features = [cursor.bytes().decode() for _ in range(cursor.uint())]
        self.rewrites, self.swaps, self.sequence = (cursor.uint() for _ in range(3))
        self.chain = cursor.raw(16)
        self.parts = [(cursor.raw(32), cursor.uint(), cursor.uint()) for _ in range(cursor.uint())]
        self.packs = packs(cursor)
        self.frames = cursor.bytes()


def packs(cursor: Cursor) -> dict[int, tuple[bytes, int, int]]:
    return {
        cursor.uint(): (cursor.raw(32), cursor.uint(), cursor.uint()) for _ in range(cursor.uint())
    }


def test_the_example_of_the_document() -> None:
    data = example("bucket-head")
    head = Head(data)
    assert head.frames == example("frame")
    assert (head.rewrites, head.swaps, head.sequence, head.parts) == (0, 1, 1, [])
    assert head.packs == {1: (bytes(range(32)), 1000, 99)}
    made = BucketHead.decode(data, "the page")
    assert made.packs == (PackObject(1, bytes(range(32)), 1000, 99),)
    assert made.encoded() == data


def rebuild(bucket: Path, root: Path) -> None:
    """Makes a repository of a bucket."""
    head = Head(max((bucket / "head").iterdir(), key=lambda path: int(path.name)).read_bytes())
    known, frames = dict[int, tuple[bytes, int, int]](), b""
    for hash_, size, length in head.parts:
        data = (bucket / "journal" / hash_.hex()).read_bytes()
        assert blake3(data).digest() == hash_
        assert (len(data), data[:8]) == (size, b"mvcjrn1\n")
        cursor = Cursor(data[8 + 16 :])
        known |= packs(cursor)
        frames += cursor.raw(length)
    frames += head.frames
    known |= head.packs
    (root / ".mvc/packs").mkdir(parents=True)
    at, journal = 0, b""
    while at < len(frames):
        end = at + 32 + int.from_bytes(frames[at + 4 : at + 8], "little") + 16
        journal += frames[at:end] * 2
        at = end
    assert frames[-16:] == head.chain
    for number, (hash_, size, behind) in known.items():
        data = (bucket / "packs" / hash_.hex()).read_bytes()
        assert blake3(data).digest() == hash_
        assert len(data) == size + behind
        (root / f".mvc/packs/{number:08d}.pack").write_bytes(data[:size])
        check_headers(data, size)
    (root / ".mvc/journal").write_bytes(journal)
    (root / ".mvc/format").write_bytes(format_line(frozenset(head.features)))


def check_headers(data: bytes, size: int) -> None:
    """What stands behind a pack is in it, too."""
    cursor, at = Cursor(data[size:]), 8
    for _ in range(cursor.uint()):
        at += cursor.uint()
        prefix = cursor.raw(16)
        header = int.from_bytes(prefix[4:8], "little") + 16
        assert data[at : at + 16 + header] == prefix + cursor.raw(header)
        at += 16 + header + int.from_bytes(prefix[8:16], "little")
    assert at <= size
    assert cursor.at + 16 == len(cursor.data)


def test_a_bucket_is_a_repository_in_pieces(folder_team: Team, tmp_path: Path) -> None:
    team = folder_team
    for step in range(12):
        team.commit("ada", step, f"{step} {2000 * 'x'}")
        team.push("ada")
    assert list((tmp_path / "bucket/journal").iterdir())
    rebuild(tmp_path / "bucket", tmp_path / "rebuilt")
    with Repository.open(tmp_path / "rebuilt") as repo:
        assert_same(team["ada"], repo)
        assert_clean(repo)
    team.maintain("ada", lambda repo: repo.storage.forget(keep_last=2))
    team.maintain("ada", lambda repo: repo.storage.gc(grace="0"))
    rebuild(tmp_path / "bucket", tmp_path / "collected")
    with Repository.open(tmp_path / "collected") as repo:
        assert_clean(repo)
