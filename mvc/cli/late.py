"""Imports click and msgspec without what a command of mvc does not use of them.

A command's start is the import of what it uses, and these two import more: ``inspect`` to clean
texts of help, JSON schemas, translations where there are none. ``import_libraries`` has other
modules stand for these, as Mercurial's ``demandimport`` does. It is for the process of the
program alone: ``import mvc`` changes nothing.
"""

from __future__ import annotations

import os
import sys
import urllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType


class _Late(ModuleType):
    """Stands for a module, which is loaded when an attribute is read, or a function called."""

    def __init__(self, name: str, *functions: str, **known: Callable[..., object]) -> None:
        super().__init__(name)
        vars(self).update({each: self._later(each) for each in functions} | known)

    def _later(self, name: str) -> Callable[..., object]:
        return lambda *args, **named: getattr(self._loaded(), name)(*args, **named)

    def _loaded(self) -> ModuleType:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return import_module(self.__name__)

    def __getattr__(self, name: str) -> object:
        if name == "__path__":  # asked at each import; only packages have it
            raise AttributeError(name)
        return getattr(self._loaded(), name)


_PYTHONS = {"cpython": "CPython", "pypy": "PyPy"}


def _same(message: str) -> str:
    return message


def _one_or_many(one: str, many: str, number: int) -> str:
    return one if number == 1 else many


_LATE = (
    _Late("inspect"),
    _Late("msgspec.inspect"),
    _Late("msgspec._json_schema", "schema", "schema_components"),
    _Late(
        "platform",  # what uuid and zstandard ask at their import
        system=lambda: os.uname().sysname,
        python_implementation=lambda: _PYTHONS.get(
            sys.implementation.name, sys.implementation.name
        ),
    ),
    _Late("urllib.parse", "quote_from_bytes"),  # of pathlib
)
_INSTEAD = {
    # click has no catalogs, but gettext would look for them at each text.
    "gettext": _Late("gettext", gettext=_same, ngettext=_one_or_many),
    "typing_extensions": None,  # msgspec takes the same from typing, if it is not installed
}


def import_libraries() -> None:
    """Imports click and msgspec, if this process has neither imported yet."""
    if "click" in sys.modules or "msgspec" in sys.modules:
        return
    for late in _LATE:
        sys.modules.setdefault(late.__name__, late)
    vars(urllib)["parse"] = sys.modules["urllib.parse"]  # as importing it would
    with _replaced({name: it for name, it in _INSTEAD.items() if name not in sys.modules}):
        import click  # noqa: F401
        import msgspec  # noqa: F401


@contextmanager
def _replaced(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """While the block runs, imports of these names give these modules."""
    sys.modules.update(modules)  # type: ignore[arg-type]  # None: there is no such module
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
