"""What a source file defines, as far as its text shows it, compared with the module that runs.

Code is compared as it was compiled. Default values, constants of a module and attributes of a class
are compared where the text gives their value without a call: nothing of the file is run.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from types import CodeType, FunctionType, ModuleType
from typing import Any

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_NAMED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_EVALUATED = (
    ast.Expression, ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.UnaryOp, ast.unaryop,
    ast.BinOp, ast.operator, ast.Name, ast.Attribute, ast.expr_context,
)  # fmt: skip
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_NONE = object()
_MOST_WRAPPERS = 100
_SHOWN = 60  # characters of a value in a message


class Definitions:
    """The functions of a file, and the values that its text gives to names."""

    def __init__(self, tree: ast.Module, code: CodeType) -> None:
        self._code: dict[str, list[tuple[CodeType, int]]] = {}
        for each in _all_code(code):
            self._code.setdefault(each.co_qualname, []).append((_bare(each), each.co_firstlineno))
        self._scope = _Scope(tree.body, None, _changed(tree))
        self._defaults = dict(_defaults(tree, self._scope))

    def difference(self, module: ModuleType) -> str | None:
        """How a function that runs differs from the file's; None if none does."""
        file = getattr(module, "__file__", None)
        for function in _functions(vars(module), module.__name__, set()):
            if function.__code__.co_filename == file:
                different = self._of_function(function, module)
                if different is not None:
                    return f"{function.__code__.co_qualname}: {different}"
        return None

    def changed_value(self, module: ModuleType) -> str | None:
        """A constant or function of the module, or of a class in it, that is not the file's."""
        scopes = list(self._scope.nested(vars(module), module, ""))
        values = (text for scope, live, at in scopes for text in scope.changed(live, module, at))
        functions = (text for scope, live, at in scopes for text in self._replaced(scope, live, at))
        return next(chain(values, functions), None)

    def _replaced(self, scope: _Scope, live: Mapping[str, Any], where: str) -> Iterator[str]:
        """The undecorated functions in whose place other ones run, as texts."""
        for name in scope.functions():
            if name in live:
                code = getattr(_unwrapped(live[name]), "__code__", None)
                known = [bare for bare, _ in self._code.get(f"{where}{name}", ())]
                if not isinstance(code, CodeType) or _bare(code) not in known:
                    yield f"{where}{name} was replaced by another function"

    def _of_function(self, function: FunctionType, module: ModuleType) -> str | None:
        code = function.__code__
        bare, different = _bare(code), "its code is another"
        for candidate, line in self._code.get(code.co_qualname, ()):
            if candidate == bare:
                written = self._defaults.get((line, code.co_name), {})
                found = _other_default(function, written, module)
                if found is None:
                    return None
                different = found
        return different


class _Scope:
    """The body of a module or a class. ``None`` is one of a function, whose names are not known."""

    def __init__(self, body: list[ast.stmt], outer: _Scope | None, changed: set[str]) -> None:
        self._outer, self._changed = outer, changed
        self._bound: dict[str, list[ast.AST | None]] = {}
        self.classes: dict[ast.ClassDef, _Scope] = {}
        self._by_star, self._open = False, set[str]()
        for statement in body:
            self._bind(statement)
            if isinstance(statement, ast.ClassDef):
                self.classes[statement] = _Scope(statement.body, outer or self, changed)

    def _bind(self, statement: ast.stmt) -> None:
        """Notes what a statement binds: a value (its node), what runs (itself), or anything."""
        names: list[tuple[str, ast.AST | None]]
        match statement:
            case ast.Assign(targets=targets, value=value) if all(
                isinstance(target, ast.Name) for target in targets
            ):
                names = [(target.id, value) for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [] if statement.value is None else [(name, statement.value)]
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names = [(statement.name, statement)]
            case ast.Import() | ast.ImportFrom():
                names = [(_imported(alias), statement) for alias in statement.names]
                self._by_star = self._by_star or any(name == "*" for name, _ in names)
            case _:
                names = [(name, None) for name in _stored(statement)]
        for name, node in names:
            self._bound.setdefault(name, []).append(node)

    def value(self, node: ast.expr, module: ModuleType) -> Any:
        """What an expression of this scope stands for; ``_NONE`` if its text does not show that."""
        tree = ast.Expression(node)
        if not all(isinstance(each, _EVALUATED) for each in ast.walk(tree)):
            return _NONE
        names = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
        values = {name: self._named(name, module) for name in names}
        if any(value is _NONE for value in values.values()):
            return _NONE
        try:
            return eval(compile(tree, "<default>", "eval"), {"__builtins__": {}}, values)  # noqa: S307
        except Exception:
            return _NONE

    def _named(self, name: str, module: ModuleType) -> Any:
        bound = self._bound.get(name)
        if bound is None and self._outer is not None:
            return self._outer._named(name, module)
        if bound is None:
            return _NONE if self._by_star else getattr(builtins, name, _NONE)
        (node, *more) = bound
        if more or node is None or name in self._changed:
            return _NONE
        if isinstance(node, ast.expr):
            with self._once(name) as first:
                return self.value(node, module) if first else _NONE
        return vars(module).get(name, _NONE) if self._outer is None else _NONE

    @contextmanager
    def _once(self, name: str) -> Iterator[bool]:
        """Yields whether no block for this name is open: a name may be said to be itself."""
        first = name not in self._open
        self._open.add(name)
        try:
            yield first
        finally:
            self._open -= {name} if first else set()

    def nested(
        self, live: Mapping[str, Any], module: ModuleType, where: str
    ) -> Iterator[tuple[_Scope, Mapping[str, Any], str]]:
        """The scope and those of the classes in it, with what runs under their names."""
        yield self, live, where
        for statement, inner in self.classes.items():
            cls = live.get(statement.name)
            if isinstance(cls, type) and cls.__module__ == module.__name__:
                yield from inner.nested(vars(cls), module, f"{where}{statement.name}.")

    def _bound_once(self) -> Iterator[tuple[str, ast.AST | None]]:
        for name, (node, *more) in self._bound.items():
            if not (more or self._by_star or name in self._changed):
                yield name, node

    def changed(self, live: Mapping[str, Any], module: ModuleType, where: str) -> Iterator[str]:
        """The plain values that are other ones than the text says, as texts."""
        for name, node in self._bound_once():
            if isinstance(node, ast.expr):
                written, here = self.value(node, module), live.get(name, _NONE)
                if _is_plain(written) and _is_plain(here) and not _same(written, here):
                    yield _differs(f"{where}{name} is", here, written)

    def functions(self) -> Iterator[str]:
        """Names that the text binds once, to a function without decorators."""
        for name, node in self._bound_once():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list:
                yield name


def _defaults(
    tree: ast.AST, scope: _Scope | None
) -> Iterator[tuple[tuple[int, str], dict[str, tuple[ast.expr, _Scope | None]]]]:
    """The default values of each function, by its first line and its name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _FUNCTIONS):
            lines = [each.lineno for each in getattr(node, "decorator_list", ())]
            given, names = node.args, [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
            written = dict(zip(names[::-1], given.defaults[::-1], strict=False))
            only = zip(given.kwonlyargs, given.kw_defaults, strict=True)
            written |= {a.arg: value for a, value in only if value is not None}
            key = min([node.lineno, *lines]), getattr(node, "name", "<lambda>")
            yield key, {name: (value, scope) for name, value in written.items()}
        inner = scope
        if isinstance(node, ast.ClassDef):
            inner = None if scope is None else scope.classes.get(node)
        elif isinstance(node, _FUNCTIONS):
            inner = None
        yield from _defaults(node, inner)


def _other_default(
    function: FunctionType,
    written: Mapping[str, tuple[ast.expr, _Scope | None]],
    module: ModuleType,
) -> str | None:
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
        node, scope = written[name]
        value = (scope or _EMPTY).value(node, module)
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
    """Whether two values are equal in type and bits, containers item by item."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return _same(list(a.items()), list(b.items()))
    if isinstance(a, _PLAIN):
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


_EMPTY = _Scope([ast.parse("from _ import *").body[0]], None, set())
"""A scope in which no name is known."""


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


def _functions(names: Mapping[str, Any], module: str, seen: set[int]) -> Iterator[FunctionType]:
    for value in list(names.values()):
        if isinstance(value, type):
            if value.__module__ == module and id(value) not in seen:
                seen.add(id(value))
                yield from _functions(vars(value), module, seen)
        else:
            yield from _inside([value], module, seen)


def _inside(values: Iterable[Any], module: str, seen: set[int]) -> Iterator[FunctionType]:
    """The functions that are values, or that decorators and properties hold."""
    for value in values:
        if id(value) in seen:
            continue
        held: list[Any] = []
        if isinstance(value, staticmethod | classmethod):
            held = [value.__func__]
        elif isinstance(value, property):
            held = [value.fget, value.fset, value.fdel]
        elif isinstance(value, FunctionType) and value.__module__ == module:
            seen.add(id(value))
            yield value
            held = [cell.cell_contents for cell in value.__closure__ or () if _is_set(cell)]
            held = [each for each in held if isinstance(each, FunctionType)]
        own = {} if isinstance(value, type) else getattr(value, "__dict__", {})
        if isinstance(own, dict) and "__wrapped__" in own:
            held.append(own["__wrapped__"])
        yield from _inside(held, module, seen)


def _unwrapped(value: Any) -> Any:
    """What a framework wrapped: many wrap the methods of their subclasses, and say so."""
    for _ in range(_MOST_WRAPPERS):
        inner = getattr(value, "__wrapped__", None) or getattr(value, "__func__", None)
        if inner is None:
            break
        value = inner
    return value


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
