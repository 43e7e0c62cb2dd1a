"""Checks the arguments of public methods by their annotations.

A value of a wrong type raises WrongUsage with one line that names the argument, and a closed
repository says so, in place of an error of Python from somewhere inside. Annotations that are not
in the table are left to the methods.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import wraps
from os import PathLike
from types import FunctionType
from typing import Any, TypeVar

from mvc.errors import WrongUsage

__all__ = ["check_fields", "checked"]

_Class = TypeVar("_Class", bound=type)


def checked(cls: _Class) -> _Class:
    """The class, whose own public methods check their arguments before they do anything."""
    for name, member in list(vars(cls).items()):
        function = member.__func__ if isinstance(member, classmethod) else member
        if isinstance(function, FunctionType) and not name.startswith("_"):
            made = _checked(function)
            setattr(cls, name, classmethod(made) if isinstance(member, classmethod) else made)
    return cls


def _checked(function: FunctionType) -> Callable[..., Any]:
    positional = function.__code__.co_varnames[1 : function.__code__.co_argcount]

    @wraps(function)
    def method(self: Any, /, *args: Any, **named: Any) -> Any:
        if getattr(self, "closed", False) and function.__name__ != "close":
            raise WrongUsage("this repository is closed", hint="open it again")
        for name, value in (*zip(positional, args, strict=False), *named.items()):
            _check(function.__name__, function.__annotations__.get(name, ""), name, value)
        return function(self, *args, **named)

    return method


def check_fields(options: object) -> None:
    """Checks the fields of a dataclass of options in the same way."""
    for name, annotation in type(options).__annotations__.items():
        _check(type(options).__name__, annotation, name, getattr(options, name))


def _check(owner: str, annotation: str, name: str, value: object) -> None:
    kinds = [_KINDS.get(text) for text in annotation.split(" | ")]
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds) or any(fits(value) for fits, _ in known):
        return
    wanted = " or ".join(words for _, words in known)
    given = "None" if value is None else f"a value of type {type(value).__name__}"
    raise WrongUsage(f"{owner}({name}=...) takes {wanted}, not {given}")


def _is_path(value: object) -> bool:
    return isinstance(value, str | PathLike)


def _is_list(value: Any, fits: Callable[[object], bool]) -> bool:
    several = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    return several and all(map(fits, value))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "None": (lambda value: value is None, "None"),
    "str": (_is_text, "a text"),
    "int": (lambda value: hasattr(value, "__index__"), "a whole number"),
    "float": (lambda value: hasattr(value, "__float__"), "a number"),
    "PathName": (_is_path, "a path"),
    "Sequence[str]": (lambda value: _is_list(value, _is_text), "a list of texts"),
    "Collection[str]": (lambda value: _is_list(value, _is_text), "a list of texts"),
    "Sequence[PathName]": (lambda value: _is_list(value, _is_path), "a list of paths"),
    "Rev": (lambda value: value is not None, "a revision"),  # a look-up says what is none
    "Sequence[Rev]": (lambda value: _is_list(value, lambda _: True), "a list of revisions"),
    "Mapping[str, Any]": (
        lambda value: isinstance(value, Mapping) and all(map(_is_text, value)),
        "a mapping with texts as keys",
    ),
    "Mapping[str, Mapping[str, Any]]": (
        lambda value: (
            isinstance(value, Mapping)
            and all(_is_text(k) and isinstance(v, Mapping) for k, v in value.items())
        ),
        "a mapping from paths to states",
    ),
    "CommitOptions": (
        lambda value: type(value).__name__ == "CommitOptions",  # not imported for this alone
        "mvc.CommitOptions(...)",
    ),
}
"""What an annotation accepts, and how it is called."""
