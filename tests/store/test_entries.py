"""Journal entries: canonical bytes, and nothing but DamagedData for other ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mvc.errors import DamagedData, MvcError, UnsupportedFormat
from mvc.ids import CommitId, ManifestId, Root
from mvc.model.commit import Commit
from mvc.model.statement import Deployment
from mvc.store.journal.entries import STATE_CHANGES, Entry, RefChange, Region, StateMark
from tests.model.statements import NAMES, STATEMENTS, TEXTS

IDS = st.binary(min_size=32, max_size=32).map(CommitId)
VALUES = st.one_of(st.none(), IDS, NAMES)
SIZES = st.integers(0, 1 << 62)
NUMBERS = st.none() | st.integers(0, 1 << 40)


@st.composite
def commits(draw: st.DrawFn) -> Commit:
    return Commit(
        ManifestId(draw(IDS)),
        Root(draw(IDS)),
        tuple(draw(st.lists(IDS, max_size=2))),
        draw(NAMES),
        draw(st.integers(-(1 << 62), 1 << 62)),
        draw(st.integers(-900, 900)),
        draw(NAMES),
        params=draw(st.dictionaries(NAMES, NAMES, max_size=1)),
    )


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    made = tuple(draw(st.lists(commits(), max_size=2)))
    own = st.sampled_from([c.id for c in made] + [p for c in made for p in c.parents] or [None])
    value = st.one_of(VALUES, own)
    rows = draw(st.lists(st.tuples(STATEMENTS, NUMBERS), max_size=3))
    return Entry(
        draw(NAMES),
        draw(st.integers(0, 1 << 63)),
        draw(NAMES),
        draw(TEXTS),
        draw(TEXTS),
        draw(NUMBERS),
        tuple(draw(st.lists(st.builds(Region, st.integers(0, 1 << 32), SIZES, SIZES), max_size=3))),
        made,
        tuple(draw(st.lists(st.builds(RefChange, NAMES, value, value), max_size=3))),
        tuple(draw(st.lists(st.binary(min_size=8, max_size=8), max_size=3))),
        tuple(statement for statement, _ in rows),
        tuple(before for _, before in rows),
        tuple(
            draw(
                st.lists(
                    st.builds(StateMark, IDS, st.sampled_from(STATE_CHANGES), TEXTS), max_size=2
                )
            )
        ),
    )


@given(entries())
def test_round_trip(entry: Entry) -> None:
    decoded = Entry.decode(entry.encoded, "here")
    assert decoded == entry
    assert decoded.encoded == entry.encoded


@given(entries(), st.data())
def test_other_bytes_are_another_entry_or_damage(entry: Entry, data: st.DataObject) -> None:
    encoded = bytearray(entry.encoded)
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    try:
        assert Entry.decode(bytes(encoded), "here") != entry
    except MvcError as error:
        assert isinstance(error, DamagedData | UnsupportedFormat)


@given(st.binary(max_size=300))
def test_hostile_bytes_are_damage(data: bytes) -> None:
    try:
        Entry.decode(b"\1" + data, "here")
    except MvcError as error:
        assert isinstance(error, DamagedData)


@given(entries())
def test_cut_off_is_damage(entry: Entry) -> None:
    with pytest.raises(DamagedData):
        Entry.decode(entry.encoded[:-1], "here")
    with pytest.raises(DamagedData):
        Entry.decode(entry.encoded + b"\0", "here")


def test_an_unknown_version_is_named() -> None:
    with pytest.raises(DamagedData, match=r"entry 7 .*version is unknown"):
        Entry.decode(b"\6" + Entry("x", 1).encoded[1:], "entry 7")


def test_entries_like_a_known_one() -> None:
    """Once a form is known, others of the form are read by it."""
    one = Commit(ManifestId(bytes(32)), Root(bytes(32)), (), "me", 1, 0, run="a", dirty=True)
    for step in range(3):
        made = replace(one, manifest=ManifestId(bytes([step] * 32)))
        live = Deployment(subject=made.id, node=bytes(16), target="prod", time_ns=step)
        entry = Entry("commit", step, commits=(made,), statements=(live,), previous=(7,))
        assert Entry.decode(entry.encoded, "here") == entry


def test_entries_without_commits_are_read_by_their_form() -> None:
    """Each with another version, time and predecessor, as thousands of deployments have."""
    for step in range(130, 160):
        id_, other = CommitId(bytes([step] * 32)), CommitId(bytes([step + 1] * 32))
        made = Deployment(
            subject=id_, author="ann", reason="why", node=bytes(16), recorded_ns=10**9 + step,
            hybrid_ns=10**9 + step, target="prod", time_ns=10**9 + step,
        )  # fmt: skip
        moves = RefChange("heads/main", None if step % 5 else other, id_)
        entry = Entry(
            "deploy", 10**9 + step, "prod", statements=(made,), previous=(step,),
            refs=(moves, RefChange("HEAD", "main", "other")),
        )  # fmt: skip
        assert Entry.decode(entry.encoded, "here") == entry
        assert Entry.decode(replace(entry, author="bob").encoded, "here").author == "bob"
