"""``dataclass`` of the standard library, with methods that are compiled when they are first used.

The standard decorator compiles six functions for every frozen class. That was a third of the
time in which ``mvc log`` starts, and a command uses fewer than half of the classes that it
imports, most of them for ``__init__`` alone. Here a class begins with descriptors; each has the
standard decorator make its method when it is first looked up, and is replaced by it.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass

__all__ = ["dataclass"]

_METHODS = ("__init__", "__repr__", "__eq__", "__hash__")
_VALUES = ("__match_args__", "__dataclass_fields__", "__dataclass_params__")


class _Late:
    """An attribute of a class that is made when it is first looked up."""

    def __init__(self, owner: type, name: str, make: Any) -> None:
        self._owner, self._name, self._make = owner, name, make

    def __get__(self, instance: object, _: type | None = None) -> Any:
        value = self._make(self._name)
        setattr(self._owner, self._name, value)
        return value if instance is None or self._name in _VALUES else value.__get__(instance)


def _lazy(
    cls: type | None = None,
    /,
    *,
    frozen: bool = False,
    slots: bool = False,
    eq: bool = True,
    repr: bool = True,
    kw_only: bool = False,
) -> Any:
    """As ``dataclasses.dataclass`` with the same options."""
    if cls is None:
        return partial(_lazy, frozen=frozen, slots=slots, eq=eq, repr=repr, kw_only=kw_only)
    body = {k: v for k, v in vars(cls).items() if k not in {"__dict__", "__weakref__"}}
    body["__qualname__"] = cls.__qualname__
    made: Any = _slotted(cls, body) if slots else _with_defaults(cls, body)

    def make(name: str) -> Any:
        """An attribute of a class like this one, of which nothing else is made."""
        standard = dataclasses.dataclass(
            init=name == "__init__",
            repr=name == "__repr__",
            eq=name in {"__eq__", "__hash__"},
            frozen=frozen,
            kw_only=kw_only,
        )
        return getattr(standard(type(cls)(cls.__name__, cls.__bases__, dict(body))), name)

    late = {*_METHODS, *_VALUES} - {key for key, value in body.items() if value is not None}
    if not repr:
        late.discard("__repr__")
    if not eq:
        late -= {"__eq__", "__hash__"}
    elif not frozen and "__hash__" in late:
        late.discard("__hash__")
        made.__hash__ = None
    for name in late:
        setattr(made, name, _Late(made, name, make))
    if frozen:
        made.__setattr__ = made.__delattr__ = _refuse
        if slots:
            made.__getstate__, made.__setstate__ = _values, _restore
    return made


def _slotted(cls: type, body: dict[str, Any]) -> type:
    """The same class with its fields in slots."""
    types = body.get("__annotations__", {})
    names = tuple(name for name, type_ in types.items() if not str(type_).startswith("ClassVar"))
    rest = {key: value for key, value in body.items() if key not in names}
    return type(cls)(cls.__name__, cls.__bases__, rest | {"__slots__": names})


def _with_defaults(cls: type, body: dict[str, Any]) -> type:
    """The class with the defaults of its fields as attributes, in place of ``field(...)``."""
    for name, value in body.items():
        if isinstance(value, dataclasses.Field):
            if value.default is dataclasses.MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, value.default)
    return cls


def _refuse(self: object, name: str, _: object = None) -> NoReturn:
    what = f"{type(self).__name__} is frozen: {name!r} cannot be set"
    raise dataclasses.FrozenInstanceError(what)


def _values(self: Any) -> dict[str, Any]:
    return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


def _restore(self: object, values: dict[str, Any]) -> None:
    for name, value in values.items():
        object.__setattr__(self, name, value)


if not TYPE_CHECKING:
    dataclass = _lazy
