"""Commits: canonical bytes that name them; ids keep their kinds apart."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mvc.errors import DamagedData, UnsupportedFormat
from mvc.ids import CommitId, ManifestId, Root
from mvc.model.commit import Commit

TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
COMMITS = st.builds(
    Commit,
    st.binary(min_size=32, max_size=32).map(ManifestId),
    st.binary(min_size=32, max_size=32).map(Root),
    st.lists(st.binary(min_size=32, max_size=32).map(CommitId), max_size=3).map(tuple),
    TEXT,
    st.integers(-(1 << 62), 1 << 62),
    st.integers(-1000, 1000),
    TEXT,
    st.dictionaries(TEXT, st.floats(), max_size=4),
    TEXT,
    TEXT,
    st.dictionaries(TEXT, TEXT, max_size=3),
    run=TEXT,
    dirty=st.booleans(),
)
PLAIN = Commit(ManifestId(bytes(32)), Root(bytes(32)), (), "me", 1, 0)


@given(COMMITS)
def test_round_trip(commit: Commit) -> None:
    decoded = Commit.decode(commit.encoded)
    assert decoded.encoded == replace(decoded).encoded == commit.encoded
    assert decoded.id == commit.id
    assert decoded.parents == commit.parents
    assert (decoded.time_ns, decoded.message) == (commit.time_ns, commit.message)


@given(COMMITS, st.data())
def test_other_bytes_are_another_commit_or_damage(commit: Commit, data: st.DataObject) -> None:
    encoded = bytearray(commit.encoded)
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        other = Commit.decode(bytes(encoded))
    except (DamagedData, UnsupportedFormat):
        return
    assert other.encoded == replace(other).encoded == bytes(encoded)
    assert other.id != commit.id


def test_the_order_in_which_metrics_are_given_does_not_matter() -> None:
    one, two = (replace(PLAIN, metrics=m) for m in ({"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0}))
    assert one.id == two.id
    encoded = one.encoded
    a, b = (bytes([1]) + name + struct.pack("<d", v) for name, v in ((b"a", 1), (b"b", 2)))
    assert a + b in encoded
    with pytest.raises(DamagedData, match="canonical"):
        Commit.decode(encoded.replace(a + b, b + a))
    with pytest.raises(DamagedData, match="canonical"):
        Commit.decode(encoded.replace(a + b, a + a))


def test_params_have_one_form() -> None:
    encoded = replace(PLAIN, params={"b": "2", "a": "1"}).encoded
    a, b = b"\1a\0011", b"\1b\0012"
    table = b"\2" + a + b
    front, rest = PLAIN.encoded[:-5], bytes(4)
    assert encoded == front + table + rest
    for wrong in (
        b"\2" + b + a,  # another order
        b"\2" + a + a,  # a name twice
        b"\2" + a + b"\1a\0012",
        b"\x82\0" + a + b,  # a longer number
        b"\2" + a + b"\x81\0b\0012",
        b"\2" + a + b"\1b\x81\0002",
    ):
        with pytest.raises(DamagedData, match=r"canonical|redundant"):
            Commit.decode(front + wrong + rest)
    for wrong in (
        b"",
        b"\1" + a + b,
        b"\3" + a + b,
        b"\2" + a + b + b"\0",
        b"\x88\x27" + a * 5000,  # more than a commit may have
        b"\1\x81\x08" + b"n" * 1025 + b"\0",  # a name, and a value, of 1,025 bytes
        b"\1\1n\x81\x08" + b"v" * 1025,
    ):
        with pytest.raises(DamagedData):
            Commit.decode(front + wrong + rest)
    for version in (b"\0", b"\2"):
        with pytest.raises(DamagedData):
            Commit.decode(version + encoded[1:])
    assert Commit.decode(front + b"\1\1n\x80\x08" + b"v" * 1024 + rest).params == {"n": "v" * 1024}


def test_metrics_keep_their_bits() -> None:
    odd = {"nan": math.nan, "minus": -0.0, "inf": math.inf, "tiny": 5e-324}
    found = Commit.decode(replace(PLAIN, metrics=odd).encoded).metrics
    assert struct.pack("<4d", *found.values()) == struct.pack("<4d", *(odd[name] for name in found))


def test_every_field_is_in_the_id() -> None:
    other = [
        replace(PLAIN, manifest=ManifestId(b"1" * 32)), replace(PLAIN, root=Root(b"1" * 32)),
        replace(PLAIN, parents=(CommitId(bytes(32)),)), replace(PLAIN, author="you"),
        replace(PLAIN, time_ns=2), replace(PLAIN, zone_minutes=1), replace(PLAIN, message="m"),
        replace(PLAIN, metrics={"": 0.0}), replace(PLAIN, pipeline="m"), replace(PLAIN, code="m"),
        replace(PLAIN, params={"": ""}), replace(PLAIN, params={"": "m"}),
    ]  # fmt: skip
    assert len({commit.id for commit in [PLAIN, *other]}) == len(other) + 1


def test_ids_are_bytes_of_one_length() -> None:
    assert CommitId.parse(PLAIN.id.hex()) == PLAIN.id
    assert str(PLAIN.id) == PLAIN.id.hex()
    assert PLAIN.id.short in repr(PLAIN.id)
    with pytest.raises(ValueError, match="32 bytes"):
        CommitId(b"short")


def test_whose_run_and_whether_the_code_differed() -> None:
    run = replace(PLAIN, run="a", dirty=True)
    assert run.encoded == PLAIN.encoded[:-2] + b"\1a\1"
    read = Commit.decode(run.encoded)
    assert (read.run, read.dirty, read.id) == ("a", True, run.id)
    with pytest.raises(DamagedData):
        Commit.decode(run.encoded[:-1] + b"\2")
