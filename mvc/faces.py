"""Lazy attributes of modules: a name is imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def face(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of ``module``; ``names``: for each name the source to import it from.

    The source is a module that defines the name, the package of a module of that name, or else the
    module itself.
    """

    def look_up(name: str) -> Any:
        if name in names:
            source = __import__(names[name], fromlist=[name])
            return getattr(source, name, source)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return look_up
