"""Entries survive one damage, interrupted writes are told from damage, nothing is made up."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mvc.errors import DamagedData, MvcError
from mvc.io.files import FileSystem
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import (
    GENESIS,
    Gap,
    Position,
    complete,
    encode_entry,
    is_unchanged,
    read_entry,
    scan,
)


@dataclass
class Bytes:
    """A journal in memory."""

    data: bytearray = field(default_factory=bytearray)
    path: Path = Path("journal")

    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.data[offset : offset + length])

    def write_at(self, offset: int, data: bytes) -> None:
        self.data[offset : offset + len(data)] = data


def journal(*notes: str) -> tuple[Bytes, list[Position]]:
    """One entry a note; positions before the first one and after each."""
    made, at = Bytes(), [GENESIS]
    for i, note in enumerate(notes):
        data, after = encode_entry(Entry("note", i, note), at[-1])
        made.data += data
        at.append(after)
    return made, at


def notes(source: Bytes, start: Position = GENESIS) -> list[str]:
    return [recorded.entry.note for recorded in scan(source, start)]


@given(st.lists(st.text(max_size=60), max_size=8))
def test_round_trip(texts: list[str]) -> None:
    source, at = journal(*texts)
    found = list(scan(source, GENESIS))
    assert [r.entry.note for r in found] == texts
    assert [r.after for r in found] == at[1:]
    assert all(r.copies == 2 and is_unchanged(source, r) for r in found)
    for i, recorded in enumerate(found):
        assert read_entry(source, recorded.offset) == recorded
        assert notes(source, recorded.after) == texts[i + 1 :]


def test_a_place_behind_the_end_is_of_another_journal(tmp_path: Path) -> None:
    source, at = journal("first")  # as if maintenance has put a shorter journal in the place
    (tmp_path / "journal").write_bytes(source.data)
    with FileSystem().open_read(tmp_path / "journal") as file:
        for behind in (0, 1, 5000):
            with pytest.raises(DamagedData, match="damaged in both copies"):
                read_entry(file, at[1].offset + behind)


def test_a_long_entry_between_short_ones() -> None:
    texts = ["a", "long " * 40_000, "b"]
    source, _ = journal(*texts)
    assert notes(source) == texts


@pytest.mark.parametrize("which", [0, 1, 2])
def test_any_single_flipped_bit_of_an_entry_is_read_over(which: int) -> None:
    source, at = journal("first", "second", "third")
    for bit in range(8 * at[which].offset, 8 * at[which + 1].offset):
        source.data[bit // 8] ^= 1 << bit % 8
        found = list(scan(source, GENESIS))
        assert [r.entry.note for r in found] == ["first", "second", "third"]
        assert [r.copies for r in found] == [1 if i == which else 2 for i in range(3)]
        complete(source, found[which])
        assert source.data == journal("first", "second", "third")[0].data


def test_an_entry_cut_off_at_any_byte_is_there_or_not() -> None:
    whole, at = journal("first", "second", "third")
    start, half = at[2].offset, (at[3].offset - at[2].offset) // 2
    for size in range(start, at[3].offset):
        source = Bytes(whole.data[:size])
        found = list(scan(source, GENESIS))
        arrived = size >= start + half
        assert [r.entry.note for r in found] == ["first", "second", "third"][: 2 + arrived]
        if arrived:
            complete(source, found[-1])
            assert source.data == whole.data


def test_a_torn_last_entry_is_there_or_not() -> None:
    """Sectors of an interrupted write arrive, stay empty or turn to garbage."""
    whole, at = journal("first", "second", "x" * 900)
    start = at[2].offset
    rng = random.Random(4)
    seen = set()
    for _ in range(2000):
        data = bytearray(whole.data)
        for sector in range(start // 512 * 512, len(data), 512):
            begin, end = max(start, sector), min(len(data), sector + 512)
            fate = rng.random()
            if fate < 0.3:
                data[begin:end] = bytes(end - begin)
            elif fate < 0.5:
                data[begin:end] = rng.randbytes(end - begin)
        found = notes(Bytes(data))
        assert found in (["first", "second"], ["first", "second", "x" * 900])
        seen.add(len(found))
    assert seen == {2, 3}


def test_damage_in_the_middle_of_both_copies_is_named() -> None:
    source, at = journal("first", "second", "third")
    half = (at[2].offset - at[1].offset) // 2
    for back in (20, half - 20):
        damaged = Bytes(bytearray(source.data))
        for end in (at[1].offset + half, at[2].offset):
            damaged.data[end - back] ^= 4
        with pytest.raises(DamagedData, match=r"entry 1 .* damaged in both copies"):
            notes(damaged)
        with pytest.raises(DamagedData, match=f"byte {at[1].offset}"):
            read_entry(damaged, at[1].offset)
        assert read_entry(damaged, at[2].offset).entry.note == "third"


def test_an_entry_of_another_history_breaks_the_chain() -> None:
    source, at = journal("first", "second")
    other, _ = encode_entry(Entry("note", 9, "foreign"), Position(at[2].offset, 2, bytes(16)))
    source.data += other
    with pytest.raises(DamagedData, match="chain breaks at entry 2"):
        notes(source)


def test_entries_exchanged_or_repeated_break_the_chain() -> None:
    source, at = journal("aaa", "bbb", "ccc")
    parts = [bytes(source.data[a.offset : b.offset]) for a, b in pairwise(at)]
    for order in ((0, 2, 1), (0, 1, 1, 2), (0, 2), (1, 2)):
        with pytest.raises(DamagedData, match=r"chain breaks|both copies"):
            notes(Bytes(bytearray(b"".join(parts[i] for i in order))))


def test_a_journal_shorter_than_known_is_missing_history() -> None:
    source, at = journal("first", "second")
    with pytest.raises(DamagedData, match="but 282 were recorded"):
        notes(Bytes(source.data[: at[1].offset]), at[2])


def test_an_entry_that_its_writer_took_back_stands_no_more() -> None:
    source, at = journal("first", "second")
    *_, last = scan(source, GENESIS)
    del source.data[at[1].offset :]
    assert not is_unchanged(source, last)
    source.data += encode_entry(Entry("note", 5, "other, longer"), at[1])[0]
    assert not is_unchanged(source, last)


@given(st.binary(max_size=400))
def test_garbage_behind_the_last_entry_is_no_entry(garbage: bytes) -> None:
    source, _ = journal("first", "second")
    source.data += garbage
    assert notes(source) == ["first", "second"]


@given(st.binary(max_size=300), st.integers(0, 400))
def test_hostile_bytes_raise_nothing_else(data: bytes, at: int) -> None:
    source, _ = journal("first", "second")
    source.data[at : at + len(data)] = data
    with suppress(MvcError):
        assert set(notes(source)) <= {"first", "second"}


@given(st.integers(0, 200))
@example(8)
@example(21)  # lengths of frames coincide
@settings(max_examples=5, deadline=None)
def test_what_stands_behind_lost_entries_is_found(seed: int) -> None:
    """Entries damaged in both copies, and one in one: all others are found in their places."""
    rng = random.Random(seed)
    texts = [f"entry {i} " + "x" * rng.randrange(300) for i in range(12)]
    whole, at = journal(*texts)
    for _ in range(400):
        source = Bytes(bytearray(whole.data))
        lost = set(rng.sample(range(11), rng.randrange(1, 5)))
        halved = {rng.randrange(12)} - lost
        for i in lost | halved:
            half = (at[i + 1].offset - at[i].offset) // 2
            for copy in (0, 1) if i in lost else (rng.randrange(2),):
                begin = at[i].offset + copy * half
                where = rng.choice([0, 4, 5, 8, 40, half - 1])
                length = rng.choice([1, 1, half - where])
                for byte in range(begin + where, begin + where + length):
                    source.data[byte] ^= rng.randrange(1, 256)
        gaps: list[Gap] = []
        found = list(scan(source, GENESIS, gaps.append))
        expected = [i for i in range(12) if i not in lost]
        assert [r.sequence for r in found] == expected
        assert [r.offset for r in found] == [at[i].offset for i in expected]
        assert [r.entry.note for r in found] == [texts[i] for i in expected]
        assert {n for gap in gaps for n in gap.numbers} == lost
        with pytest.raises(DamagedData):
            list(scan(source, GENESIS))


def test_a_frame_in_the_text_of_a_lost_entry_is_no_entry() -> None:
    """Somebody wrote a whole frame into a message; then the entry around it was damaged."""
    inner, _ = encode_entry(Entry("commit", 5, "never happened"), Position(0, 2, b"c" * 16))
    source, at = journal("first")
    raw = Entry("commit", 5, inner.decode("utf-8", "surrogateescape"))
    data = bytearray(source.data[: at[1].offset])
    written, after = encode_entry(raw, at[1])
    third, _ = encode_entry(Entry("commit", 6, "third"), after)
    assert inner in written
    for damaged in (60, 33):
        first = bytearray(written)
        half = len(written) // 2
        first[damaged] ^= 1
        first[half + damaged] ^= 1
        source = Bytes(data + first + third)
        gaps: list[Gap] = []
        assert [r.entry.note for r in scan(source, GENESIS, gaps.append)] == ["first", "third"]
        assert len(gaps) == 1


@given(st.binary(max_size=300), st.integers(0, 2))
def test_hostile_bytes_raise_nothing_else_behind_gaps(data: bytes, at: int) -> None:
    source, places = journal("first", "second")
    begin = places[at].offset
    source.data[begin : begin + len(data)] = data
    try:
        list(scan(source, GENESIS, lambda gap: None))
    except MvcError as error:
        assert isinstance(error, DamagedData)
