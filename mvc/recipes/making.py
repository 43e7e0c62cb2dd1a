"""``mvc.constructed``: creates an object and remembers the call.

The recipe of a training (its code, data and settings) stores the call. So mvc can create the
object again when it repeats the training.
"""

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
    """The call that created an object.

    ``seen``: the plain attributes of the object after the call. A plain attribute is a number, a
    text, a boolean or None.
    """

    call: Callable[..., Any]
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]
    seen: Mapping[str, Any]

    @property
    def names(self) -> list[str]:
        """The parameter name of each positional argument.

        If the name of argument N is unknown, the result has ``_N``.
        """
        try:
            parameters = list(inspect.signature(self.call).parameters.values())
        except (ValueError, TypeError):
            parameters = []
        plain = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
        names = [p.name for p in parameters if p.kind in plain]
        return [names[i] if i < len(names) else f"_{i}" for i in range(len(self.args))]

    def changed(self, obj: Any) -> str | None:
        """Describes a plain attribute of ``obj`` that has changed since the call. None if no plain
        attribute has changed.
        """
        changes = (
            f"{name}: {self.seen[name]!r}, now {value!r}"
            for name, value in (vars(obj).items() if hasattr(obj, "__dict__") else ())
            if name in self.seen and type(value) in _SCALARS and value != self.seen[name]
        )
        return next(changes, None)


_makings: dict[int, Making] = {}


def constructed(call: Callable[_P, _T], /, *args: _P.args, **keywords: _P.kwargs) -> _T:
    """Returns ``call(*args, **keywords)`` and remembers the call for a recipe.

    ``call`` is a class or a function that can be imported. The arguments may be plain values,
    tensors, functions that can be imported, files of a data set, and objects that ``constructed``
    created. Raises WrongUsage if the result does not support weak references.
    """
    making_args, making_keywords = _copied(args), _copied(keywords)
    obj = call(*args, **keywords)
    try:
        weakref.finalize(obj, _makings.pop, id(obj), None)
    except TypeError:
        raise WrongUsage(
            f"constructed() cannot remember {an(type(obj).__qualname__)}",
            hint="pass a plain value directly; add __weakref__ to the __slots__ of a class",
        ) from None
    _makings[id(obj)] = Making(call, making_args, making_keywords, _plain_attributes(obj))
    return obj


def making_of(obj: Any) -> Making | None:
    """The call with which ``constructed`` created ``obj``; None for any other object."""
    return _makings.get(id(obj))


def _copied(value: Any) -> Any:
    """Copies lists, tuples and dicts, so that later changes of the originals do not reach the
    recipe.
    """
    if type(value) in {list, tuple}:
        return type(value)(_copied(item) for item in value)
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return value


def _plain_attributes(obj: Any) -> dict[str, Any]:
    """The plain attributes of ``obj``; empty if its class belongs to an installed package."""
    home = getattr(sys.modules.get(type(obj).__module__), "__file__", None) or ""
    if {"site-packages", "dist-packages"} & set(Path(home).parts):
        return {}
    attributes = getattr(obj, "__dict__", {})
    return {k: v for k, v in attributes.items() if v is None or type(v) in _SCALARS}
