"""Where torch is not installed, tests that need it are skipped, with that as the reason.

A test module imports torch as if it were there. What it gets stands for torch, and the first use
skips the test, or the module where that is in no test. mvc itself gets nothing: it has to do
without, or to say that it cannot.
"""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

import mvc
from mvc.errors import NotInstalled

ABSENT = tuple(name for name in ("torch", "rich", "sklearn") if find_spec(name) is None)
"""What only examples, or trainings, need. If torch is installed, all of them must be."""

_TESTS = ("tests", "examples", "reproduce")
_EXTRA = "mvc-weights[torch]"
_MVC = Path(mvc.__file__).parent

_import = builtins.__import__


class _Absent(ModuleType):
    """Stands for a package or something in it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _skip(self.__name__)

    def __call__(self, *_: object, **__: object) -> NoReturn:
        _skip(self.__name__)

    __instancecheck__ = __mro_entries__ = __call__


def _skip(what: str) -> NoReturn:
    pytest.skip(f"needs {what}", allow_module_level=True)


def _importing(
    name: str,
    globals: Mapping[str, Any] | None = None,
    locals: Mapping[str, Any] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    """As ``__import__``."""
    importer = (globals or {}).get("__name__") or ""
    if importer.partition(".")[0] not in _TESTS:
        return _import(name, globals, locals, fromlist or (), level)
    if not level and (name.partition(".")[0] in ABSENT or name == "safetensors.torch"):
        made = _Absent(name if fromlist else name.partition(".")[0])
        for each in fromlist or ():
            setattr(made, each, _Absent(f"{name}.{each}"))
        return made
    with _skipping():
        return _import(name, globals, locals, fromlist or (), level)


@contextmanager
def _skipping() -> Iterator[None]:
    """Skips where mvc says that it needs torch, and where code of a test imports it unasked."""
    try:
        yield
    except NotInstalled as error:
        if _EXTRA not in str(error):
            raise
        pytest.skip(error.message, allow_module_level=True)
    except ModuleNotFoundError as error:
        if error.name not in ABSENT or _raised_in(error).is_relative_to(_MVC):
            raise
        _skip(error.name)


def _raised_in(error: BaseException) -> Path:
    """The file of the statement that raised it."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return Path([file for file in files if file != __file__ and not file.startswith("<")][-1])


def pytest_configure() -> None:
    builtins.__import__ = _importing  # type: ignore[assignment]


def pytest_unconfigure() -> None:
    builtins.__import__ = _import


def pytest_report_header() -> str:
    return f"not installed: {', '.join(ABSENT)}; tests that need them are skipped"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    with _skipping():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    with _skipping():
        return (yield)
