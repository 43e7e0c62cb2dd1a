"""Names that a module or package offers, and imports only when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def face(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of ``module``. ``names``: each with the module that has it, or is it."""

    def look_up(name: str) -> Any:
        if name in names:
            from importlib import import_module

            found = import_module(names[name])
            return getattr(found, name, found)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return look_up
