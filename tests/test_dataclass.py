"""mvc.dataclass makes the same classes as the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any, ClassVar

import pytest

from mvc.dataclass import dataclass, field


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2
    names: list[str] = field(default_factory=list, compare=False, repr=False)
    kind: ClassVar[str] = "point"


@dataclass(frozen=True)
class Named(Point):
    name: str = "p"


@dataclass
class Counted:
    total: int
    twice: int = field(init=False)

    def __post_init__(self) -> None:
        self.twice = 2 * self.total


def _twin(decorate: Callable[..., Any]) -> type[Any]:
    @decorate(frozen=True)
    class Twin:
        a: int
        b: tuple[int, ...] = ()
        c: float | None = field(default=None, hash=False)

    return Twin


def test_fields_defaults_and_factories() -> None:
    first, second = Point(1), Point(1)
    assert (first.x, first.y, first.names, Point.kind) == (1, 2, [], "point")
    assert first.names is not second.names
    assert Point(x=3, y=4) == Point(3, 4) != Point(3, 5)
    assert repr(Point(3)) == "Point(x=3, y=2)"
    assert hash(Point(3)) == hash((3, 2))
    assert not hasattr(first, "__dict__")


def test_unknown_and_missing_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="'x'"):
        Point()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="z"):
        Point(1, z=2)  # type: ignore[call-arg]


def test_frozen() -> None:
    point = Point(1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x
    with pytest.raises(FrozenInstanceError):
        point.other = 2  # type: ignore[attr-defined]


def test_inherited_fields_come_first() -> None:
    assert repr(Named(1, name="q")) == "Named(x=1, y=2, name='q')"
    assert Named(1) != Point(1)


def test_post_init_and_fields_outside_init() -> None:
    counted = Counted(2)
    assert counted.twice == 4
    counted.total = 3
    assert repr(counted) == "Counted(total=3, twice=4)"
    with pytest.raises(TypeError, match="unhashable"):
        hash(counted)


@pytest.mark.parametrize("value", [Point(1, 5), Named(1, name="z"), Counted(4)])
def test_copies_and_pickles(value: Any) -> None:
    assert pickle.loads(pickle.dumps(value)) == value == copy.deepcopy(value)


def test_functions_of_the_standard_library() -> None:
    point = dataclasses.replace(Point(1), y=7)
    assert point == Point(1, 7)
    assert dataclasses.asdict(point) == {"x": 1, "y": 7, "names": []}
    assert [f.name for f in dataclasses.fields(Named)] == ["x", "y", "names", "name"]
    assert dataclasses.is_dataclass(Point)
    assert dataclasses.replace(Named(1), name="r").name == "r"


def test_the_same_as_the_standard_library() -> None:
    ours, theirs = _twin(dataclass), _twin(dataclasses.dataclass)
    for arguments in ((1,), (1, (2,)), (1, (2,), 0.5)):
        mine, other = ours(*arguments), theirs(*arguments)
        assert repr(mine) == repr(other)
        assert hash(mine) == hash(other)
        assert vars(mine) == vars(other)
    assert (ours(1, (), 2.0) == ours(1)) == (theirs(1, (), 2.0) == theirs(1))
    assert ours(1) != theirs(1)
