"""What is like the value before is read at once, and must read as if it were read alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from blake3 import blake3
from msgspec.structs import replace

from mvc.errors import DamagedData
from mvc.ids import CommitId, ManifestId, Root
from mvc.model.commit import Commit
from mvc.model.layout import FormLayout, Forms, number
from mvc.model.statement import Deployment
from mvc.store.journal.entries import Entry, RefChange, Region
from mvc.store.packs.records import Coding, Member, decode_header, encode_header, payload_check


def _id(i: int) -> bytes:
    return bytes([i]) * 32


def commit(i: int, parents: int = 1) -> Commit:
    return Commit(
        ManifestId(_id(i)), Root(_id(i + 1)), (CommitId(_id(i + 2)),) * parents, "somebody",
        -(10**18) - i, 60, f"step {i}", {"loss": i / 7}, "lossless", "", {"seed": f"{i}"},
    )  # fmt: skip


def entry(i: int, parents: int = 1) -> Entry:
    made = commit(i, parents)
    return Entry(
        "commit", 10**18 + i, regions=(Region(2, 5000 + i, 300 + i),), commits=(made,),
        refs=(RefChange("heads/main", made.parents[0] if parents else None, made.id),),
        marks=(bytes([i]) * 8,),
        statements=(
            Deployment(subject=made.id, node=bytes(16), target="prod", time_ns=10**18 + i),
        ),
        previous=(4000 + i,),
    )  # fmt: skip


def header(i: int) -> bytes:
    members, at = [], 0
    for j, stored in enumerate((200 + i, 100 - i, 0)):
        base = b"" if j else _id(i + j)[:8]
        check = payload_check([bytes([i, j])])
        coding = Coding("sub" if j else "patch")
        members.append(Member(1 + j % 2, _id(i + j + 9), 0, 512, coding, base, at, stored, check))
        at += stored
    return encode_header(members, group=False, body_size=at)


def read_header(data: bytes) -> object:
    return decode_header(data + blake3(data).digest(16), "a pack")


def outcome(read: Callable[[bytes], object], data: bytes) -> object:
    try:
        return read(data)
    except DamagedData as error:
        return error.message


@pytest.mark.parametrize(
    ("make", "read"),
    [
        (lambda i: entry(i).encoded, lambda data: Entry.decode(data, "an entry")),
        (lambda i: commit(i).encoded, Commit.decode),
        (lambda i: header(i)[:-16], read_header),
    ],
    ids=["entry", "commit", "header"],
)
def test_after_a_value_like_it_it_reads_as_it_does_alone_damaged_or_not(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[int], bytes], read: Callable[[bytes], object]
) -> None:
    data, known = make(13), make(12)
    flips = [(at, bits) for at in range(len(data)) for bits in (1, 0x80, 0xFF, data[at])]
    given = [data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :] for at, bits in flips]
    with monkeypatch.context() as alone:
        alone.setattr(Forms, "read", lambda self, data: None)
        expected = [outcome(read, each) for each in (data, *given)]
    for each, wanted in zip((data, *given), expected, strict=True):
        read(known)
        assert outcome(read, each) == wanted


def test_an_entry_without_the_parent_of_the_last_one_keeps_what_it_says() -> None:
    for each in (entry(20), entry(21, parents=0), entry(22, parents=2), entry(23)):
        assert replace(Entry.decode(each.encoded, "an entry")) == each


def test_a_layout_takes_what_it_was_told_may_differ_and_nothing_else() -> None:
    layout = FormLayout(b"ab\x81\x01cd", [(0, 1, False), (2, 4, True)])
    assert layout.read(b"xb\xff\x02cd") == (b"x", b"\xff\x02")
    assert layout.read(b"xb\x01\x02cd") is layout.read(b"xB\xff\x02cd") is None
    assert layout.read(b"ab\x81\x01cde") is None


def test_a_number_with_redundant_bytes_or_above_its_limit_is_refused() -> None:
    assert number(b"\xac\x02") == 300
    assert number(b"\0") == 0
    for field, limit in ((b"\x80\0", 1), (b"\xac\x02", 299), (b"\xff" * 9 + b"\x7f", 1 << 64)):
        with pytest.raises(ValueError):
            number(field, limit)
