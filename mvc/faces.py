"""Lazy attributes of modules: a name is imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def face(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of ``module``; ``names``: for each name the module that defines it.

    A name that its module does not define is that module itself.
    """

    def look_up(name: str) -> Any:
        if name in names:
            from importlib import import_module

            source = import_module(names[name])
            return getattr(source, name, source)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return look_up
