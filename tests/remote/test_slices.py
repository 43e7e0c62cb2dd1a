"""Slices as bytes: what was written is read; what is cut, changed or endless is refused."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable

import msgspec
import pytest

from mvc.errors import DamagedData
from mvc.ids import CommitId
from mvc.remote import slices
from mvc.remote.slices import Absent, Sent, SentShape
from mvc.remote.transport import Move, Place, Slice

ID = CommitId(bytes(range(32)))
SENT = (
    Sent((b"a commit",), 5, (Absent(bytes(ID), "dropped", "model.pt"),)),
    Sent(restored=(bytes(ID),), shapes=(SentShape(bytes(ID), "float32", (2, 3)),)),
)
MOVES: tuple[Move, ...] = (Move("heads/main", None, ID), Move("tags/v1", ID, None, force=True))


def given(records: bytes = b"12345") -> Slice:
    head, place = slices.encode_entries(SENT), Place(7, bytes(16), 9)
    parts = [records[:2], records[2:]]
    return Slice(head, 5, parts, MOVES, place=place, features=frozenset({"lc"}))


def written() -> bytes:
    return b"".join(bytes(part) for part in slices.write(given()))


def read_all(data: bytes) -> list[tuple[Slice, bytes]]:
    source, found = io.BytesIO(data).read, []
    while (one := slices.read(source)) is not None:
        found.append((one, b"".join(bytes(part) for part in one.records)))
    return found


def test_what_was_written_is_read() -> None:
    (one, records), other = read_all(written() * 2)
    assert other[1] == records == b"12345"
    assert slices.decode_entries(one.head) == SENT
    assert (one.moves, one.place, one.features) == (
        MOVES,
        Place(7, bytes(16), 9),
        frozenset({"lc"}),
    )
    assert one.size == 5


@pytest.mark.parametrize("cut", range(1, len(written()), 7))
def test_a_slice_that_is_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(DamagedData):
        read_all(written()[:cut])


@pytest.mark.parametrize("at", range(0, len(written()), 5))
def test_every_byte_is_checked(at: int) -> None:
    data = bytearray(written())
    data[at] ^= 1
    with pytest.raises(DamagedData):
        read_all(bytes(data))


def test_records_of_another_size_are_not_written() -> None:
    with pytest.raises(DamagedData):
        list(slices.write(given(b"1234")))


@pytest.mark.parametrize(
    ("head", "tail", "size"), [(1 << 31, 1, 1), (1, 1 << 31, 1), (1, 1, 1 << 60)]
)
def test_sizes_are_compared_before_anything_is_read(head: int, tail: int, size: int) -> None:
    asked: list[int] = []

    def endless(length: int) -> bytes:
        asked.append(length)
        start = struct.pack("<4sIIQ", b"mvS1", head, tail, size)
        return start if len(asked) == 1 else bytes(length)

    with pytest.raises(DamagedData):
        slices.read(endless)
    assert len(asked) == 1


def packed(make: Callable[[], object]) -> bytes:
    return msgspec.msgpack.encode(make())


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\xdd" + (1 << 24).to_bytes(4, "big") + b"\x80" * (1 << 24),
        packed(lambda: [{"size": -1}]),
        packed(lambda: [{"again": [b"short"]}]),
        packed(lambda: [{"absent": [[bytes(32), "bored", "", 0]]}]),
        packed(lambda: [{"shapes": [[bytes(32), "float32", [1] * 65]]}]),
        packed(lambda: [{"commits": "text"}]),
        packed(lambda: {"commits": []}),
        b"\x91" * 5000,
        packed(lambda: [{"shapes": [[bytes(32), "float32", [1]]]}]).replace(b"oat3", b"\xb5" * 4),
    ],
    ids=[
        "empty", "bomb", "negative", "short", "reason", "dimensions", "type", "form", "nested",
        "no text",
    ],
)  # fmt: skip
def test_entries_in_another_form_are_refused(head: bytes) -> None:
    with pytest.raises(DamagedData):
        slices.decode_entries(head)


def test_a_dtype_that_there_is_not_is_refused() -> None:
    with pytest.raises(DamagedData):
        _ = SentShape(bytes(ID), "float7", (1,)).spec
