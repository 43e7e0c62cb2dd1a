"""Manifests: canonical bytes, and nothing but mvc's errors for hostile ones."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mvc.errors import DamagedData
from mvc.ids import BlobId
from mvc.model.manifest import Check, Content, FileEntry, LogicalTensor, Manifest, Shape, View
from mvc.model.merkle import MerkleTree, leaf
from mvc.model.tensor import TensorSpec

IDS = st.binary(min_size=32, max_size=32).map(BlobId)
SPECS = st.builds(
    TensorSpec,
    st.sampled_from(["float32", "bfloat16", "int64", "raw", "bool"]),
    st.lists(st.integers(0, 9), max_size=3).map(tuple),
)
WORDS = st.text(st.sampled_from("abcdé-_0"), min_size=1, max_size=8)


@st.composite
def files(draw: st.DrawFn) -> FileEntry:
    contents, at = [], 0
    for spec in draw(st.lists(SPECS, max_size=4)):
        at += draw(st.integers(0, 5))
        contents.append(Content(at, spec, draw(IDS)))
        at += spec.nbytes
    checks = []
    if draw(st.booleans()):
        checks.append(Check(at, 0, at))
        at += 4
    size = at + draw(st.integers(0, 5))
    rest = size - sum(c.spec.nbytes for c in contents)
    tensors = []
    for i, content in enumerate(contents):
        if draw(st.booleans()):
            tensors.append(LogicalTensor(f"t{i}", content.spec, content.id, i))
        if content.spec.dtype == "raw" and content.spec.nbytes >= 4 and draw(st.booleans()):
            spec, view = TensorSpec("int16", (2,)), View(0, (1,))
            tensors.append(LogicalTensor(f"v{i}", spec, draw(IDS), i, view))
    path = "/".join(draw(st.lists(WORDS, min_size=1, max_size=3)))
    return FileEntry(
        path, draw(st.sampled_from(["opaque", "torch", "state"])), size, tuple(contents),
        draw(IDS) if rest else None, tuple(checks), tuple(tensors),
    )  # fmt: skip


MANIFESTS = st.lists(files(), max_size=4, unique_by=lambda e: e.path).map(Manifest)


@given(MANIFESTS)
def test_round_trip(manifest: Manifest) -> None:
    decoded = Manifest.decode(manifest.encoded)
    assert decoded.entries == manifest.entries
    assert decoded.encoded == Manifest(decoded.entries).encoded == manifest.encoded
    assert (decoded.id, decoded.root) == (manifest.id, manifest.root)


@given(MANIFESTS, st.data())
@settings(max_examples=300)
def test_other_bytes_are_another_manifest_or_refused(m: Manifest, data: st.DataObject) -> None:
    encoded = bytearray(m.encoded)
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        other = Manifest.decode(bytes(encoded))
    except DamagedData:
        return
    assert other.encoded == Manifest(other.entries).encoded == bytes(encoded)
    for entry in other.entries:
        assert entry.skeleton_size >= 0
        assert all(c.offset + c.spec.nbytes <= entry.size for c in entry.contents)
        assert all(t.content < len(entry.contents) for t in entry.tensors)


@given(st.binary(max_size=200))
def test_hostile_bytes_are_refused(data: bytes) -> None:
    with suppress(DamagedData):
        Manifest.decode(b"\1" + data)


@given(MANIFESTS)
def test_every_truncation_is_refused(manifest: Manifest) -> None:
    for size in range(len(manifest.encoded)):
        with pytest.raises(DamagedData):
            Manifest.decode(manifest.encoded[:size])


def entry(path: str = "a", **changes: object) -> FileEntry:
    spec = TensorSpec("float32", (3,))
    fields: dict[str, object] = {
        "format": "state", "size": 12, "contents": (Content(0, spec, BlobId(bytes(32))),),
        "skeleton": None, "checks": (), "tensors": (),
    }  # fmt: skip
    return FileEntry(path, **{**fields, **changes})


HOSTILE = {
    "unsafe path": entry("../a"),
    "absolute path": entry("/a"),
    "the repository's own folder": entry("x/.MVC/y"),
    "skeleton that nothing needs": entry(skeleton=BlobId(bytes(32))),
    "skeleton that is missing": entry(size=13),
    "content past the end": entry(size=11),
    "check in a content": entry(checks=(Check(4, 0, 4),)),
    "check of bytes past the end": entry(
        size=16, skeleton=BlobId(bytes(32)), checks=(Check(12, 0, 17),)
    ),
    "two tensors of one name": entry(
        tensors=(LogicalTensor("t", TensorSpec("float32", (3,)), BlobId(bytes(32)), 0),) * 2
    ),
    "view past its storage": entry(
        tensors=(
            LogicalTensor("t", TensorSpec("float32", (3,)), BlobId(bytes(32)), 0, View(1, (1,))),
        )
    ),
    "strides that do not fit the shape": entry(
        tensors=(
            LogicalTensor("t", TensorSpec("float32", (3,)), BlobId(bytes(32)), 0, View(0, (1, 1))),
        )
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_refused(what: str) -> None:
    with pytest.raises(DamagedData):
        Manifest.decode(Manifest([HOSTILE[what]]).encoded)


def test_a_path_twice_is_refused() -> None:
    once = Manifest([entry()]).encoded
    twice = bytes([1, 2]) + once[2:] + once[2:]
    with pytest.raises(DamagedData):
        Manifest.decode(twice)


def test_a_versions_root() -> None:
    def named(path: str, key: str) -> FileEntry:
        spec = TensorSpec("float32", (3,))
        return entry(path, tensors=(LogicalTensor(key, spec, BlobId(bytes(32)), 0),))

    a, b, plain = named("a", "w"), named("b", "v"), entry("c")
    assert Manifest([a, plain]).root == a.state.root
    both = MerkleTree([leaf(a.state.root, "a"), leaf(b.state.root, "b")]).root
    assert Manifest([b, a]).root == both
    assert Manifest([plain]).root == Manifest([]).root
    assert replace(a, path="z").content_id == a.content_id != b.content_id


@given(MANIFESTS, st.data())
def test_the_ids_of_a_manifest_of_known_shape(m: Manifest, data: st.DataObject) -> None:
    shape = Shape(m.encoded)
    named = objects_of(m)
    assert shape.ids(m.encoded) == b"".join(named)
    assert len(shape.specs) == len(named)
    encoded = bytearray(m.encoded)
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    ids = shape.ids(bytes(encoded))
    if ids is not None:
        other = Manifest.decode(bytes(encoded))  # still canonical
        assert ids == b"".join(objects_of(other))
        assert Shape(bytes(encoded)).specs == shape.specs


def objects_of(manifest: Manifest) -> list[bytes]:
    found: list[bytes] = []
    for e in manifest.entries:
        found += [content.id for content in e.contents]
        found += [] if e.skeleton is None else [e.skeleton]
    return found
