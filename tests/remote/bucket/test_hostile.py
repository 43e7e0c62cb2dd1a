"""What is read from a bucket may be forged: it is refused by name, and nothing of it is visible."""

from __future__ import annotations

import os
import shutil
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from blake3 import blake3
from msgspec.structs import replace

from mvc.errors import DamagedData, MvcError, RemoteRefused, UnsupportedFormat
from mvc.io.files import FileSystem
from mvc.remote.transports.bucket.layout import (
    MAX_HEAD,
    BucketHead,
    JournalPart,
    PackObject,
    PartOfJournal,
    decode_dropped,
    decode_headers,
    encode_dropped,
    encode_headers,
    final_size,
    follow,
)
from mvc.remote.transports.bucket.objects import FolderObjects
from mvc.repo.lookup.refs import remote_refs
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import GENESIS, Position, encode_entry
from tests.remote.bucket.kit import Team, messages
from tests.remote.kit.same import assert_clean

URL = "bucket:/here"
PACK = PackObject(7, bytes(range(32)), 1000, 99)


def head(**fields: object) -> BucketHead:
    """A head with a few of everything."""
    part = JournalPart(bytes(32), 300, 200)
    made = BucketHead(
        frozenset({"stages"}), 1, 5, 9, chain=bytes(16), parts=(part,), packs=(PACK,),
        frames=b"frames",
    )  # fmt: skip
    return replace(made, **fields)


def test_a_head_is_read_back() -> None:
    assert BucketHead.decode(head().encoded(), URL) == head()
    assert head().end == Position(2 * (200 + 6), 9, bytes(16))


@pytest.mark.parametrize("at", range(0, len(head().encoded()), 3))
def test_a_changed_byte_of_a_head_is_noticed(at: int) -> None:
    data = bytearray(head().encoded())
    data[at] ^= 0x10
    with pytest.raises(DamagedData, match="does not match its checksum"):
        BucketHead.decode(bytes(data), URL)


def test_a_head_that_is_too_long() -> None:
    with pytest.raises(DamagedData):
        BucketHead.decode(head(frames=bytes(MAX_HEAD)).encoded(), URL)


def sealed(body: bytes) -> bytes:
    return body + blake3(body).digest(16)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"mvcbkt1\n", b"mvcbkt2\n" + bytes(40), b"mvcbkt1\n\x01\xff\xff\xff\xff\x0f",
        b"mvcbkt1\n\x01\x00\x00\x00\x00" + bytes(16) + b"\xff\xff\xff\xff\xff\xff\x01",
        head().encoded()[:-16] + b"\x00", head(packs=(replace(PACK, number=0),)).encoded()[:-16],
        head(packs=(replace(PACK, headers=5000),)).encoded()[:-16],
        head(packs=(replace(PACK, size=3),)).encoded()[:-16],
        head(parts=(JournalPart(bytes(32), 1 << 40, 1),)).encoded()[:-16],
    ],
)  # fmt: skip
def test_a_forged_head(body: bytes) -> None:
    with pytest.raises(DamagedData):
        BucketHead.decode(sealed(body), URL)


def test_a_head_of_a_later_version() -> None:
    with pytest.raises(UnsupportedFormat):
        BucketHead.decode(sealed(b"mvcbkt1\n\x02" + bytes(40)), URL)


def test_a_part_must_have_its_hash_and_size() -> None:
    content = PartOfJournal((PACK,), b"frames")
    data = content.encoded()
    part = JournalPart(blake3(data).digest(), len(data), 6)
    assert PartOfJournal.decode(data, part, URL) == content
    for wrong in (data[:-1], data + b"\0", b"x" + data[1:]):
        with pytest.raises(DamagedData):
            PartOfJournal.decode(wrong, part, URL)
    with pytest.raises(DamagedData):
        PartOfJournal.decode(data, replace(part, frames=5), URL)


def test_headers_must_fit_into_their_pack() -> None:
    from mvc.store.packs.records import BLOB, Coding, Member, encode_header

    member = Member(
        BLOB, bytes(32), 0, 10, coding=Coding("raw"), base=b"", at=0, stored=10, check=bytes(8)
    )
    header = encode_header([member], group=False, body_size=10)
    size = 8 + len(header) + 10
    data = encode_headers({8: header}) + bytes(16)
    pack = PackObject(1, bytes(32), size, len(data))
    for step in (1, 7, len(data)):
        parts = (data[begin : begin + step] for begin in range(0, len(data), step))
        assert list(decode_headers(parts, pack, URL)) == [(8, header)]
    later = encode_headers({11: header}) + bytes(16)
    assert list(decode_headers([later], replace(pack, size=size + 3), URL))
    for wrong in (
        encode_headers({9: header}) + bytes(16),  # ends behind the pack
        data[:-1], data + b"\0", b"\xff\xff\x03" + data[1:], b"", b"\x05" + data[1:],
    ):  # fmt: skip
        with pytest.raises(DamagedData):
            list(decode_headers([wrong], pack, URL))


def test_notes_of_dropped_packs() -> None:
    hashes = {os.urandom(32) for _ in range(3)}
    assert decode_dropped(encode_dropped(hashes), URL) == hashes
    for wrong in (b"", b"mvcdrp1\n" + bytes(31), b"other..\n" + bytes(32)):
        with pytest.raises(DamagedData):
            decode_dropped(wrong, URL)


def journal(count: int) -> tuple[bytes, list[Position]]:
    """Entries once, and where each begins in a journal that has them twice."""
    at, frames, places = GENESIS, [], []
    for i in range(count):
        places.append(at)
        data, at = encode_entry(Entry("commit", i, f"note {i}"), at)
        frames.append(data[: len(data) // 2])
    return b"".join(frames), [*places, at]


def test_entries_are_followed_from_any_place() -> None:
    frames, places = journal(5)
    for at in places:
        followed = follow(frames, 0, at, "it")
        assert followed is not None
        assert followed[1] == places[-1]
        assert len(followed[0]) == places[-1].offset - at.offset


def test_entries_do_not_lead_on_from_elsewhere() -> None:
    frames, places = journal(5)
    other = replace(places[2], chain=bytes(16))
    assert follow(frames, 0, other, "it") is None
    assert follow(frames, 0, replace(places[2], offset=places[2].offset + 1), "it") is None
    assert follow(frames, 0, replace(places[2], sequence=77), "it") is None
    first = len(frames) // 5
    for wrong in (
        frames[:-1], frames + b"\0", b"\0" + frames, frames[:first] + frames[2 * first :],
        frames[:first] + frames[: 2 * first],
    ):  # fmt: skip
        with pytest.raises(DamagedData):
            follow(wrong, 0, GENESIS, "it")


def test_there_are_few_parts() -> None:
    """However long the journal is, so that their list fits into a head."""
    sizes = []
    total = 0
    while total < 4 << 30:
        sizes.append(final_size(total))
        total += sizes[-1]
    assert len(sizes) * 45 < MAX_HEAD


# -- a whole bucket -------------------------------------------------------------------------------


@pytest.fixture
def shared(folder_team: Team) -> Team:
    """Two versions are in the bucket; bob has the first."""
    folder_team.commit("ada", 0)
    folder_team.push("ada")
    folder_team.fetch("bob")
    folder_team.commit("ada", 1)
    folder_team.push("ada")
    return folder_team


def forge(team: Team, change: Callable[[BucketHead], BucketHead]) -> None:
    """Swaps in a forged head."""
    objects = FolderObjects(FileSystem(), team.folder / "bucket")
    found = objects.read_version("head", MAX_HEAD)
    assert found is not None
    made = change(BucketHead.decode(found.data, URL))
    assert objects.swap("head", made.encoded(), found.version)


def refused(team: Team, *kinds: type[MvcError]) -> str:
    """Neither an old nor a new client takes anything; what both had stays."""
    for name in ("bob", "carol"):
        with pytest.raises(kinds) as raised:
            team.fetch(name)
    assert messages(team["bob"], "origin/main") == ["ada 0"]
    assert remote_refs(team["carol"].handle.store.snapshot) == []
    assert_clean(team["bob"])
    return str(raised.value)


CHANGES: dict[str, Callable[[BucketHead], BucketHead]] = {
    "frames are cut off": lambda head: replace(head, frames=head.frames[:-5]),
    "frames are others": lambda head: replace(head, frames=head.frames[:-9] + bytes(9)),
    "the end is elsewhere": lambda head: replace(head, chain=bytes(16)),
    "more entries are promised": lambda head: replace(head, sequence=head.sequence + 1),
    "a part is missing": lambda head: replace(
        head, parts=(JournalPart(bytes(32), 500, len(head.frames)),), frames=b""
    ),
    "packs are missing": lambda head: replace(
        head, packs=tuple(replace(pack, hash=bytes(32)) for pack in head.packs)
    ),
    "packs are not named": lambda head: replace(head, packs=()),
    "packs are exchanged": lambda head: replace(
        head,
        packs=tuple(
            replace(pack, number=other.number)
            for pack, other in zip(head.packs, reversed(head.packs), strict=True)
        ),
    ),
    "packs are shorter": lambda head: replace(
        head, packs=tuple(replace(pack, size=pack.size - 100) for pack in head.packs)
    ),
    "packs are longer": lambda head: replace(
        head, packs=tuple(replace(pack, size=pack.size + (1 << 34)) for pack in head.packs)
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_forged_heads(shared: Team, change: str) -> None:
    forge(shared, CHANGES[change])
    refused(shared, MvcError)


def test_sizes_of_packs_take_no_memory(shared: Team) -> None:
    """A sparse file has any size that its head says; a thread that decodes takes 64 MiB of room."""
    size = 1 << 30
    forge(
        shared,
        lambda head: replace(
            head, packs=tuple(replace(pack, size=size, headers=size) for pack in head.packs)
        ),
    )
    for path in (shared.folder / "bucket/packs").iterdir():
        os.truncate(path, 2 * size)
    tracemalloc.start()
    try:
        refused(shared, MvcError)
        assert tracemalloc.get_traced_memory()[1] < 128 << 20
    finally:
        tracemalloc.stop()


def test_an_unknown_feature(shared: Team) -> None:
    forge(shared, lambda head: replace(head, features=head.features | {"later-9"}))
    assert "later-9" in refused(shared, UnsupportedFormat)


def test_a_head_that_is_no_head(shared: Team) -> None:
    heads = shared.folder / "bucket/head"
    newest = max(heads.iterdir())
    newest.write_bytes(b"GIF89a" + bytes(100))
    refused(shared, DamagedData)
    newest.write_bytes(bytes(1 << 20))
    refused(shared, RemoteRefused)


@pytest.mark.parametrize("seed", range(6))
def test_packs_with_changed_bytes(shared: Team, seed: int) -> None:
    """Payloads, headers, and the headers behind them: what is wrong is refused."""
    packs = sorted(
        (shared.folder / "bucket/packs").iterdir(), key=lambda path: path.stat().st_mtime
    )
    data = bytearray(packs[-1].read_bytes())
    for at in range(40 + 7 * seed, len(data), 97):
        data[at] ^= 0xFF
    packs[-1].write_bytes(data)
    with pytest.raises(MvcError):
        shared.fetch("bob")
    assert messages(shared["bob"], "origin/main") == ["ada 0"]
    assert_clean(shared["bob"])
    assert shared.problems("ada")


def test_a_symbolic_link_in_a_folder_is_not_followed(shared: Team, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    packs = list((shared.folder / "bucket/packs").iterdir())
    for path in packs:
        path.unlink()
        path.symlink_to(secret)
    with pytest.raises(MvcError) as raised:
        shared.fetch("carol")
    assert "secret" not in str(raised.value).replace(str(secret), "")


@pytest.mark.parametrize("name", ["packs", "journal", "dropped"])
def test_nothing_is_deleted_or_written_behind_a_link(
    name: str, shared: Team, tmp_path: Path
) -> None:
    bucket, place = shared.folder / "bucket", tmp_path / "home"
    place.mkdir()
    if (bucket / name).exists():
        shutil.copytree(bucket / name, place, dirs_exist_ok=True)
        shutil.rmtree(bucket / name)
    for file in ("diary", "ab" * 32):
        (place / file).write_bytes(b"")
        os.utime(place / file, (1, 1))
    (bucket / name).symlink_to(place)
    there = sorted(place.iterdir())
    with suppress(MvcError):
        shared.maintain("ada", lambda repo: repo.storage.gc(grace="0"))
    shared.commit("ada", 2)
    with suppress(MvcError):
        shared.push("ada")
    assert sorted(place.iterdir()) == there


def test_a_file_of_others_in_a_bucket_stays(shared: Team) -> None:
    file, left = (shared.folder / "bucket/packs" / each for each in ("README", "ab" * 32))
    for each in (file, left):
        each.write_bytes(b"")
        os.utime(each, (1, 1))
    shared.maintain("ada", lambda repo: repo.storage.gc(grace="0"))
    assert (file.exists(), left.exists()) == (True, False)
