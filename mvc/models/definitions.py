"""The functions of a source file, compared with those of the module that runs.

Code is compared as it was compiled, default values and constants where the file writes them out:
nothing of the file is run.
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
    """The functions that a file defines, at any depth, and its constants."""

    def __init__(self, tree: ast.Module, code: CodeType) -> None:
        self._values = dict(_values(tree.body, "", Counter(_bound(tree))))
        self._code: dict[str, list[CodeType]] = {}
        for each in _all_code(code):
            self._code.setdefault(each.co_qualname, []).append(each)
        self._defaults: dict[tuple[int, str], dict[str, Any]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                lines = [each.lineno for each in (node, *getattr(node, "decorator_list", ()))]
                key = min(lines), getattr(node, "name", "<lambda>")
                self._defaults[key] = _written_defaults(node.args)

    def difference(self, module: ModuleType) -> str | None:
        """How a function that runs differs from the file's; None if none does."""
        file = getattr(module, "__file__", None)
        for function in _functions(vars(module), module.__name__):
            if function.__code__.co_filename == file:
                different = self._of_function(function)
                if different is not None:
                    return f"{function.__code__.co_qualname}: {different}"
        return None

    def changed_value(self, module: ModuleType) -> str | None:
        """A constant or function of the module, or of a class in it, that is not the file's."""
        for name, written in self._values.items():
            here: Any = module
            for part in name.split("."):
                here = vars(here).get(part, _UNKNOWN) if hasattr(here, "__dict__") else _UNKNOWN
            if written is _FUNCTION:
                code = getattr(unwrap(here), "__code__", None)
                own = isinstance(code, CodeType) and _bare(code) in map(_bare, self._code[name])
                if here is not _UNKNOWN and not own:
                    return f"{name} was replaced by another function"
            elif isinstance(here, _PLAIN) and _differs(written, here):
                return f"{name} is {_shown(here)} here, {_shown(written)} in the file"
        return None

    def _of_function(self, function: FunctionType) -> str | None:
        """How it differs from each function of its name in the file; None if it is one of them."""
        code, different = function.__code__, "its code is another"
        for each in self._code.get(code.co_qualname, ()):
            if _bare(each) == _bare(code):
                written = self._defaults.get((each.co_firstlineno, each.co_name), {})
                found = _other_default(function, written)
                if found is None:
                    return None
                different = found
        return different


def _written_defaults(given: ast.arguments) -> dict[str, Any]:
    """By parameter the value that the text writes out, ``_UNKNOWN`` for any other expression."""
    names = [each.arg for each in (*given.posonlyargs, *given.args)]
    written = dict(zip(names[::-1], given.defaults[::-1], strict=False))
    only = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    written |= {each.arg: value for each, value in only if value is not None}
    return {name: _literal(value) for name, value in written.items()}


def _values(body: Iterable[ast.stmt], where: str, bound: Counter[str]) -> Iterator[tuple[str, Any]]:
    """By qualified name the constants that the text writes out, and ``_FUNCTION`` for a function.

    Names that are bound elsewhere, too, or have decorators, are left out.
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
    """Every name that the file assigns to or imports, in any scope, as often as it does."""
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


def _other_default(function: FunctionType, written: Mapping[str, Any]) -> str | None:
    code, given = function.__code__, function.__defaults__ or ()
    positional = code.co_varnames[: code.co_argcount]
    pairs = [*zip(positional[::-1], given[::-1], strict=False)]
    pairs += (function.__kwdefaults__ or {}).items()
    here = {_unmangled(name): value for name, value in pairs}
    for name in dict.fromkeys([*written, *here]):
        if name not in here:
            return f"the default of {name} is none here, one in the file"
        if name not in written:
            return f"the default of {name} is {_shown(here[name])} here, none in the file"
        value = written[name]
        # Calls fill what is empty in the text; a set has no order that could be compared.
        comparable = value is not _UNKNOWN and not isinstance(value, set) and value not in ([], {})
        if comparable and _differs(value, here[name]):
            shown = f"{_shown(here[name])} here, {_shown(value)} in the file"
            return f"the default of {name} is {shown}"
    return None


def _unmangled(name: str) -> str:
    """A parameter as the text has it: ``_Net__x`` is ``__x`` there."""
    return name if name.startswith("__") or "__" not in name[1:] else name[name.index("__", 1) :]


def _differs(written: Any, here: Any) -> bool:
    """Whether two values differ in type or bits, also inside of containers."""
    return type(written) is not type(here) or repr(written) != repr(here)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


@lru_cache(1 << 14)
def _bare(code: CodeType) -> CodeType:
    """Code without its place in a file."""
    held = tuple(_bare(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename="", co_firstlineno=1, co_linetable=b"", co_consts=held)


def _all_code(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _all_code(inner)


def _functions(names: Mapping[str, Any], module: str) -> Iterator[FunctionType]:
    """The functions of a module, also those of its classes and inside decorators and properties."""
    waiting, seen = [*names.values()], set[int]()
    for value in waiting:  # it grows
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
                with suppress(ValueError):  # it is empty
                    waiting += [cell.cell_contents] * isinstance(cell.cell_contents, FunctionType)
        own = getattr(value, "__dict__", {})
        if isinstance(own, dict) and "__wrapped__" in own:
            waiting.append(own["__wrapped__"])
