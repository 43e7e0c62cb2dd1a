"""``mvc.dataclasses.dataclass`` makes what the standard library's makes, later."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import field
from functools import cached_property
from typing import ClassVar

import pytest

from mvc.dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Value:
    """A value."""

    name: str
    size: int = 3
    tags: list[str] = field(default_factory=list, compare=False, repr=False)
    kind: ClassVar[str] = "k"

    def twice(self) -> int:
        return 2 * self.size


@dataclass
class Open:
    a: int
    b: int = field(default=2, repr=False)

    def __post_init__(self) -> None:
        self.a += 1


@dataclass(frozen=True)
class Base:
    a: int

    @cached_property
    def double(self) -> int:
        return 2 * self.a


@dataclass(frozen=True)
class Derived(Base):
    b: int = 5


class Undecorated(Derived):
    def __init__(self, a: int) -> None:
        super().__init__(a, b=7)


@dataclass(slots=True, eq=False, repr=False)
class ByIdentity:
    a: int


def test_values_compare_hash_and_print_by_their_fields() -> None:
    assert Value("a") == Value("a", 3, ["x"]) != Value("b")
    assert Value("a") != "a"
    assert len({Value("a"), Value("a", tags=["x"]), Value("a", 4)}) == 2
    assert repr(Value("a")) == "Value(name='a', size=3)"
    assert Value("a").twice() == 6
    assert Value.kind == "k"
    assert Value("a").tags is not Value("a").tags


def test_a_frozen_class_refuses_to_be_changed() -> None:
    for change in (lambda: setattr(Value("a"), "size", 4), lambda: delattr(Derived(1), "a")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()
    assert not hasattr(Value("a"), "__dict__")
    assert Base(2).double == 4


def test_an_open_class_is_changed_and_has_no_hash() -> None:
    value = Open(1)
    value.b = 4
    assert (value, repr(value)) == (Open(1, 4), "Open(a=2)")
    with pytest.raises(TypeError, match="unhashable"):
        hash(value)


def test_classes_inherit_fields_and_methods() -> None:
    assert Derived(1) == Derived(1, 5) != Base(1)
    assert Undecorated(1).b == 7
    assert repr(Undecorated(1)) == "Undecorated(a=1, b=7)"
    assert [f.name for f in dataclasses.fields(Derived)] == ["a", "b"]


def test_without_eq_and_repr_objects_keep_their_own() -> None:
    one, other = ByIdentity(1), ByIdentity(1)
    assert one != other
    assert len({one, other}) == 2
    assert "object at" in repr(one)


def test_tools_of_the_standard_library_know_the_classes() -> None:
    assert dataclasses.is_dataclass(Value)
    assert dataclasses.replace(Value("a"), size=9) == Value("a", 9)
    assert dataclasses.asdict(Open(1)) == {"a": 2, "b": 2}
    assert str(inspect.signature(Derived)) == "(a: 'int', b: 'int' = 5) -> None"
    match Value("a"):
        case Value(name, size):
            assert (name, size) == ("a", 3)


def test_values_are_copied_and_pickled() -> None:
    value = Value("a", 4, ["x"])
    for again in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert (again, again.tags) == (value, ["x"])
        with pytest.raises(dataclasses.FrozenInstanceError):
            again.size = 1  # type: ignore[misc]


def test_wrong_arguments_are_an_error_at_every_call() -> None:
    for _ in range(2):
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
            Value()  # type: ignore[call-arg]
