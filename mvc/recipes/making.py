"""``mvc.constructed``: makes an object and remembers how."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from msgspec import Struct

from mvc.errors import WrongUsage
from mvc.names import an

_P = ParamSpec("_P")
_T = TypeVar("_T")
_SCALARS = (bool, int, float, str)


class Making(Struct, frozen=True):
    """How an object was made. ``seen``: its plain attributes right after that."""

    call: Callable[..., Any]
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]
    seen: Mapping[str, Any]

    @property
    def names(self) -> list[str]:
        """Names for the positional arguments: those of the parameters, or their numbers."""
        try:
            parameters = list(inspect.signature(self.call).parameters.values())
        except (ValueError, TypeError):
            parameters = []
        plain = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
        names = [p.name for p in parameters if p.kind in plain]
        return [names[i] if i < len(names) else f"_{i}" for i in range(len(self.args))]

    def changed(self, obj: Any) -> str | None:
        """A plain attribute of ``obj`` that is another one now, as a text."""
        changes = (
            f"{name}: {self.seen[name]!r}, now {value!r}"
            for name, value in (vars(obj).items() if hasattr(obj, "__dict__") else ())
            if name in self.seen and type(value) in _SCALARS and value != self.seen[name]
        )
        return next(changes, None)


_makings: dict[int, Making] = {}


def constructed(call: Callable[_P, _T], /, *args: _P.args, **keywords: _P.kwargs) -> _T:
    """``call(*args, **keywords)``, remembered, so that a recipe can hold the result.

    ``call`` is a class or a function of a module. Its arguments are plain values, paths inside of
    a data set, tensors, functions of modules, and other objects that were made like this.
    Raises WrongUsage for a result whose type cannot be remembered, and what ``call`` raises.
    """
    making_args, making_keywords = _copied(args), _copied(keywords)
    obj = call(*args, **keywords)
    try:
        weakref.finalize(obj, _makings.pop, id(obj), None)
    except TypeError:
        raise WrongUsage(
            f"constructed() cannot remember {an(type(obj).__qualname__)}",
            hint="plain values need no constructed(); a class with __slots__ needs __weakref__",
        ) from None
    _makings[id(obj)] = Making(call, making_args, making_keywords, _plain_attributes(obj))
    return obj


def making_of(obj: Any) -> Making | None:
    """How an object was made, if ``constructed`` made it."""
    return _makings.get(id(obj))


def _copied(value: Any) -> Any:
    """Containers are copied, so that later changes of them are not recorded as arguments."""
    if type(value) in {list, tuple}:
        return type(value)(_copied(each) for each in value)
    if type(value) is dict:
        return {key: _copied(each) for key, each in value.items()}
    return value


def _plain_attributes(obj: Any) -> dict[str, Any]:
    """Those of a class of the project; what an installed package changes is its own business."""
    home = getattr(sys.modules.get(type(obj).__module__), "__file__", None) or ""
    if {"site-packages", "dist-packages"} & set(Path(home).parts):
        return {}
    found = getattr(obj, "__dict__", {})
    return {k: v for k, v in found.items() if v is None or type(v) in _SCALARS}
