"""Code out of a repository: the one module of mvc that runs it, once the user has said so.

The files live in memory, as modules below a package of their own whose name is the hash of the
files: nothing is written, ``sys.path`` stays as it is, and two versions of one file may be loaded
at once. Their imports of one another, also those by ``importlib.import_module``, lead to the stored
files, all others to installed packages.
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
"""How the names begin under which a version carries source files."""

_ROOT = "mvc_stored_"
_NAME = re.compile(r"code(?:/[^\W\d]\w*)+\.py")


def file_of(module: str, *, package: bool = False) -> str:
    """The attached name of a module's file: ``code/nets/resnet.py``."""
    return FOLDER + module.replace(".", "/") + ("/__init__.py" if package else ".py")


def is_code(name: str) -> bool:
    """Whether an attached name is that of a source file that can be imported."""
    return _NAME.fullmatch(name) is not None


def is_utf8(source: bytes) -> bool:
    """Whether Python reads a file as UTF-8: what is shown to its reader is then what runs.

    In other encodings, which the first lines may name, a comment may hold a line of code.
    """
    try:
        return detect_encoding(BytesIO(source).readline)[0] in {"utf-8", "utf-8-sig"}
    except SyntaxError:
        return False


class StoredCode:
    """The source files of a version by attached name, and the packages that they import.

    Raises CannotBuild for names that are no modules, for files in another encoding than UTF-8,
    and for too many or too large files.
    """

    def __init__(self, files: Mapping[str, bytes], packages: Mapping[str, str]) -> None:
        for name in files:
            if not is_code(name):
                raise CannotBuild(f"{printable(name)} is no name of a stored source file")
            if not is_utf8(files[name]):
                raise CannotBuild(
                    f"{printable(name)} is not UTF-8: it may not be what it looks like"
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
        self._folders = {".".join(each[:i]) for each in parts for i in range(1, len(each))}
        self._tops = {each[0] for each in parts}
        self._importlib = _Importlib(self)

    def take(self, module: str, name: str) -> Any:
        """Imports a stored module and returns what it has under ``name`` (``Net``, ``Net.make``).

        This runs the stored code. A module that is not stored is that of an installed package.
        Raises CannotBuild, saying which file and line fails, or what is not there.
        """
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.append(_Finder())
        _LOADED.setdefault(self.root, self)
        stored = module in self._sources
        try:
            found: Any = import_module(f"{self.root}.{module}" if stored else module)
        except (Exception, SystemExit) as error:
            raise self.failed(f"the module {module} cannot be imported", error) from error
        for part in name.split("."):
            if not hasattr(found, part):
                where = self._sources.get(module, f"the installed module {module}")
                raise CannotBuild(f"{printable(where)} has no {printable(name)}")
            found = getattr(found, part)
        return found

    def failed(self, what: str, error: BaseException) -> CannotBuild:
        """The error for stored code that raises, with the place in it."""
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
            hint = "the version was made with " + printable(", ".join(pinned))
        return CannotBuild(f"{printable(what)}: {type(error).__name__}: {reason}{where}", hint=hint)

    def _label(self, name: str) -> str:
        """What tracebacks call a file: it is none on this disk."""
        return f"<mvc {self.root.removeprefix(_ROOT)[:10]}>/{name.removeprefix(FOLDER)}"

    def spec(self, fullname: str) -> ModuleSpec | None:
        """How to load ``ROOT.MODULE``; None if that is not stored."""
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
        """``__import__`` of stored modules: what is stored goes before what is installed."""
        top = name.partition(".")[0]
        if level or top not in self._tops:
            found = builtins.__import__(name, globals, locals, fromlist=fromlist or (), level=level)
            return self._importlib if found is importlib else found
        found = builtins.__import__(
            f"{self.root}.{name}", globals, locals, fromlist=fromlist or (), level=0
        )
        return found if fromlist else sys.modules[f"{self.root}.{top}"]

    def import_module(self, name: str, package: str | None = None) -> ModuleType:
        """``importlib.import_module`` of stored modules."""
        if name.startswith("."):
            name = resolve_name(name, package)  # it refuses None
        stored = name.partition(".")[0] in self._tops
        return import_module(f"{self.root}.{name}" if stored else name)


class _Importlib(ModuleType):
    """``importlib`` as stored modules see it: it finds what is stored first, as ``import`` does."""

    def __init__(self, code: StoredCode) -> None:
        super().__init__("importlib", importlib.__doc__)
        self.import_module, self.__import__ = code.import_module, code.imported

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib, name)


_LOADED: dict[str, StoredCode] = {}
"""What has been loaded in this process: its functions may import further modules at any time."""


def stored_code_of(module: str) -> StoredCode | None:
    """The stored code that a loaded module belongs to; None for any other module."""
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
