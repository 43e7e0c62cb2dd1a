"""Checks the arguments of public methods by their annotations.

A value of a wrong type raises WrongUsage with one line that names the argument, and a closed
repository says so, in place of an error of Python from somewhere inside. Annotations that are not
in the table are left to the methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from functools import cache, wraps
from os import PathLike, fspath
from types import FunctionType
from typing import Any, TypeVar

from mvc.errors import WrongUsage
from mvc.limits import MAX_REASON
from mvc.names import printable

_Class = TypeVar("_Class", bound=type)
_VARARGS = 0x04  # inspect.CO_VARARGS, which takes long to import


def checked(cls: _Class) -> _Class:
    """The class, whose own public methods check their arguments before they do anything."""
    for name, member in list(vars(cls).items()):
        function = member.__func__ if isinstance(member, classmethod) else member
        if isinstance(function, FunctionType) and not name.startswith("_"):
            made = _checked(function)
            setattr(cls, name, classmethod(made) if isinstance(member, classmethod) else made)
    return cls


def _checked(function: FunctionType) -> Callable[..., Any]:
    code = function.__code__
    positional = code.co_varnames[1 : code.co_argcount]
    further: tuple[str, ...] = ()
    if code.co_flags & _VARARGS:
        further = code.co_varnames[code.co_argcount + code.co_kwonlyargcount :][:1]

    @wraps(function)
    def method(self: Any, /, *args: Any, **named: Any) -> Any:
        if getattr(self, "closed", False) and function.__name__ != "close":
            raise WrongUsage("this repository is closed", hint="open it again")
        names = (*positional, *further * (len(args) - len(positional)))
        for name, value in (*zip(names, args, strict=False), *named.items()):
            _check(function.__name__, function.__annotations__.get(name, ""), name, value)
        return function(self, *args, **named)

    return method


def check_fields(options: object) -> None:
    """Checks the fields of a dataclass of options in the same way."""
    for name, annotation in type(options).__annotations__.items():
        _check(type(options).__name__, annotation, name, getattr(options, name))


def check_keywords(owner: str, kinds: type, given: Mapping[str, Any]) -> None:
    """Checks keywords by a TypedDict, which holds forward references.

    Raises TypeError for others, as Python does.
    """
    if wrong := given.keys() - kinds.__annotations__.keys():
        raise TypeError(f"{owner}() got an unexpected keyword argument {min(wrong)!r}")
    for name, value in given.items():
        _check(owner, kinds.__annotations__[name].__forward_arg__, name, value)


def _check(owner: str, annotation: str, name: str, value: object) -> None:
    known = _kinds(annotation)
    if not known:
        return
    if any(fits(value) for fits, _ in known):
        for text in _texts(value):
            check_text(f"{owner}({name}=...)", text)
        return
    wanted = " or ".join(words for _, words in known)
    given = "None" if value is None else f"a value of type {type(value).__name__}"
    raise WrongUsage(f"{owner}({name}=...) takes {wanted}, not {given}")


@cache
def _kinds(annotation: str) -> tuple[tuple[Callable[[Any], bool], str], ...]:
    """What an annotation accepts; empty if one of its parts is not in the table."""
    found = [_KINDS.get(text) for text in annotation.split(" | ")]
    known = tuple(kind for kind in found if kind is not None)
    return known if len(known) == len(found) else ()


def check_text(what: str, text: str) -> None:
    """Raises WrongUsage for a text that UTF-8 cannot hold. Undecodable bytes of a name may pass."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise WrongUsage(
            f"{what} holds a lone surrogate, which is no character: {printable(text[:100])}",
            hint="read the text again with the right encoding",
        ) from None


def check_seconds(name: str, value: float) -> None:
    """Raises WrongUsage unless ``value`` is a finite number of seconds from 0 on."""
    if not 0 <= value < math.inf:
        raise WrongUsage(f"{name} is a number of seconds, 0 or more, not {value!r}")


def _texts(value: object) -> Iterator[str]:
    """The texts that an argument consists of, names of paths among them."""
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    for each in value if isinstance(value, list | tuple | set | frozenset) else [value]:
        found = fspath(each) if isinstance(each, PathLike) else each
        if isinstance(found, str):
            yield found


def _is_path(value: object) -> bool:
    return isinstance(value, str | PathLike)


def _is_list(value: Any, fits: Callable[[object], bool]) -> bool:
    several = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    return several and all(map(fits, value))


def _is_bool(value: object) -> bool:
    return type(value).__name__ in {"bool", "bool_"}


def _is_reason(value: object) -> bool:
    return isinstance(value, str) and len(value.encode(errors="surrogatepass")) <= MAX_REASON


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "None": (lambda value: value is None, "None"),
    "str": (_is_text, "a text"),
    "Reason": (_is_reason, f"a text of at most {MAX_REASON:,} bytes"),
    "int": (lambda value: hasattr(value, "__index__") and not _is_bool(value), "a whole number"),
    "float": (lambda value: hasattr(value, "__float__") and not _is_bool(value), "a number"),
    "bool": (_is_bool, "True or False"),
    **dict.fromkeys(("PathName", "PathLike[str]", "Path"), (_is_path, "a path")),
    "timedelta": (lambda value: isinstance(value, timedelta), "a timedelta"),
    **dict.fromkeys(
        ("Progress", "Configure", "Callable[[Imported], object]"), (callable, "a function")
    ),
    **dict.fromkeys(
        ("Sequence[str]", "Collection[str]"),
        (lambda value: _is_list(value, _is_text), "a list of texts"),
    ),
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
