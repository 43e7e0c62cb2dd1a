"""Record headers: one encoding each, every bit checked, hostile ones refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import DamagedData
from mvc.limits import MAX_RECORD_HEADER
from mvc.store.packs.reader import EntryRecords
from mvc.store.packs.records import (
    BLOB,
    CHECK_SIZE,
    MANIFEST,
    MOST_INPUTS,
    PREFIX_SIZE,
    Coding,
    Member,
    decode_header,
    encode_header,
    patch_extra,
    payload_check,
    read_prefix,
)

TEXTS = st.sampled_from(["raw", "planes | zstd:1", "sub | planes", "patch", "resize | xor | raw"])
OPTIM = "optim:adam.w.2:float32:0.001,0.9 | sub | planes"


@st.composite
def records(draw: st.DrawFn) -> tuple[list[Member], bool, int]:
    group = draw(st.booleans())
    size = draw(st.integers(0, 10**6))
    check = draw(st.binary(min_size=8, max_size=8))
    members, at = [], 0
    for _ in range(draw(st.integers(1, 6))):
        stored = size if group else draw(st.integers(0, 1 << 40))
        inputs = draw(st.lists(st.binary(min_size=8, max_size=8), max_size=MOST_INPUTS))
        base = draw(st.one_of(st.just(b""), st.binary(min_size=8, max_size=8)))
        members.append(
            Member(
                draw(st.sampled_from([BLOB, MANIFEST])),
                draw(st.binary(min_size=32, max_size=32)),
                draw(st.sampled_from([0, 1, 32 << 20, (1 << 62) - 1])),
                draw(st.integers(0, 1 << 62)),
                Coding(OPTIM if inputs else draw(TEXTS)),
                base or b"itsbase." if inputs else base,
                0 if group else at,
                stored,
                check if group else draw(st.binary(min_size=8, max_size=8)),
                tuple(inputs),
            )
        )
        at += stored
    return members, group, size if group else at


@given(records())
def test_round_trip(made: tuple[list[Member], bool, int]) -> None:
    members, group, size = made
    data = encode_header(members, group=group, body_size=size)
    header = decode_header(data, "here")
    assert header.members == tuple(members)
    assert (header.group, header.body_size) == (group, size)
    assert header.body_at == len(data)
    assert header.size == len(data) + size
    assert encode_header(header.members, group=group, body_size=size) == data
    assert {id_: len(at) for id_, at in header.by_id.items()} == {
        m.id: sum(x.id == m.id for x in members) for m in members
    }
    undirected = {m.base for m in members if m.base and not m.coding.transform}
    assert set(EntryRecords([(1, 0, header)]).by_base) == undirected


def sample() -> bytes:
    members = [
        Member(BLOB, bytes([i]) * 32, i, 50, Coding("raw"), b"base..%02d" % i, 7 * i, 7, bytes(8))
        for i in range(3)
    ]
    return encode_header(members, group=False, body_size=21)


def test_every_flipped_bit_is_found() -> None:
    data = sample()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedData, match="here"):
            decode_header(bytes(flipped), "here")


def test_every_truncation_and_every_byte_more_is_found() -> None:
    data = sample()
    for size in range(len(data)):
        with pytest.raises(DamagedData):
            decode_header(data[:size], "here")
    with pytest.raises(DamagedData):
        decode_header(data + b"\0", "here")


def signed(header: bytes, body: int = 0) -> bytes:
    """A hostile header with a checksum that fits."""
    head = b"mvR1" + len(header).to_bytes(4, "little") + body.to_bytes(8, "little") + header
    return head + blake3(head).digest(CHECK_SIZE)


@given(st.binary(max_size=120), st.integers(0, 1 << 64).map(lambda n: min(n, (1 << 64) - 1)))
def test_hostile_headers_raise_nothing_but_damage(header: bytes, body: int) -> None:
    with suppress(DamagedData):
        decode_header(signed(header, body), "here")


def test_headers_of_one_form_have_inputs_of_their_own() -> None:
    def member(letter: bytes, inputs: int) -> Member:
        names = tuple(bytes([65 + i]) * 7 + letter for i in range(inputs))
        return Member(BLOB, letter * 32, 0, 50, Coding(OPTIM), b"base....", 0, 7, bytes(8), names)

    for inputs in (0, 1, MOST_INPUTS):
        for letter in (b"x", b"y", b"z"):
            one = member(letter, inputs)
            header = decode_header(encode_header([one], group=False, body_size=7), "here")
            assert header.members == (one,)


@pytest.mark.parametrize(
    ("flags", "rest"),
    [
        (0b10101, b"basebase" + b"\0"),
        (0b10101, b"basebase" + b"\5" + b"inputs.." * 5),
        (0b10101, b"basebase" + b"\2" + b"inputs.."),
        (0b10001, b"\1" + b"inputs.."),
        (0b100101, b"basebase" + b"\1" + b"inputs.."),
    ],
)
def test_hostile_inputs_are_refused(flags: int, rest: bytes) -> None:
    text = OPTIM.encode()
    header = b"\0\1" + bytes([len(text)]) + text + b"\1" + bytes([flags]) + bytes(32) + b"\4\0"
    with pytest.raises(DamagedData):
        decode_header(signed(header + rest + b"\0" + bytes(8)), "here")


def test_payloads_must_fill_the_body() -> None:
    data = sample()
    header = data[PREFIX_SIZE:-CHECK_SIZE]
    assert decode_header(signed(header, 21), "here").body_size == 21
    for body in (20, 22):
        with pytest.raises(DamagedData):
            decode_header(signed(header, body), "here")


def test_no_header_is_longer_than_the_limit() -> None:
    prefix = b"mvR1" + (MAX_RECORD_HEADER + 1).to_bytes(4, "little") + bytes(8)
    with pytest.raises(DamagedData, match="no valid beginning"):
        read_prefix(prefix, 1 << 60, "here")
    with pytest.raises(DamagedData, match="longer than its file"):
        read_prefix(sample()[:PREFIX_SIZE], 50, "here")


@pytest.mark.parametrize(
    ("text", "bridge", "pipeline"),
    [
        ("planes | zstd:1", "", "planes | zstd:1"),
        ("resize | sub | planes", "resize", "sub | planes"),
        ("cast:float32>float16 | xor", "cast:float32>float16", "xor"),
        ("patch", "patch", "patch"),
        (OPTIM, "optim:adam.w.2:float32:0.001,0.9", "sub | planes"),
    ],
)
def test_a_coding_is_a_bridge_and_a_pipeline(text: str, bridge: str, pipeline: str) -> None:
    assert (Coding(text).transform, Coding(text).pipeline) == (bridge, pipeline)


def test_a_manifest_may_draw_on_the_ids_beside_it() -> None:
    members = decode_header(sample(), "here").members
    assert patch_extra(members, MANIFEST) == b"".join(m.id for m in members)
    assert patch_extra(members, BLOB) == b""


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_a_payload_is_checked_whole_or_in_parts(parts: list[bytes]) -> None:
    assert payload_check(parts) == payload_check([b"".join(parts)])
