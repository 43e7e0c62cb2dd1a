"""``dataclass``, whose methods are compiled when the first instance is made (layer 0).

The decorator of the standard library compiles up to seven methods of every class as soon as
a module is imported; with a hundred classes that is most of the start of a short command.
This one takes ``frozen``, ``slots``, ``eq`` and ``repr`` and makes the same kind of class:
``dataclasses.replace``, ``asdict`` and ``fields`` work on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, field, make_dataclass
from reprlib import recursive_repr
from typing import Any, TypeVar, dataclass_transform, overload

__all__ = ["dataclass", "field"]

_T = TypeVar("_T")
_OWN = "_own_fields"  # in a class's own namespace: {name: (annotation, default or Field)}


@overload
@dataclass_transform(field_specifiers=(field, Field))
def dataclass(cls: type[_T], /) -> type[_T]: ...
@overload
@dataclass_transform(field_specifiers=(field, Field))
def dataclass(
    *, frozen: bool = False, slots: bool = False, eq: bool = True, repr: bool = True
) -> Callable[[type[_T]], type[_T]]: ...
def dataclass(
    cls: type[_T] | None = None,
    /,
    *,
    frozen: bool = False,
    slots: bool = False,
    eq: bool = True,
    repr: bool = True,
) -> type[_T] | Callable[[type[_T]], type[_T]]:
    """Like ``dataclasses.dataclass``. Annotations are strings: ``from __future__`` is needed."""

    def made(given: type[_T]) -> type[_T]:
        return _made(given, frozen=frozen, slots=slots, eq=eq, repr=repr)

    return made if cls is None else made(cls)


def _made(cls: type[_T], *, frozen: bool, slots: bool, eq: bool, repr: bool) -> type[_T]:
    fields: dict[str, tuple[str, Any]] = {}
    for base in reversed(cls.__mro__[1:]):
        fields.update(base.__dict__.get(_OWN, ()))
    space = dict(cls.__dict__)
    own = {}
    for name, annotation in space.get("__annotations__", {}).items():
        if not annotation.startswith("ClassVar"):
            own[name] = fields[name] = annotation, space.get(name, MISSING)
    if slots:
        taken = {n for base in cls.__mro__[1:] for n in getattr(base, "__slots__", ())}
        space = {n: v for n, v in space.items() if n not in own}
        space["__slots__"] = tuple(name for name in own if name not in taken)
        space.pop("__dict__", None)
        space.pop("__weakref__", None)
        qualified = cls.__qualname__
        kind: Any = type(cls)
        cls = kind(cls.__name__, cls.__bases__, space)
        cls.__qualname__ = qualified
    else:
        for name, (_, default) in own.items():
            if isinstance(default, Field):
                if default.default is MISSING:
                    delattr(cls, name)
                else:
                    setattr(cls, name, default.default)
    compiled = {"__init__"}
    put: dict[str, Any] = {_OWN: fields, "__dataclass_fields__": _LazyFields(cls)}
    if repr:
        put["__repr__"] = _repr
    if frozen:
        put |= {"__setattr__": _refuse_set, "__delattr__": _refuse_delete}
        if slots:
            put |= {"__getstate__": _state, "__setstate__": _set_state}
    if eq:
        compiled.add("__eq__")
        hashed = space.get("__hash__") is not None
        if frozen:
            compiled.add("__hash__")
        elif not hashed:
            put["__hash__"] = None
    compiled = {n for n in compiled if space.get(n) is None}
    put |= {name: _stub(cls, name, compiled) for name in compiled}
    for name, value in put.items():
        if value is None or space.get(name) is None:
            setattr(cls, name, value)
    return cls


def _stub(cls: type, name: str, compiled: set[str]) -> Callable[..., Any]:
    """A method that compiles the class's methods, and then acts as the one it stands for."""

    def method(self: object, *args: Any, **kwargs: Any) -> Any:
        methods = _compiled(cls)
        for each in compiled:
            setattr(cls, each, methods[each])
        return methods[name](self, *args, **kwargs)

    return method


def _compiled(cls: type) -> dict[str, Callable[..., Any]]:
    """``__init__``, ``__eq__`` and ``__hash__`` of a class."""
    fields: dict[str, tuple[str, Any]] = cls.__dict__[_OWN]
    space: dict[str, Any] = {"_set": object.__setattr__, "_factory": _FACTORY}
    frozen = getattr(cls, "__setattr__") is _refuse_set  # noqa: B009 (mypy: never)
    parameters, body = ["self"], []
    compared, hashed = [], []
    for name, (_, default) in fields.items():
        in_init = True
        factory: Any = MISSING
        in_eq, in_hash = True, True
        if isinstance(default, Field):
            in_init, factory, in_eq = default.init, default.default_factory, default.compare
            in_hash = in_eq if default.hash is None else default.hash
            default = default.default
        value = name
        if factory is not MISSING:
            space[f"_new_{name}"] = factory
            value = f"_new_{name}()"
            if in_init:
                value += f" if {name} is _factory else {name}"
                parameters.append(f"{name}=_factory")
        elif in_init and default is not MISSING:
            space[f"_default_{name}"] = default
            parameters.append(f"{name}=_default_{name}")
        elif in_init:
            parameters.append(name)
        if in_init or factory is not MISSING:
            body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
        compared += [name] * in_eq
        hashed += [name] * in_hash
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    source = f"def __init__({', '.join(parameters)}):\n " + "\n ".join(body or ["pass"])
    source += (
        "\ndef __eq__(self, other):"
        "\n if other.__class__ is not self.__class__:"
        "\n  return NotImplemented"
        f"\n return {_tuple('self', compared)} == {_tuple('other', compared)}"
        f"\ndef __hash__(self):\n return hash({_tuple('self', hashed)})"
    )
    exec(source, space)  # noqa: S102 (names of fields, which are identifiers)
    for name in ("__init__", "__eq__", "__hash__"):
        space[name].__qualname__ = f"{cls.__qualname__}.{name}"
    return space


def _tuple(of: str, names: list[str]) -> str:
    return "(" + "".join(f"{of}.{name}," for name in names) + ")"


class _Factory:
    """The default of a parameter whose value a factory makes."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


class _LazyFields:
    """``__dataclass_fields__``, made when the standard library asks for it."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __get__(self, instance: object, owner: type) -> dict[str, Field[Any]]:
        fields = [
            (name, annotation) if default is MISSING else (name, annotation, default)
            for name, (annotation, default) in self._cls.__dict__[_OWN].items()
        ]
        like: Any = make_dataclass(self._cls.__name__, fields)
        made: dict[str, Field[Any]] = like.__dataclass_fields__
        type.__setattr__(self._cls, "__dataclass_fields__", made)
        return made


def _shown(cls: type) -> list[str]:
    own: dict[str, tuple[str, Any]] = getattr(cls, _OWN)
    return [n for n, (_, default) in own.items() if not isinstance(default, Field) or default.repr]


@recursive_repr()
def _repr(self: object) -> str:
    pairs = ", ".join(f"{name}={getattr(self, name)!r}" for name in _shown(type(self)))
    return f"{type(self).__qualname__}({pairs})"


def _refuse_set(self: object, name: str, value: object) -> None:
    if _OWN in type(self).__dict__ or name in getattr(type(self), _OWN):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_delete(self: object, name: str) -> None:
    if _OWN in type(self).__dict__ or name in getattr(type(self), _OWN):
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _state(self: object) -> list[Any]:
    return [getattr(self, name) for name in getattr(type(self), _OWN)]


def _set_state(self: object, values: list[Any]) -> None:
    for name, value in zip(getattr(type(self), _OWN), values, strict=True):
        object.__setattr__(self, name, value)
