"""What a source file defines, as far as its text shows it, compared with the module that runs.

Code is compared as it was compiled. Default values, constants of a module and attributes of a class
are compared where the text gives their value without a call: nothing of the file is run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from inspect import unwrap
from types import CodeType, FunctionType, ModuleType
from typing import Any

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_NAMED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_EVALUATED = (
    ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.UnaryOp, ast.unaryop,
    ast.BinOp, ast.operator, ast.Name, ast.Attribute, ast.expr_context,
)  # fmt: skip
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_NONE = object()
_SHOWN = 60  # characters of a value in a message


class Definitions:
    """The functions of a file, and the values that its text gives to names."""

    def __init__(self, tree: ast.Module, code: CodeType) -> None:
        self._tree = tree
        self._code: dict[str, list[tuple[CodeType, int]]] = {}
        for each in _all_code(code):
            self._code.setdefault(each.co_qualname, []).append((_bare(each), each.co_firstlineno))
        self._read: _Text | None = None

    def _text(self, module: ModuleType) -> _Text:
        self._read = self._read or _Text(self._tree, module)
        return self._read

    def difference(self, module: ModuleType) -> str | None:
        """How a function that runs differs from the file's; None if none does."""
        file, text = getattr(module, "__file__", None), self._text(module)
        for function in _functions(vars(module), module.__name__):
            if function.__code__.co_filename == file:
                different = self._of_function(function, text)
                if different is not None:
                    return f"{function.__code__.co_qualname}: {different}"
        return None

    def changed_value(self, module: ModuleType) -> str | None:
        """A constant or function of the module, or of a class in it, that is not the file's."""
        text = self._text(module)
        for name, written in text.values.items():
            here = _live(module, name)
            if _is_plain(written) and _is_plain(here) and not _same(written, here):
                return _differs(f"{name} is", here, written)
        for name, known in text.functions.items():
            if known and (here := _live(module, name)) is not _NONE:
                code = getattr(unwrap(here), "__code__", None)
                codes = [bare for bare, _ in self._code.get(name, ())]
                if not isinstance(code, CodeType) or _bare(code) not in codes:
                    return f"{name} was replaced by another function"
        return None

    def _of_function(self, function: FunctionType, text: _Text) -> str | None:
        code = function.__code__
        bare, different = _bare(code), "its code is another"
        for candidate, line in self._code.get(code.co_qualname, ()):
            if candidate == bare:
                found = _other_default(function, text.defaults.get((line, code.co_name), {}))
                if found is None:
                    return None
                different = found
        return different


class _Text:
    """What a file's text gives to names, read from its first line to its last.

    ``values`` are by qualified name, as ``functions``: whether a name is that of a function without
    decorators. ``defaults`` are by the first line and the name of a function. What the text does
    not show is ``_NONE``.
    """

    def __init__(self, tree: ast.Module, module: ModuleType) -> None:
        self.values: dict[str, Any] = {}
        self.functions: dict[str, bool] = {}
        self.defaults: dict[tuple[int, str], dict[str, Any]] = {}
        self._live, self._changed = vars(module), _changed(tree)
        self._names: dict[str, Any] = {}
        for node in ast.walk(tree):
            if isinstance(node, _FUNCTIONS):
                self._define(node, {})  # what is inside of functions knows no names
        self._body(tree.body, self._names, "")

    def _body(self, body: list[ast.stmt], own: dict[str, Any], where: str) -> None:
        """Reads a module or a class. ``own``: the names that it has bound so far."""
        for statement in body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                self._define(statement, own)
            elif isinstance(statement, ast.ClassDef):
                self._body(statement.body, {}, f"{where}{statement.name}.")
            for name, value in self._bound(statement, own):
                known = name not in self._changed
                own[name] = value if known else _NONE
                written = isinstance(statement, ast.Assign | ast.AnnAssign)
                self.values[where + name] = own[name] if written else _NONE
                decorators = getattr(statement, "decorator_list", None)
                is_function = not isinstance(statement, ast.ClassDef) and decorators == []
                self.functions[where + name] = is_function and known

    def _bound(self, statement: ast.stmt, own: dict[str, Any]) -> list[tuple[str, Any]]:
        match statement:
            case ast.Assign(targets=targets, value=value) if all(
                isinstance(target, ast.Name) for target in targets
            ):
                found = self._value(value, own)
                return [(target.id, found) for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name), value=given):
                return [] if given is None else [(name, self._value(given, own))]
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                return [(name, _NONE) for name in own]
        runs = isinstance(statement, _NAMED | ast.Import | ast.ImportFrom) and own is self._names
        return [(n, self._live.get(n, _NONE) if runs else _NONE) for n in _stored(statement)]

    def _define(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, own: dict[str, Any]
    ) -> None:
        lines = [each.lineno for each in getattr(node, "decorator_list", ())]
        given, names = node.args, [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
        written = dict(zip(names[::-1], given.defaults[::-1], strict=False))
        only = zip(given.kwonlyargs, given.kw_defaults, strict=True)
        written |= {a.arg: value for a, value in only if value is not None}
        key = min([node.lineno, *lines]), getattr(node, "name", "<lambda>")
        self.defaults[key] = {name: self._value(value, own) for name, value in written.items()}

    def _value(self, node: ast.expr, own: dict[str, Any]) -> Any:
        """What an expression stands for, by the names that were bound before it."""
        parts = list(ast.walk(node))
        names = [each.id for each in parts if isinstance(each, ast.Name)]
        values = {name: own.get(name, self._names.get(name, _NONE)) for name in names}
        unknown = any(value is _NONE for value in values.values())
        if unknown or not all(isinstance(each, _EVALUATED) for each in parts):
            return _NONE
        try:
            code = compile(ast.Expression(node), "<default>", "eval")
            return eval(code, {"__builtins__": {}}, values)  # noqa: S307
        except Exception:
            return _NONE


def _live(module: ModuleType, name: str) -> Any:
    """What runs under a qualified name of the module, also of a class that is its own."""
    found: Any = module
    for part in name.split("."):
        own = found is module or (isinstance(found, type) and found.__module__ == module.__name__)
        found = vars(found).get(part, _NONE) if own else _NONE
    return found


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
        if value is not _NONE and not _is_filled(value) and not _same(value, here[name]):
            return _differs(f"the default of {name} is", here[name], value)
    return None


def _unmangled(name: str) -> str:
    """A parameter as the text has it: ``_Net__x`` is ``__x`` there."""
    return name if name.startswith("__") or "__" not in name[1:] else name[name.index("__", 1) :]


def _is_filled(value: Any) -> bool:
    """Whether calls fill it: a default that is an empty container in the text."""
    return isinstance(value, list | dict | set) and not value


def _differs(what: str, here: Any, written: Any) -> str:
    return f"{what} {_shown(here)} here, {_shown(written)} in the file"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _same(a: Any, b: Any) -> bool:
    """Whether two values are equal in type and bits, also inside of containers."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple, dict, *_PLAIN)):
        return repr(a) == repr(b)
    try:
        return a is b or bool(a == b)
    except Exception:  # an array: nobody knows
        return True


def _is_plain(value: Any) -> bool:
    if type(value) in {tuple, frozenset}:
        return all(map(_is_plain, value))
    return type(value) in _PLAIN


# -- what the text holds -----------------------------------------------------------------------


def _changed(tree: ast.Module) -> set[str]:
    """Names that the file's own code gives other values: globals, and attributes of others."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            found.update(node.names)
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            own = isinstance(node.value, ast.Name) and node.value.id == "self"
            found |= set() if own else {node.attr}
    return found


def _stored(statement: ast.AST) -> Iterator[str]:
    """Names that a statement binds in its own scope, at any depth of it."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.alias):
            yield _imported(node)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
        if isinstance(node, _NAMED):
            yield node.name
        elif not isinstance(node, ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def _imported(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


# -- what runs ---------------------------------------------------------------------------------


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
