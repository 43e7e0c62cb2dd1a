"""Runs code from a repository, after the user has trusted it. No other module of mvc does this.

The stored source files of a version become modules in memory, below a package that is named by the
hash of the files. So different versions of a file can be loaded in one process. Nothing is written
to disk, and ``sys.path`` is unchanged. If a stored file imports a module that is stored, too, the
stored module is loaded. Any other import loads an installed package.
"""

from __future__ import annotations

import builtins
import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import decode_source, resolve_name
from io import BytesIO
from tokenize import detect_encoding
from traceback import walk_tb
from types import ModuleType
from typing import Any

from blake3 import blake3

from mvc.errors import CannotBuild
from mvc.limits import MAX_CODE_BYTES, MAX_CODE_FILES
from mvc.names import printable

FOLDER = "code/"
"""Prefix of the names of source files. A commit stores these files as attachments."""

_ROOT = "mvc_stored_"
_NAME = re.compile(r"code(?:/[^\W\d]\w*)+\.py")


def file_of(module: str, *, package: bool = False) -> str:
    """The name under which a module's file is stored: ``code/nets/resnet.py``."""
    return FOLDER + module.replace(".", "/") + ("/__init__.py" if package else ".py")


def is_code(name: str) -> bool:
    """Whether an attachment with this name is a source file that can be imported."""
    return _NAME.fullmatch(name) is not None


def is_utf8(source: bytes) -> bool:
    """Whether Python reads a source file as UTF-8.

    A file may declare another encoding. Python could then run code that a reader sees as a comment.
    """
    try:
        return detect_encoding(BytesIO(source).readline)[0] in {"utf-8", "utf-8-sig"}
    except SyntaxError:
        return False


class StoredCode:
    """The source files of a version.

    ``files``: maps names such as ``code/nets/resnet.py`` to sources. ``packages``: maps the
    packages that the files import to versions. Raises CannotBuild for invalid names, for encodings
    other than UTF-8, and for too many or too large files.
    """

    def __init__(self, files: Mapping[str, bytes], packages: Mapping[str, str]) -> None:
        for name in files:
            if not is_code(name):
                raise CannotBuild(f"{printable(name)} is not a valid name of a stored source file")
            if not is_utf8(files[name]):
                raise CannotBuild(
                    f"{printable(name)} is not UTF-8: it could run other code than it shows"
                )
        if len(files) > MAX_CODE_FILES or sum(map(len, files.values())) > MAX_CODE_BYTES:
            raise CannotBuild("the stored code has too many or too large files")
        self.files, self.packages = dict(files), dict(packages)
        hashed = blake3()
        for name, data in sorted(files.items()):
            hashed.update(f"{name}\0{len(data)}\0".encode() + data)
        self.root = _ROOT + hashed.hexdigest()[:32]
        self._sources = {_module_of(name): name for name in files}
        parts = [name.split(".") for name in self._sources]
        self._folders = {".".join(part[:i]) for part in parts for i in range(1, len(part))}
        self._tops = {part[0] for part in parts}
        self._importlib = _Importlib(self)

    def load(self, module: str, name: str) -> Any:
        """Imports a module and returns its attribute ``name`` (``Net``, ``Net.make``).

        This runs the stored code. A module that is not stored is imported from an installed
        package. Raises CannotBuild with the file and line that fails, or the missing name.
        """
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.append(_Finder())
        _LOADED.setdefault(self.root, self)
        stored = module in self._sources
        try:
            loaded: Any = import_module(f"{self.root}.{module}" if stored else module)
        except (Exception, SystemExit) as error:
            raise self.failed(f"the module {module} cannot be imported", error) from error
        for part in name.split("."):
            if not hasattr(loaded, part):
                where = self._sources.get(module, f"the installed module {module}")
                raise CannotBuild(f"{printable(where)} has no {printable(name)}")
            loaded = getattr(loaded, part)
        return loaded

    def failed(self, problem: str, error: BaseException) -> CannotBuild:
        """Turns an error of stored code into CannotBuild, with the file and line that raised it."""
        label, where = self._label(""), ""
        for frame, line in walk_tb(error.__traceback__):
            file = frame.f_code.co_filename
            if file.startswith(label):
                where = f" ({FOLDER}{file.removeprefix(label)} line {line})"
        if isinstance(error, SyntaxError) and str(error.filename).startswith(label):
            where = f" ({FOLDER}{str(error.filename).removeprefix(label)} line {error.lineno})"
        reason = str(error).replace(f"{self.root}.", "").replace(label, FOLDER)
        reason = printable(reason.partition("\n")[0])[:300]
        hint = None
        if isinstance(error, ImportError) and self.packages:
            pinned = (f"{name}=={version}" for name, version in sorted(self.packages.items()))
            hint = "the version was recorded with " + printable(", ".join(pinned))
        return CannotBuild(
            f"{printable(problem)}: {type(error).__name__}: {reason}{where}", hint=hint
        )

    def _label(self, name: str) -> str:
        """The name of a stored file in tracebacks. No file on disk has this name."""
        return f"<mvc {self.root.removeprefix(_ROOT)[:10]}>/{name.removeprefix(FOLDER)}"

    def spec(self, fullname: str) -> ModuleSpec | None:
        """The spec for ``ROOT.MODULE``; None if the module is not stored."""
        module = fullname.partition(".")[2]
        file = self._sources.get(module)
        if module and file is None and module not in self._folders:
            return None
        package = not module or module in self._folders or str(file).endswith("/__init__.py")
        source = b"" if file is None else self.files[file]
        label = self._label(file or f"{module or self.root}/__init__.py")
        loader = _Loader(self, source, label, package)
        spec = ModuleSpec(fullname, loader, origin=label, is_package=package)
        spec.has_location = True
        return spec

    def imported(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """``__import__`` for stored modules: prefers a stored module to an installed module."""
        top = name.partition(".")[0]
        if level or top not in self._tops:
            module = builtins.__import__(
                name, globals, locals, fromlist=fromlist or (), level=level
            )
            return self._importlib if module is importlib else module
        module = builtins.__import__(
            f"{self.root}.{name}", globals, locals, fromlist=fromlist or (), level=0
        )
        return module if fromlist else sys.modules[f"{self.root}.{top}"]

    def import_module(self, name: str, package: str | None = None) -> ModuleType:
        """``importlib.import_module`` for stored modules."""
        if name.startswith("."):
            name = resolve_name(name, package)  # raises for None
        stored = name.partition(".")[0] in self._tops
        return import_module(f"{self.root}.{name}" if stored else name)


class _Importlib(ModuleType):
    """``importlib`` for stored modules. Like ``imported``, it prefers stored modules."""

    def __init__(self, code: StoredCode) -> None:
        super().__init__("importlib", importlib.__doc__)
        self.import_module, self.__import__ = code.import_module, code.imported

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib, name)


_LOADED: dict[str, StoredCode] = {}
"""Maps the name of a root package to its stored code.

Stored code is never removed, because a loaded function may import a module at any later time.
"""


def stored_code_of(module: str) -> StoredCode | None:
    """The stored code to which a module belongs; None for a module that is not stored."""
    return _LOADED.get(module.partition(".")[0])


def _module_of(file: str) -> str:
    return file.removeprefix(FOLDER).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        stored = stored_code_of(fullname)
        return None if stored is None else stored.spec(fullname)


class _Loader(ExecutionLoader):
    def __init__(self, code: StoredCode, source: bytes, label: str, package: bool) -> None:
        self._code, self._source, self._label, self._package = code, source, label, package

    def get_filename(self, _: str) -> str:
        return self._label

    def get_source(self, _: str) -> str:
        return decode_source(self._source)

    def is_package(self, _: str) -> bool:
        return self._package

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self._code.imported}
        super().exec_module(module)
