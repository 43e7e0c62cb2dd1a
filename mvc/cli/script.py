"""A file of Python that the user names on the command line, imported when it is first needed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cached_property
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from mvc.errors import MvcError, UnknownPath, WrongUsage
from mvc.system import FileSystem
from mvc.text import one_line

_HIDDEN = "__mvc_script__"


class Script:
    """``FILE.py[:NAME]``.

    ``recorded``: its functions are to be found again by the name of their module, so the file is
    imported as the module of its name.
    """

    def __init__(
        self, target: str, fs: FileSystem, default: str, *, recorded: bool = False
    ) -> None:
        self._fs, self._target, self._recorded = fs, target, recorded
        self.place, _, name = target.partition(":")
        self.name = name or default

    def required(self, name: str) -> Any:
        """What the code has under ``name``. Raises WrongUsage if that is nothing."""
        found = self.get(name)
        if found is None:
            raise WrongUsage(
                f"{self.place} has no {name}",
                hint="define it, or name a function: FILE.py:NAME",
            )
        return found

    def value(self, name: str) -> Any:
        """What the function ``name`` returns, or a value of this name; None if there is none."""
        found = self.get(name)
        return found() if callable(found) else found

    def get(self, name: str) -> Any:
        """What the code has under ``name``; None for nothing, and for a module."""
        found = getattr(self._module, name, None)
        return None if isinstance(found, ModuleType) else found

    @contextmanager
    def running(self) -> Iterator[None]:
        """Sends what the code prints to stderr; makes its failures one line."""
        try:
            with redirect_stdout(sys.stderr):
                yield
        except (MvcError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            said = one_line(str(error))
            raise WrongUsage(
                f"{self._target} failed: {type(error).__name__}" + (f": {said}" if said else ""),
                hint="run it with --debug to see where",
            ) from error

    @cached_property
    def _module(self) -> ModuleType:
        file = Path(self.place)
        identity = self._fs.stat(file)
        if identity is None or not identity.is_file:
            raise UnknownPath(
                f"there is no file {self.place}",
                hint="name a file of Python, which may import what a package has",
            )
        file = self._fs.realpath(file)
        name = self._module_name(file) if self._recorded else _HIDDEN
        sys.path.insert(0, str(file.parent))
        spec = spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def _module_name(self, file: Path) -> str:
        name = file.stem
        there = getattr(sys.modules.get(name), "__file__", None)
        if name in sys.stdlib_module_names or (there is not None and there != str(file)):
            raise WrongUsage(
                f"{self.place} cannot be recorded: another module is called {name}",
                hint="give the file another name",
            )
        if not name.isidentifier():
            raise WrongUsage(
                f"{self.place} cannot be recorded: no module can be called {name}",
                hint="give the file a name of letters, digits and _",
            )
        return name
