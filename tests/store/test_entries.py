"""Journal entries: canonical bytes, and nothing but DamagedData for other ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mvc.errors import DamagedData, MvcError, UnsupportedFormat
from mvc.ids import CommitId, DeploymentId, ManifestId, Root
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
from mvc.store.journal.signatures import Signature
from mvc.store.journal.stamps import LateStamp, Stamp

IDS = st.binary(min_size=32, max_size=32).map(CommitId)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
VALUES = st.one_of(st.none(), IDS, NAMES)
SIZES = st.integers(0, 1 << 62)
UNKNOWN = st.integers(100, 9000).map(lambda number: 4 * number + number % 2)
STAMPS = st.builds(
    Stamp,
    st.binary(min_size=16, max_size=16),
    st.integers(-(1 << 62), 1 << 62),
    st.integers(0, 1 << 63),
)
NAMED = st.binary(min_size=16, max_size=16).map(DeploymentId)
BLOBS = st.binary(max_size=40)
SIGNED_AT = st.integers(0, (1 << 63) - 1)
SIGNATURES = st.one_of(
    st.builds(Signature, st.just("version"), IDS, SIGNED_AT, BLOBS),
    st.builds(Signature, st.just("retraction"), IDS, SIGNED_AT, BLOBS, NAMES, NAMED),
    st.builds(
        Signature,
        st.just("deployment"),
        IDS,
        SIGNED_AT,
        BLOBS,
        NAMES,
        NAMED,
        NAMED | st.just(DeploymentId(b"")),
    ),
)
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
                        st.one_of(st.none(), st.integers(0, 1 << 40)),
                        st.none() | STAMPS,
                        st.none() | st.integers(-(1 << 62), 1 << 62),
                    ),
                    max_size=2,
                    unique_by=lambda deployment: deployment.target,
                )
            )
        ),
        tuple(draw(st.lists(st.builds(Retraction, NAMES, SIZES), max_size=2))),
        draw(st.one_of(st.none(), st.lists(NAMES, max_size=3).map(tuple))),
        tuple(draw(st.lists(st.binary(min_size=8, max_size=8), max_size=3))),
        tuple(
            draw(
                st.lists(
                    st.builds(
                        Forgotten,
                        IDS,
                        st.booleans(),
                        st.none() | st.binary(min_size=32, max_size=32).filter(any).map(Root),
                    ),
                    max_size=2,
                )
            )
        ),
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
        stamps=tuple(
            draw(st.lists(st.builds(LateStamp, NAMES, st.integers(0, 1 << 40), STAMPS), max_size=2))
        ),
        here_again=tuple(draw(st.lists(IDS, max_size=2))),
        origin_ns=draw(st.none() | st.integers(0, 1 << 63)),
        author=draw(NAMES | NOTHING),
        reason=draw(NAMES | NOTHING),
        signatures=tuple(draw(st.lists(SIGNATURES, max_size=2))),
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


def test_nothing_removed_is_not_untouched() -> None:
    untouched, none = Entry("x", 1), replace(Entry("x", 1), removed=())
    assert untouched.encoded != none.encoded
    assert Entry.decode(none.encoded, "here").removed == ()


_FIELDS = ("author", "reason", "returns", "evidence", "roots", "gone", "stamps", "here again",
           "origin", "ahead", "signed", "replaces", "sender")  # fmt: skip


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("returns", b"\1\0"),  # a rollback of no deployment
        ("roots", b"\x20" + b"r" * 32),  # the root of no forgotten version
        ("gone", b"\x21" + b"g" * 33),  # an id and a byte
        ("stamps", b"\1\0"),  # no stamp
        ("stamps", b"\x15\1\1p\0" + b"n" * 16 + b"\2\1"),  # a stamp of no deployment
        ("stamps", b"\x15\1\1p\1" + b"n" * 16 + b"\2"),  # one that is cut off
        ("origin", b"\2\x80\0"),  # a time of redundant bytes
        ("ahead", b"\2\1\0"),  # clocks of other deployments
        ("ahead", b"\1\0"),  # clocks of none
        ("author", b"\x7fa"),  # cut off
        ("author", b"\x81\x08" + b"a" * 1025),  # longer than a name may be
        ("sender", b"\0\0"),  # bytes behind it
        ("sender", b""),  # missing
    ],
)
def test_a_hostile_field_is_damage(name: str, field: bytes) -> None:
    plain, at = Entry("x", 1).encoded, _FIELDS.index(name)
    front, rest = plain[:-13], [b"\0"] * 13
    rest[at] = field
    with pytest.raises(DamagedData):
        Entry.decode(front + b"".join(rest), "here")


def test_roots_of_forgotten_versions_and_which_are_gone() -> None:
    ids, root = [CommitId(bytes([n]) * 32) for n in range(1, 4)], Root(b"r" * 32)
    some = Entry("forget", 1, forgotten=(Forgotten(ids[0], True, root), Forgotten(ids[1], False)))
    gone = Entry("gc", 1, gone=tuple(ids))
    for entry in (some, gone):
        assert Entry.decode(entry.encoded, "here") == entry
    zeros = some.encoded.replace(root, bytes(32))
    with pytest.raises(DamagedData, match="canonical form"):
        Entry.decode(zeros, "here")


def test_what_an_entry_says_of_other_repositories() -> None:
    id_, stamp = CommitId(b"i" * 32), Stamp(b"n" * 16, -5, 7)
    own = Entry("deploy", 1, deployments=(Deployment("prod", 1, id_, 3, None, stamp),))
    late = Entry("stamp", 1, stamps=(LateStamp("prod", 3, stamp), LateStamp("prod", 9, stamp)))
    again = Entry("fetch", 1, here_again=(id_,))
    long = Entry("fetch", 1, refs=(RefChange("remotes/o/" + "b" * 238, None, id_),))
    for entry in (own, late, again, long):
        assert Entry.decode(entry.encoded, "here") == entry
    assert (Entry("fetch", 9, origin_ns=4).done_ns, Entry("x", 9).done_ns) == (4, 9)
    report = Deployment("nodes/7/prod", 1, id_, 3, None, stamp, ahead_ms=-600_000)
    mixed = replace(own, deployments=(*own.deployments, report))
    assert Entry.decode(mixed.encoded, "here") == mixed
    for name in ("remotes/" + "b" * 241, "heads/" + "b" * 195):
        entry = replace(long, refs=(RefChange(name, None, id_),))
        with pytest.raises(DamagedData):
            Entry.decode(entry.encoded, "here")


def test_entries_like_a_known_one_keep_their_fields() -> None:
    """Once a form is known, others of the form are read by it."""
    one = Commit(ManifestId(bytes(32)), Root(bytes(32)), (), "me", 1, 0, run="a", dirty=True)
    for step in range(3):
        made = replace(one, manifest=ManifestId(bytes([step] * 32)))
        entry = Entry(
            "commit", step, commits=(made,), author="ann", reason="why",
            deployments=(Deployment("prod", step, made.id, 7, 5),),
        )  # fmt: skip
        assert Entry.decode(entry.encoded, "here") == entry


def test_entries_without_commits_are_read_by_their_form() -> None:
    """Each with another version, time and predecessor, as thousands of deployments have."""
    for step in range(130, 160):
        id_, other = CommitId(bytes([step] * 32)), CommitId(bytes([step + 1] * 32))
        made = Deployment("prod", 10**9 + step, id_, step, 5 if step % 7 == 0 else None)
        moves = RefChange("heads/main", None if step % 5 else other, id_)
        entry = Entry(
            "deploy", 10**9 + step, "prod", deployments=(made,), author="ann", reason="why",
            refs=(moves, RefChange("HEAD", "main", "other")),
        )  # fmt: skip
        assert Entry.decode(entry.encoded, "here") == entry
        assert Entry.decode(replace(entry, author="bob").encoded, "here").author == "bob"
