"""Lazy attributes of modules: a name is imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def face(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A function to use as the ``__getattr__`` of ``module``.

    ``names`` maps each name to the module that defines the name, or to the package that contains a
    module of this name. If that module or package has no such attribute, the name means the module
    or package itself.
    """

    def look_up(name: str) -> Any:
        if name in names:
            source = __import__(names[name], fromlist=[name])
            return getattr(source, name, source)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return look_up
