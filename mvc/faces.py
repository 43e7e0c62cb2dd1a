"""Lets a package export names that are imported only on first use, to make ``import mvc`` fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def face(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns a function to use as the ``__getattr__`` of the module ``module``.

    ``names`` maps an exported name to the module that defines it, for example ``"nodes"`` to
    ``"mvc.api.node_status"``. To export a module, map its name to the package that contains it, or
    to the module itself.
    """

    def look_up(name: str) -> Any:
        if name in names:
            source = __import__(names[name], fromlist=[name])
            return getattr(source, name, source)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return look_up
