"""A Python file that the user names on the command line, imported at the first use."""

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
    """A script, named as ``FILE.py[:NAME]``.

    ``recorded``: whether a recipe (a recorded training) will name functions of the script. If so,
    the script is imported under the name of the file, because a recipe names a function by its
    module.
    """

    def __init__(
        self, target: str, fs: FileSystem, default: str, *, recorded: bool = False
    ) -> None:
        self._fs, self._target, self._recorded = fs, target, recorded
        self.place, _, name = target.partition(":")
        self.name = name or default

    def required(self, name: str) -> Any:
        """The attribute ``name`` of the module. Raises WrongUsage if it is missing."""
        value = self.get(name)
        if value is None:
            raise WrongUsage(
                f"{self.place} has no {name}",
                hint="define it, or name a function: FILE.py:NAME",
            )
        return value

    def value(self, name: str) -> Any:
        """The attribute ``name`` of the module, or its result if the attribute is a function.

        None if the attribute is missing.
        """
        value = self.get(name)
        return value() if callable(value) else value

    def get(self, name: str) -> Any:
        """The attribute ``name`` of the module; None if it is missing or a module."""
        value = getattr(self._module, name, None)
        return None if isinstance(value, ModuleType) else value

    @contextmanager
    def running(self) -> Iterator[None]:
        """A ``with`` block for the script's code. Redirects stdout to stderr.

        Turns errors into WrongUsage, except MvcError and MemoryError.
        """
        try:
            with redirect_stdout(sys.stderr):
                yield
        except (MvcError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            text = one_line(str(error))
            raise WrongUsage(
                f"{self._target} failed: {type(error).__name__}" + (f": {text}" if text else ""),
                hint="run it with --debug to see where",
            ) from error

    @cached_property
    def _module(self) -> ModuleType:
        file = Path(self.place)
        identity = self._fs.stat(file)
        if identity is None or not identity.is_file:
            raise UnknownPath(
                f"there is no file {self.place}",
                hint="name a Python file; it may import packages",
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
        existing = getattr(sys.modules.get(name), "__file__", None)
        if name in sys.stdlib_module_names or (existing is not None and existing != str(file)):
            raise WrongUsage(
                f"{self.place} cannot be recorded: another module has the name {name}",
                hint="rename the file",
            )
        if not name.isidentifier():
            raise WrongUsage(
                f"{self.place} cannot be recorded: {name} is not a valid module name",
                hint="rename the file, with letters, digits and _",
            )
        return name
