"""Packs: one writer each, leftovers cut off, new ones when full."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from mvc.errors import DamagedData
from mvc.io.files import FileSystem
from mvc.io.handles import WriteFile
from mvc.store.journal.entries import Region
from mvc.store.packs.reader import PACK_HEADER, PackReader, pack_numbers, pack_path
from mvc.store.packs.records import BLOB, Coding, Member, encode_header, payload_check
from mvc.store.writing.pack_ends import PackEnds
from mvc.store.writing.pack_writer import PackWriter
from tests.store.repositories import CheckedHistory, view_of
from tests.store.sizes import shrink


def record(body: bytes, number: int = 1) -> tuple[bytes, list[bytes]]:
    id_ = number.to_bytes(32, "little")
    check = payload_check([body])
    member = Member(BLOB, id_, 0, 9, Coding("raw"), b"", 0, len(body), check)
    return encode_header([member], group=False, body_size=len(body)), [body]


class Ends:
    """What a journal would say of each pack."""

    def __init__(self) -> None:
        self.ends: dict[int, int] = {}

    def claimed(self, pack: int) -> int:
        return self.ends.get(pack, 0)

    proven = claimed

    def newest(self) -> int:
        return max(self.ends, default=0)

    def commit(self, regions: tuple[Region, ...]) -> None:
        for region in regions:
            self.ends[region.pack] = region.start + region.length


@pytest.fixture
def ends() -> Ends:
    return Ends()


def writer(folder: Path, ends: Ends) -> PackWriter:
    return PackWriter(FileSystem(), folder, ends)


def test_what_is_appended_is_read(tmp_path: Path, ends: Ends) -> None:
    bodies = [b"", b"x", b"y" * 10_000]
    with writer(tmp_path, ends) as packs:
        places = [packs.append(*record(body, i)) for i, body in enumerate(bodies)]
        (region,) = packs.sync()
    assert places[0] == (1, len(PACK_HEADER)) == (region.pack, region.start)
    reader = PackReader(FileSystem(), tmp_path)
    found = list(reader.records(region))
    assert [(region.pack, at) for at, _ in found] == places
    for (at, header), body in zip(found, bodies, strict=True):
        assert bytes(reader.payload(1, at, header, header.members[0])) == body
    reader.close()


def test_leftovers_of_an_interrupted_commit_are_cut_off(tmp_path: Path, ends: Ends) -> None:
    with writer(tmp_path, ends) as packs:
        packs.append(*record(b"kept"))
        ends.commit(packs.sync())
    with writer(tmp_path, ends) as packs:
        packs.append(*record(b"never published" * 1000))
        packs.sync()
    path = pack_path(tmp_path, 1)
    assert path.stat().st_size > ends.claimed(1)
    with writer(tmp_path, ends) as packs:
        number, at = packs.append(*record(b"next"))
        assert (number, at) == (1, ends.claimed(1))
        ends.commit(packs.sync())
    assert path.stat().st_size == ends.claimed(1)
    assert b"never" not in path.read_bytes()


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_pack_is_unlocked_even_if_taking_back_fails(
    tmp_path: Path, ends: Ends, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fails(file: WriteFile, size: int) -> None:
        raise error("injected")

    with writer(tmp_path, ends) as packs:
        packs.append(*record(b"kept"))
        ends.commit(packs.sync())
    failing = writer(tmp_path, ends)  # a caller may keep the error, and so the writer
    with monkeypatch.context() as patch, pytest.raises((ValueError, error)), failing:
        failing.append(*record(b"taken back"))
        patch.setattr(WriteFile, "truncate", fails)
        raise ValueError("the commit fails")
    with writer(tmp_path, ends) as packs:
        assert packs.append(*record(b"next")) == (1, ends.claimed(1))


def test_a_new_pack_without_any_entry_is_begun_anew(tmp_path: Path, ends: Ends) -> None:
    pack_path(tmp_path, 1).write_bytes(b"torn header and more")
    with writer(tmp_path, ends) as packs:
        assert packs.append(*record(b"a")) == (1, len(PACK_HEADER))
    assert pack_path(tmp_path, 1).read_bytes().startswith(PACK_HEADER)


def test_a_pack_shorter_than_its_entries_is_left_alone(tmp_path: Path, ends: Ends) -> None:
    with writer(tmp_path, ends) as packs:
        packs.append(*record(b"a" * 100))
        ends.commit(packs.sync())
    path = pack_path(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-1])
    before = path.read_bytes()
    with writer(tmp_path, ends) as packs:
        assert packs.append(*record(b"b"))[0] == 2
    assert path.read_bytes() == before


def test_two_writers_use_two_packs(tmp_path: Path, ends: Ends) -> None:
    with writer(tmp_path, ends) as one, writer(tmp_path, ends) as two:
        assert one.append(*record(b"1"))[0] == 1
        assert two.append(*record(b"2"))[0] == 2
        ends.commit(one.sync())
        ends.commit(two.sync())
    with writer(tmp_path, ends) as three:
        assert three.append(*record(b"3")) == (2, ends.claimed(2))


def _other(folder: Path, send: object) -> None:
    with writer(folder, Ends()) as packs:
        send.put(packs.append(*record(b"from the other process"))[0])


def test_two_processes_use_two_packs(tmp_path: Path, ends: Ends) -> None:
    context = multiprocessing.get_context("fork")
    with writer(tmp_path, ends) as packs:
        packs.append(*record(b"mine"))
        queue = context.Queue()
        child = context.Process(target=_other, args=(tmp_path, queue))
        child.start()
        assert queue.get(timeout=30) == 2
        child.join()
        (region,) = packs.sync()
    assert (region.pack, region.start) == (1, len(PACK_HEADER))
    assert pack_numbers(FileSystem(), tmp_path) == [1, 2]


def test_a_full_pack_is_followed_by_a_new_one(
    tmp_path: Path, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, PACK_TARGET=4096)
    with writer(tmp_path, ends) as packs:
        for i in range(10):
            packs.append(*record(bytes([i]) * 1500))
        regions = packs.sync()
        ends.commit(regions)
    assert [region.pack for region in regions] == [1, 2, 3, 4]
    reader = PackReader(FileSystem(), tmp_path)
    assert sum(len(list(reader.records(region))) for region in regions) == 10
    with writer(tmp_path, ends) as packs:
        assert packs.append(*record(b"more"))[0] == 4


def test_a_repository_of_many_packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than stay open at once."""
    shrink(monkeypatch, PACK_TARGET=2048)
    history = CheckedHistory(tmp_path / "repo", 80)
    assert len(pack_numbers(FileSystem(), history.root / ".mvc/packs")) > 64
    with history.open() as repo:
        assert history.wrong(repo) == []
        assert repo.storage.fsck(full=True).problems == ()


@pytest.mark.parametrize("end", [-5, -1, 1, 5])
def test_a_region_that_cuts_a_record_is_damage(tmp_path: Path, ends: Ends, end: int) -> None:
    with writer(tmp_path, ends) as packs:
        packs.append(*record(b"a" * 50))
        packs.append(*record(b"b" * 50))
        (region,) = packs.sync()
    wrong = Region(region.pack, region.start, region.length + end)
    with pytest.raises(DamagedData, match="pack 1"):
        list(PackReader(FileSystem(), tmp_path).records(wrong))


def test_every_flipped_bit_of_a_pack_is_found(tmp_path: Path, ends: Ends) -> None:
    with writer(tmp_path, ends) as packs:
        packs.append(*record(b"some payload"))
        packs.append(*record(b"more"))
        (region,) = packs.sync()
    path = pack_path(tmp_path, 1)
    sound = path.read_bytes()
    for bit in range(8 * region.start, 8 * len(sound)):
        data = bytearray(sound)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        reader = PackReader(FileSystem(), tmp_path)
        with pytest.raises(DamagedData):
            for at, header in reader.records(region):
                for member in header.members:
                    reader.payload(1, at, header, member)
        reader.close()


def test_sound_records_behind_a_damaged_one_are_found(tmp_path: Path, ends: Ends) -> None:
    with writer(tmp_path, ends) as packs:
        places = [packs.append(*record(b"mvR1 inside" * 9, i))[1] for i in range(4)]
        (region,) = packs.sync()
    path = pack_path(tmp_path, 1)
    data = bytearray(path.read_bytes())
    data[places[1] + 20] ^= 1
    path.write_bytes(data)
    damage: list[DamagedData] = []
    found = PackReader(FileSystem(), tmp_path).sound_records(region, damage.append)
    assert [at for at, _ in found] == [places[0], places[2], places[3]]
    assert "checksum" in damage[0].message


def test_the_view_knows_each_packs_end(tmp_path: Path) -> None:
    history = CheckedHistory(tmp_path / "repo", 3)
    with history.open() as repo:
        ends = PackEnds(view_of(repo))
        for _ in range(2):
            assert ends.claimed(1) == ends.proven(1) == history.pack.stat().st_size
            assert ends.claimed(2) == ends.proven(2) == 0
            view_of(repo).index_tail(force=True)
