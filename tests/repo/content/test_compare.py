import random

import pytest

from mvc.ids import BlobId
from mvc.model.manifest import Content, FileEntry, LogicalTensor
from mvc.model.tensor import TensorSpec
from mvc.repo.content.compare import compare_files

SPEC = TensorSpec("float32", (2, 3))


def blob(value: object) -> BlobId:
    return BlobId(repr(value).encode().ljust(32, b"\0")[:32])


def entry(values: dict[str, object], specs: dict[str, TensorSpec] | None = None) -> FileEntry:
    """A file of 24-byte tensors, whose contents are named by any value."""
    contents, tensors, at = [], [], 8
    for i, (key, value) in enumerate(values.items()):
        spec = (specs or {}).get(key, SPEC)
        contents.append(Content(at, spec, blob(value)))
        tensors.append(LogicalTensor(key, spec, blob(value), i))
        at += spec.nbytes
    return FileEntry("m", "safetensors", at, tuple(contents), blob("head"), (), tuple(tensors))


def kinds(old: dict[str, object], new: dict[str, object]) -> dict[str, str]:
    found = compare_files(entry(old), entry(new), "m")
    return {t.key: t.kind for t in found.tensors}


@pytest.mark.parametrize(
    ("changed", "comparisons"),
    [
        (set(), 1),
        ({62, 63}, 13),
        ({22, 23, 24, 25, 62, 63}, 29),
        (set(range(64)), 127),
    ],
)
def test_known_comparisons(changed: set[int], comparisons: int) -> None:
    old = {f"t{i:02}": i for i in range(64)}
    new = {f"t{i:02}": (i, "new") if i in changed else i for i in range(64)}
    found = compare_files(entry(old), entry(new), "m")
    assert found.comparisons == comparisons
    assert {int(t.key[1:]) for t in found.tensors if t.kind == "changed"} == changed
    assert {t.kind for t in found.tensors} <= {"changed", "unchanged"}
    assert found.changed_tensors == len(changed)
    assert found.kind == ("changed" if changed else "unchanged")
    assert not found.other_changed


def test_trees_and_names_agree() -> None:
    """A tree diff finds what a join by name finds, whatever the order in the file."""
    rng = random.Random(5)
    for _ in range(200):
        n = rng.randrange(1, 70)
        old = {f"k{i}": i for i in range(n)}
        new = {k: (v, rng.random() < 0.2 and "x") for k, v in old.items()}
        old = {k: (v, False) for k, v in old.items()}
        shuffled = dict(rng.sample(sorted(new.items()), n))
        found = compare_files(entry(old), entry(shuffled), "m")
        assert [t.key for t in found.tensors] == list(shuffled)
        assert {t.key for t in found.tensors if t.kind == "changed"} == {
            k for k in old if old[k] != new[k]
        }
        assert found.comparisons <= 2 * n - 1


def test_added_and_removed() -> None:
    assert kinds({"a": 1, "b": 2}, {"a": 1, "c": 3, "d": 4}) == {
        "a": "unchanged",
        "c": "added",
        "d": "added",
        "b": "removed",
    }
    found = compare_files(entry({"a": 1}), entry({"a": 1, "c": 3}), "m")
    assert found.comparisons == 2
    assert [(t.old_spec, t.new_spec) for t in found.tensors] == [(SPEC, SPEC), (None, SPEC)]


def test_renamed_by_content_first_then_by_bare_name() -> None:
    found = compare_files(
        entry({"module.a": 1, "module.b": 2, "x": 3}), entry({"a": 9, "b": 2, "y": 3}), "m"
    )
    rows = {t.key: (t.kind, t.renamed_from, t.changed_share) for t in found.tensors}
    assert rows == {
        "a": ("renamed", "module.a", None),  # its numbers have to be looked at
        "b": ("renamed", "module.b", 0.0),
        "y": ("renamed", "x", 0.0),
    }


def test_equal_contents_keep_their_names() -> None:
    found = compare_files(
        entry({"module.a": 0, "module.b": 0, "module.c": 0}), entry({"c": 0, "a": 0, "b": 0}), "m"
    )
    assert {t.key: t.renamed_from for t in found.tensors} == {k: f"module.{k}" for k in "abc"}


def test_a_name_is_taken_once() -> None:
    found = compare_files(entry({"module.a": 1}), entry({"a": 1, "model.a": 1}), "m")
    assert sorted(t.kind for t in found.tensors) == ["added", "renamed"]


def test_resized_and_another_dtype() -> None:
    wide, half = TensorSpec("float32", (4, 3)), TensorSpec("float16", (2, 3))
    old = entry({"a": 1, "b": 2, "module.c": 3})
    new = entry({"a": 4, "b": 5, "c": 6}, {"a": wide, "b": half, "c": half})
    found = {t.key: (t.kind, t.changed_share) for t in compare_files(old, new, "m").tensors}
    assert found["a"] == ("resized", None)
    assert found["b"] == ("changed", None)
    assert found["c"] == ("added", None)


def test_files_that_come_and_go() -> None:
    a = entry({"a": 1, "b": 2})
    added, removed = compare_files(None, a, "m"), compare_files(a, None, "m")
    assert (added.kind, removed.kind) == ("added", "removed")
    assert [t.kind for t in added.tensors] == ["added"] * 2
    assert [t.kind for t in removed.tensors] == ["removed"] * 2
    with pytest.raises(ValueError):
        compare_files(None, None, "m")


def test_bytes_outside_the_tensors() -> None:
    a = entry({"a": 1})
    b = FileEntry("m", a.format, a.size, a.contents, blob("other head"), (), a.tensors)
    found = compare_files(a, b, "m")
    assert (found.kind, found.other_changed, found.comparisons) == ("changed", True, 1)
    assert [t.kind for t in found.tensors] == ["unchanged"]
    opaque = [
        FileEntry("m", "opaque", 3, (Content(0, TensorSpec("raw", (3,)), blob(v)),), None)
        for v in (1, 2)
    ]
    found = compare_files(*opaque, "m")
    assert (found.kind, found.other_changed, found.tensors) == ("changed", True, ())
