"""Collects the source files that define a model, so that a version can store the model's code.

From the file of the model's class, mvc follows the ``import`` statements from file to file, without
importing a module. Files of the project are stored. For an installed package, only its version is
recorded. A file that was edited after its import is refused, because the edited file is not the
code that runs.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from importlib.machinery import SOURCE_SUFFIXES, PathFinder, SourceFileLoader
from importlib.util import decode_source, find_spec
from pathlib import Path
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

from msgspec import Struct

from mvc.errors import CannotRecord
from mvc.limits import MAX_CODE_BYTES, MAX_CODE_FILES
from mvc.models.definitions import Definitions
from mvc.models.environment import distribution_name
from mvc.models.stored_code import file_of, is_utf8, stored_code_of
from mvc.names import an, printable
from mvc.system import FileSystem

_STDLIB = sysconfig.get_path("stdlib")
_SCRIPT = {"__main__", "__mp_main__"}
"""Names of the running script's module. ``multiprocessing`` uses ``__mp_main__``."""


class Sources(Struct, frozen=True):
    """``files``: maps names of attachments (``code/nets/resnet.py``) to the bytes of the files.

    ``packages``: maps the names of installed packages that the files import to their versions.
    """

    files: Mapping[str, bytes]
    packages: Mapping[str, str]


def place_of(target: Any) -> tuple[str, str]:
    """The module and the name with which a class or function can be imported.

    Raises CannotRecord for a lambda, for a class or function defined inside a function, in a
    notebook or at the Python prompt, and for a name that its module does not define.
    """
    name = getattr(target, "__qualname__", None)
    module = getattr(target, "__module__", None)
    if not callable(target) or not isinstance(name, str) or not isinstance(module, str):
        raise CannotRecord(
            f"{an(type(target).__name__)} cannot be recorded as the source of a model",
            hint="pass a class, or a function defined in a module",
        )
    shown = printable(f"{module}.{name}")
    if "<lambda>" in name:
        raise CannotRecord(
            "a lambda cannot be recorded", hint="write the lambda as a function of a module"
        )
    if "<locals>" in name:
        raise CannotRecord(
            f"{shown} is defined inside a function, so it cannot be imported",
            hint="define the class or function at the top level of a module",
        )
    imported: Any = sys.modules.get(module)
    for part in name.split("."):
        imported = getattr(imported, part, None)
    if imported != target:
        raise CannotRecord(
            f"{shown} cannot be recorded: its module does not define it under this name",
            hint="define the class or function at the top level of a module under its own name",
        )
    if stored_code_of(module) is not None:
        return module.partition(".")[2], name
    if module not in _SCRIPT:
        return module, name
    return _script(shown)[0], name


def sources_of(
    targets: Sequence[Any],
    more: Collection[str] = (),
    *,
    values: bool = False,
) -> Sources:
    """The source files of the classes and functions ``targets``.

    ``more``: additional modules, such as modules that the code imports without an ``import``
    statement. ``values``: whether loaded constants, and not only functions, must match the files.
    Raises CannotRecord if code is compiled, too large, edited after its import, or has no source.
    """
    places = tuple(place_of(target) for target in targets)
    key = (places, tuple(more))
    known = _KNOWN.setdefault(targets[0], {}).get(key)
    if known is not None and known.is_current(values):
        return known.sources
    search = _ImportSearch(values)
    for target in targets:
        search.add(target.__module__)
    for name in more:
        if not search.add(name):
            raise CannotRecord(f"cannot record the module {printable(name)}: it does not exist")
    search.run()
    _KNOWN[targets[0]][key] = search
    return search.sources


class _ImportSearch:
    """Follows imports from file to file."""

    def __init__(self, values: bool) -> None:
        self._values = values
        self._waiting: list[str] = []
        self._seen: set[str] = set()
        self._defined: dict[str, Definitions] = {}
        self._files: dict[str, bytes] = {}
        self._installed: dict[str, str] = {}

    @property
    def sources(self) -> Sources:
        return Sources(dict(sorted(self._files.items())), dict(sorted(self._installed.items())))

    def is_current(self, values: bool) -> bool:
        """Whether the loaded modules match the files that were read."""
        return not any(_difference(n, file, values) for n, file in self._defined.items())

    def add(self, name: str) -> bool:
        """Adds a module and its parent packages. Returns False if the module does not exist."""
        if _find(name) is None:
            return False
        if name not in self._seen:
            self._seen.add(name)
            self._waiting.append(name)
            parent = name.rpartition(".")[0]
            if parent:
                self.add(parent)
        return True

    def run(self) -> None:
        while self._waiting:
            self._record(self._waiting.pop())
        if (
            len(self._files) > MAX_CODE_FILES
            or sum(map(len, self._files.values())) > MAX_CODE_BYTES
        ):
            raise CannotRecord(
                f"the code has {len(self._files):,} files of "
                f"{sum(map(len, self._files.values())):,} bytes, more than a version can store",
                hint="install stable code as a package: then only its version is recorded",
            )

    def _record(self, name: str) -> None:
        stored = stored_code_of(name)
        if stored is not None:
            self._files.update(stored.files)
            self._installed.update(stored.packages)
            return
        module = _find(name)
        if module is None or module.kind == "standard" or len(self._files) > MAX_CODE_FILES:
            return
        if module.kind == "installed":
            self._installed.update(_distributions(name.partition(".")[0]))
            return
        if module.path is None:  # a folder without __init__.py
            return
        own, path, package = name, module.path, module.folders is not None
        if name in _SCRIPT:
            own, path = _script("the model's class")
            if "." in own:  # a script in a package, run with python -m
                self.add(own.rpartition(".")[0])
        if path.suffix not in SOURCE_SUFFIXES:
            raise CannotRecord(
                f"{printable(own)} is compiled ({printable(path.name)}): it has no source to store",
                hint="install the module as a package: then only its version is recorded",
            )
        data = FileSystem().read_bytes(path, MAX_CODE_BYTES)
        if not is_utf8(data):
            raise CannotRecord(
                f"{printable(str(path))} is not UTF-8", hint="save the file as UTF-8, then restart"
            )
        tree, code = _parsed(data, path)
        if name in _SCRIPT:
            _refuse_script_with_effects(tree, path)
        self._defined[name] = Definitions(tree, code)
        different = _difference(name, self._defined[name], self._values)
        if different:
            raise CannotRecord(
                f"{printable(str(path))} {printable(different)}",
                hint="restart the process, so that it imports the present file",
            )
        self._files[file_of(own, package=package)] = data
        for wanted in _imports(tree, own if package else own.rpartition(".")[0]):
            self.add(wanted)


def _difference(name: str, file: Definitions, values: bool) -> str:
    """How a loaded module differs from its file; empty if the two are equal."""
    module = sys.modules.get(name)
    if module is None:
        return ""
    different = file.difference(module)
    if different is not None:
        return f"was edited after its import: {different}"
    changed = file.changed_value(module) if values else None
    return "" if changed is None else f"differs from the loaded module: {changed}"


_KNOWN: WeakKeyDictionary[Any, dict[tuple[object, ...], _ImportSearch]] = WeakKeyDictionary()


# -- locations of modules --------------------------------------------------------------


class _ModulePlace(Struct, frozen=True):
    """``kind``: standard, installed or project. ``folders``: search path of a package."""

    kind: str
    path: Path | None = None
    folders: Sequence[str] | None = None


def _find(name: str) -> _ModulePlace | None:
    """The location of a module, without importing it; None if it does not exist."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top == "__future__":
        return _ModulePlace("standard")
    if top == "mvc":
        return _ModulePlace("installed")
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is None:
        parent = name.rpartition(".")[0]
        above = _find(parent) if parent else None
        if above is not None and above.kind != "project":
            return above
        if parent and (above is None or not above.folders):
            return None
        with suppress(AttributeError, ImportError, ValueError):  # raised by other packages' finders
            spec = PathFinder.find_spec(name, above.folders) if above else find_spec(name)
        if spec is None:
            return None
    origin = getattr(spec, "origin", None) or getattr(module, "__file__", None)
    folders = getattr(spec, "submodule_search_locations", None)
    folders = None if folders is None else list(folders)
    if origin in {"built-in", "frozen"}:
        return _ModulePlace("standard")
    place = origin or next(iter(folders or ()), None)
    if place is None:
        return _ModulePlace("project", None, folders)
    kind = "installed" if _is_installed(Path(place)) else "project"
    return _ModulePlace(kind, Path(origin) if origin else None, folders)


def _is_installed(path: Path) -> bool:
    return bool({"site-packages", "dist-packages"} & set(path.parts)) or path.is_relative_to(
        _STDLIB
    )


@cache
def _distributions(top: str) -> dict[str, str]:
    """Maps the installed distributions that contain the top-level module to their versions."""
    if top == "mvc":
        return {"mvc": str(getattr(sys.modules["mvc"], "__version__", ""))}
    names = _by_module().get(top, ())
    return {distribution_name(name): metadata.version(name) for name in names}


_by_module = cache(metadata.packages_distributions)


def _script(shown: str) -> tuple[str, Path]:
    """The module name and the file of the running script."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    spec = getattr(main, "__spec__", None)
    name = spec.name if spec is not None else Path(file or "").stem
    path = Path(file or "")
    if file is None or path.suffix not in SOURCE_SUFFIXES:
        raise CannotRecord(
            f"{shown} has no source file: it was defined in a notebook or at the prompt",
            hint="write the code into a module (a .py file) and import the module",
        )
    if not all(part.isidentifier() for part in name.split(".")):
        raise CannotRecord(
            f"{printable(path.name)} cannot be imported by its name",
            hint="move the class into a separate module",
        )
    return name, path


# -- parsing of a file -----------------------------------------------------------------


def _parsed(data: bytes, path: Path) -> tuple[ast.Module, CodeType]:
    try:
        tree = ast.parse(decode_source(data))
        code = SourceFileLoader("source", str(path)).source_to_code(data, str(path))
    except (SyntaxError, ValueError, UnicodeDecodeError, RecursionError) as error:
        raise CannotRecord(
            f"{printable(str(path))} is not valid Python: {printable(str(error))}",
            hint="correct the file, then restart the process",
        ) from None
    return tree, code


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Yields every module that the file may import.

    ``from a import b`` yields ``a`` and ``a.b``, because ``b`` may be a module.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join(filter(None, (*above, base)))
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _refuse_script_with_effects(tree: ast.Module, path: Path) -> None:
    """Raises CannotRecord if importing the script would do more than define names."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            acts = any(isinstance(part, ast.Call | ast.Await) for part in ast.walk(node))
        elif isinstance(node, ast.If):
            tested = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
            acts = not tested & {"__name__", "TYPE_CHECKING"}
        elif isinstance(node, ast.Expr):
            acts = not isinstance(node.value, ast.Constant)
        else:
            kinds = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef
            acts = not isinstance(node, kinds | ast.ClassDef)
        if acts:
            raise CannotRecord(
                f"{printable(path.name)} line {node.lineno} would run whenever the model is loaded",
                hint="move the class into a separate module, or the script's actions below "
                'if __name__ == "__main__":',
            )
