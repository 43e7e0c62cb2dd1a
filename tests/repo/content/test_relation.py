"""Definition 3 of MMlib, from names, shapes, dtypes and ids alone."""

from __future__ import annotations

import random

import pytest

from mvc.ids import BlobId
from mvc.model.manifest import Content, FileEntry, LogicalTensor
from mvc.model.tensor import TensorSpec
from mvc.repo.content.relation import Relation, models, relation

MATRIX, VECTOR = TensorSpec("float32", (2, 3)), TensorSpec("float32", (6,))


def entry(
    values: dict[str, object],
    path: str = "m.safetensors",
    specs: dict[str, TensorSpec] | None = None,
) -> FileEntry:
    """A file of tensors, whose contents are named by any value."""
    contents, tensors, at = [], [], 8
    for i, (key, value) in enumerate(values.items()):
        spec = (specs or {}).get(key, MATRIX)
        id_ = BlobId(repr(value).encode().ljust(32, b"\0")[:32])
        contents.append(Content(at, spec, id_))
        tensors.append(LogicalTensor(key, spec, id_, i))
        at += spec.nbytes
    skeleton = BlobId(bytes(32))
    return FileEntry(path, "safetensors", at, tuple(contents), skeleton, (), tuple(tensors))


def kind(old: dict[str, object], new: dict[str, object]) -> str:
    return relation(entry(new), [entry(old)]).kind


OLD: dict[str, object] = {"conv.weight": 1, "conv.bias": 2, "fc.weight": 3}


@pytest.mark.parametrize(
    ("new", "expected", "shared", "equal"),
    [
        (OLD, "equal", 3, 3),
        (OLD | {"fc.weight": 9}, "fine-tuned version", 3, 2),
        ({key: (value, "new") for key, value in OLD.items()}, "fully updated", 3, 0),
        (OLD | {"head.weight": 4}, "extended", 3, 3),
        ({"conv.weight": 1, "head.weight": 4}, "extended", 1, 1),
        ({"conv.weight": 1}, "extended", 1, 1),
        ({"conv.weight": 8, "head.weight": 4}, "derived architecture", 1, 0),
        ({"other.weight": 1, "another.weight": 2}, "base", 0, 0),
    ],
)
def test_each_relation(new: dict[str, object], expected: str, shared: int, equal: int) -> None:
    base = "m.safetensors" if expected != "base" else None
    found = relation(entry(new), [entry(OLD)])
    assert found == Relation("m.safetensors", expected, base, len(new), shared, equal)


def test_a_base_model_has_no_base() -> None:
    assert relation(entry(OLD), []).kind == "base"
    assert relation(entry(OLD), []).base_path is None


def test_1000_random_pairs_against_the_definition() -> None:
    """Architectures as sets of (name, shape), parameters as sets of (name, spec, content)."""
    rng = random.Random(4)
    specs = [MATRIX, VECTOR, TensorSpec("float16", (2, 3)), TensorSpec("int32", (6,))]
    seen = set()
    for _ in range(1000):
        sides = []
        for _ in range(2):
            names = rng.sample([f"n{i}" for i in range(4)], rng.randint(1, 4))
            spec = {name: rng.choice(specs[: rng.choice([1, 4])]) for name in names}
            sides.append(entry({name: rng.randint(0, 1) for name in names}, specs=spec))
        old, new = sides
        a, b = ({(t.key, t.spec.shape) for t in side.tensors} for side in sides)
        p, q = ({(t.key, t.spec, t.id) for t in side.tensors} for side in sides)
        if a == b:
            expected = "equal" if p == q else "fine-tuned version" if p & q else "fully updated"
        else:
            expected = "extended" if p & q else "derived architecture" if a & b else "base"
        found = relation(new, [old])
        assert (found.kind, found.shared, found.equal) == (expected, len(a & b), len(p & q))
        seen.add(expected)
    assert len(seen) == 6


def test_shapes_are_the_architecture_and_dtypes_are_not() -> None:
    """Zeros of (2, 3) and of (6,), and of float32 and int32, have the same bytes."""
    zeros = {"w": 0}
    shaped = entry(zeros, specs={"w": VECTOR})
    assert relation(shaped, [entry(zeros)]).kind == "base"
    cast = entry({"w": 0, "v": 1}, specs={"w": TensorSpec("int32", (2, 3))})
    assert relation(cast, [entry({"w": 0, "v": 1})]).kind == "fine-tuned version"


def test_prefixes_of_wrappers_count_as_none() -> None:
    wrapped = {f"module._orig_mod.{key}": value for key, value in OLD.items()}
    assert kind(OLD, wrapped) == kind(wrapped, OLD) == "equal"
    assert kind(OLD, wrapped | {"module._orig_mod.fc.weight": 7}) == "fine-tuned version"


def test_equal_bare_names_within_a_model_are_kept_apart() -> None:
    both = {"a": 1, "module.a": 2}
    assert kind(both, both) == "equal"
    assert kind(both, both | {"module.a": 3}) == "fine-tuned version"


def test_a_model_that_lies_in_another_one() -> None:
    inside = {f"backbone.{key}": value for key, value in OLD.items()}
    assert kind(OLD, inside | {"head": 5}) == "extended"
    assert kind(OLD, dict.fromkeys(inside, "new") | {"head": 5}) == "derived architecture"
    assert kind(inside | {"head": 5}, OLD) == "extended"
    assert relation(entry(inside | {"head": 5}), [entry(OLD)]).shared == 3
    # More agrees without a prefix: one name that lies deeper too does not count.
    assert relation(entry(OLD | {"x.fc.weight": 3}), [entry(OLD)]).shared == 3


def test_the_training_in_a_checkpoint_is_not_its_model() -> None:
    old = {"model.a": 1, "model.b": 2, "optimizer.state.0.exp_avg": 3}
    new = {"model.a": 1, "model.b": 9, "optimizer.state.1.exp_avg": 4, "lr_scheduler.x": 5}
    found = relation(entry(new), [entry(old)])
    assert (found.kind, found.tensors, found.equal) == ("fine-tuned version", 2, 1)
    only = {"optimizer.state.0.exp_avg": 3}
    assert kind(only, only) == "equal"


def test_training_states_beside_a_model_are_no_models() -> None:
    paths = ["a.safetensors", "a.training.safetensors", "b.training.safetensors"]
    found = models([entry(OLD, path) for path in paths])
    assert [model.path for model in found] == ["a.safetensors", "b.training.safetensors"]
    paths = ["run/model.safetensors", "run/optimizer.pt", "run/scheduler.pt", "run/rng_state_0.pth"]
    found = models([entry(OLD, path) for path in paths])
    assert [model.path for model in found] == ["run/model.safetensors"]


def test_the_same_path_comes_first_and_then_the_closest() -> None:
    far = entry(dict.fromkeys(OLD, "old"), "m.safetensors")
    near, nearer = entry(OLD | {"conv.weight": 0}, "x"), entry(OLD, "y")
    model = OLD | {"conv.bias": 0}
    assert relation(entry(model), [near, far, nearer]).base_path == "m.safetensors"
    found = relation(entry(model, "new"), [near, far, nearer])
    assert (found.base_path, found.equal) == ("y", 2)
    unlike = entry({"z": 0}, "m.safetensors")
    assert relation(entry(model), [unlike, near]).base_path == "x"


def test_in_words() -> None:
    def words(new: dict[str, object]) -> str:
        return str(relation(entry(new), [entry(OLD)]))

    assert words(OLD) == "equal"
    assert words(OLD | {"fc.weight": 9}) == "fine-tuned version (1 of 3 tensors changed)"
    assert words(OLD | {"head": 9}) == "extended (3 of 4 tensors shared, 3 equal)"
    none = "derived architecture (1 of 2 tensors shared, none equal)"
    assert words({"conv.weight": 8, "head": 4}) == none
