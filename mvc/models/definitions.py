"""Compares a source file of a model with the Python module that was imported from the file.

A difference shows that the file was edited after the import, or that the module was changed in
memory. mvc compares the compiled code of functions, and the literals that the file assigns to names
or uses as defaults. The file is not run.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from inspect import unwrap
from types import CodeType, FunctionType, ModuleType
from typing import Any

_UNKNOWN, _FUNCTION = object(), object()
_PLAIN = (type(None), bool, int, float, complex, str, bytes, tuple)
_SHOWN = 60  # characters of a value in a message


class Definitions:
    """The functions and the constants that a file defines."""

    def __init__(self, tree: ast.Module, code: CodeType) -> None:
        self._values = dict(_values(tree.body, "", Counter(_bound(tree))))
        self._code: dict[str, list[CodeType]] = {}
        for compiled in _all_code(code):
            self._code.setdefault(compiled.co_qualname, []).append(compiled)
        self._defaults: dict[tuple[int, str], dict[str, Any]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                lines = [part.lineno for part in (node, *getattr(node, "decorator_list", ()))]
                key = min(lines), getattr(node, "name", "<lambda>")
                self._defaults[key] = _written_defaults(node.args)

    def difference(self, module: ModuleType) -> str | None:
        """Describes the first loaded function that differs from the file, or returns None.

        Functions that were assigned to the module from other files are ignored.
        """
        file = getattr(module, "__file__", None)
        for function in _functions(vars(module), module.__name__):
            if function.__code__.co_filename == file:
                different = self._of_function(function)
                if different is not None:
                    return f"{function.__code__.co_qualname}: {different}"
        return None

    def changed_value(self, module: ModuleType) -> str | None:
        """Describes the first constant or function that was replaced in memory, or returns None."""
        for name, written in self._values.items():
            value: Any = module
            for part in name.split("."):
                value = vars(value).get(part, _UNKNOWN) if hasattr(value, "__dict__") else _UNKNOWN
            if written is _FUNCTION:
                code = getattr(unwrap(value), "__code__", None)
                own = isinstance(code, CodeType) and _bare(code) in map(_bare, self._code[name])
                if value is not _UNKNOWN and not own:
                    return f"{name} was replaced by another function"
            elif isinstance(value, _PLAIN) and _differs(written, value):
                return f"{name} is {_shown(value)} in memory, {_shown(written)} in the file"
        return None

    def _of_function(self, function: FunctionType) -> str | None:
        """How a function differs from the file.

        None if the function equals one of the functions of this name in the file.
        """
        code, difference = function.__code__, "its code differs"
        for compiled in self._code.get(code.co_qualname, ()):
            if _bare(compiled) == _bare(code):
                written = self._defaults.get((compiled.co_firstlineno, compiled.co_name), {})
                changed = _changed_default(function, written)
                if changed is None:
                    return None
                difference = changed
        return difference


def _written_defaults(parameters: ast.arguments) -> dict[str, Any]:
    """The literal default of each parameter, ``_UNKNOWN`` for any other expression."""
    names = [argument.arg for argument in (*parameters.posonlyargs, *parameters.args)]
    written = dict(zip(names[::-1], parameters.defaults[::-1], strict=False))
    only = zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
    written |= {argument.arg: value for argument, value in only if value is not None}
    return {name: _literal(value) for name, value in written.items()}


def _values(body: Iterable[ast.stmt], where: str, bound: Counter[str]) -> Iterator[tuple[str, Any]]:
    """Yields the qualified name and the value of each literal constant and each function.

    The value of a function is ``_FUNCTION``. Leaves out names that are bound several times, and
    functions with decorators.
    """
    for statement in body:
        match statement:
            case ast.ClassDef(name=name, body=inner):
                yield from _values(inner, f"{where}{name}.", bound)
            case ast.FunctionDef(name=name, decorator_list=[]) if not bound[name]:
                yield where + name, _FUNCTION
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if bound[name] == 1 and not bound["*"]:
                if isinstance(written := _literal(value), _PLAIN):
                    yield where + name, written


def _bound(tree: ast.Module) -> Iterator[str]:
    """Yields every name that is bound or imported anywhere in the file, once for each binding."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Name(id=name, ctx=ast.Store() | ast.Del())
                | ast.Attribute(attr=name, ctx=ast.Store() | ast.Del())
            ):
                yield name
            case ast.alias(name=name, asname=other):
                yield other or name.partition(".")[0]
            case ast.Global(names=names):
                yield from names


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError):
        return _UNKNOWN


def _changed_default(function: FunctionType, written: Mapping[str, Any]) -> str | None:
    code, defaults = function.__code__, function.__defaults__ or ()
    positional = code.co_varnames[: code.co_argcount]
    pairs = [*zip(positional[::-1], defaults[::-1], strict=False)]
    pairs += (function.__kwdefaults__ or {}).items()
    loaded = {_unmangled(name): value for name, value in pairs}
    for name in dict.fromkeys([*written, *loaded]):
        if name not in loaded:
            return f"{name} has a default in the file, but none in memory"
        if name not in written:
            return f"{name} has the default {_shown(loaded[name])} in memory, but none in the file"
        value = written[name]
        # A call may fill a list or dictionary that is empty in the file. The text of a set has no
        # fixed order. So these defaults are not compared.
        comparable = value is not _UNKNOWN and not isinstance(value, set) and value not in ([], {})
        if comparable and _differs(value, loaded[name]):
            shown = f"{_shown(loaded[name])} in memory, {_shown(value)} in the file"
            return f"the default of {name} is {shown}"
    return None


def _unmangled(name: str) -> str:
    """Undoes the name mangling of Python: ``_Net__x`` becomes ``__x``."""
    return name if name.startswith("__") or "__" not in name[1:] else name[name.index("__", 1) :]


def _differs(written: Any, loaded: Any) -> bool:
    """Whether two values differ in type or text. 1 and True differ, and 0.0 and -0.0 differ."""
    return type(written) is not type(loaded) or repr(written) != repr(loaded)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


@lru_cache(1 << 14)
def _bare(code: CodeType) -> CodeType:
    """Code without its position in a file."""
    consts = tuple(_bare(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename="", co_firstlineno=1, co_linetable=b"", co_consts=consts)


def _all_code(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _all_code(inner)


def _functions(names: Mapping[str, Any], module: str) -> Iterator[FunctionType]:
    """Yields the functions of a module, including methods, properties and decorated functions."""
    waiting, seen = [*names.values()], set[int]()
    for value in waiting:  # the loop extends this list
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, type):
            waiting += vars(value).values() if value.__module__ == module else ()
            continue
        if isinstance(value, property):
            waiting += [value.fget, value.fset, value.fdel]
        elif isinstance(value, staticmethod | classmethod):
            waiting.append(value.__func__)
        elif isinstance(value, FunctionType) and value.__module__ == module:
            yield value
            for cell in value.__closure__ or ():
                with suppress(ValueError):  # an empty cell
                    waiting += [cell.cell_contents] * isinstance(cell.cell_contents, FunctionType)
        own = getattr(value, "__dict__", {})
        if isinstance(own, dict) and "__wrapped__" in own:
            waiting.append(own["__wrapped__"])
