"""Journal entries: canonical bytes, and nothing but DamagedData for other ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mvc.errors import DamagedData, MvcError
from mvc.ids import CommitId, ManifestId, Root
from mvc.model.commit import Commit
from mvc.store.journal.entries import (
    Deployment,
    Entry,
    Forgotten,
    RefChange,
    Region,
    Relink,
    Retraction,
    Weights,
)

IDS = st.binary(min_size=32, max_size=32).map(CommitId)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
VALUES = st.one_of(st.none(), IDS, NAMES)
SIZES = st.integers(0, 1 << 62)
KINDS, NOTHING = st.sampled_from(["proven", "dropped", "restored"]), st.just("")


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
    deployed = st.one_of(IDS, own.filter(lambda v: v is not None)) if made else IDS
    return Entry(
        draw(NAMES),
        draw(st.integers(0, 1 << 63)),
        draw(NAMES),
        tuple(draw(st.lists(st.builds(Region, st.integers(0, 1 << 32), SIZES, SIZES), max_size=3))),
        made,
        tuple(draw(st.lists(st.builds(RefChange, NAMES, value, value), max_size=3))),
        tuple(
            draw(
                st.lists(
                    st.builds(
                        Deployment,
                        NAMES,
                        st.integers(-(1 << 62), 1 << 62),
                        deployed,
                        st.one_of(st.none(), st.integers(0, 1 << 40)),
                    ),
                    max_size=2,
                )
            )
        ),
        tuple(draw(st.lists(st.builds(Retraction, NAMES, SIZES), max_size=2))),
        draw(st.one_of(st.none(), st.lists(NAMES, max_size=3).map(tuple))),
        tuple(draw(st.lists(st.binary(min_size=8, max_size=8), max_size=3))),
        tuple(draw(st.lists(st.builds(Forgotten, IDS, st.booleans()), max_size=2))),
        draw(st.one_of(st.none(), st.integers(0, 1 << 40))),
        tuple(
            draw(
                st.lists(
                    st.builds(Relink, NAMES, SIZES, st.one_of(st.none(), st.integers(0, 1 << 40))),
                    max_size=2,
                )
            )
        ),
        tuple(
            draw(
                st.lists(st.builds(Weights, IDS, KINDS, NAMES, SIZES, NAMES | NOTHING), max_size=2)
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
        assert isinstance(error, DamagedData)


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
        Entry.decode(b"\5" + Entry("x", 1).encoded[1:], "entry 7")


def test_nothing_removed_is_not_untouched() -> None:
    untouched, none = Entry("x", 1), replace(Entry("x", 1), removed=())
    assert untouched.encoded != none.encoded
    assert Entry.decode(none.encoded, "here").removed == ()


def test_an_entry_has_the_lowest_version_that_can_say_it() -> None:
    plain = Entry("x", 1)
    assert (plain.encoded[0], plain.features) == (1, frozenset())
    undo = replace(plain, undoes=3)
    assert (undo.encoded[0], undo.features) == (2, {"entry-2"})
    relink = replace(plain, relinks=(Relink("prod", 7, 5),))
    assert (relink.encoded[0], relink.features) == (3, {"entry-3"})
    longer = b"\2" + plain.encoded[1:] + b"\0\0"
    with pytest.raises(DamagedData, match="longer form"):
        Entry.decode(longer, "here")
    with pytest.raises(DamagedData, match="longer form"):
        Entry.decode(b"\3" + undo.encoded[1:] + b"\0", "here")
