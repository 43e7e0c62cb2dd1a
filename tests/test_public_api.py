"""The public API, name by name: ``public_api.txt`` changes in the commit that changes it.

``python -m tests.test_public_api`` writes the file anew. Its difference is what users are told.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import mvc
import mvc.errors
import mvc.recipes as recipes
from mvc.api.storage import Storage
from mvc.training import checks

FROZEN = Path(__file__).parent / "public_api.txt"
_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "/ ",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "",
    inspect.Parameter.KEYWORD_ONLY: "= ",
    inspect.Parameter.VAR_POSITIONAL: "",
    inspect.Parameter.VAR_KEYWORD: "",
}
"""Marks before a parameter: given by its place only, or by its name only."""


def _all() -> Iterator[str]:
    """Every name of ``mvc``, the values that methods return, keywords of options, errors."""
    named = {name: getattr(mvc, name) for name in sorted(mvc.__all__)}
    for name, member in named.items():
        yield from _described(f"mvc.{name}", member)
    named |= {f"mvc.recipes.{name}": getattr(recipes, name) for name in recipes.__all__}
    named["repo.storage"] = Storage
    for name in ("repo.storage", *(f"mvc.recipes.{name}" for name in recipes.__all__)):
        yield from _described(name, named[name])
    for value in _returned(named.values()):
        yield from _described(f"{value.__module__}.{value.__qualname__}", value)
    for options in (checks.RecorderKeywords,):
        yield f"keywords {options.__name__}"
        yield from (f"    {name}: {_text(kind)}" for name, kind in options.__annotations__.items())
    for name, error in sorted(vars(mvc.errors).items()):
        if inspect.isclass(error) and issubclass(error, mvc.MvcError):
            yield f"error {name}({', '.join(base.__name__ for base in error.__bases__)})"


def _returned(members: Any) -> list[type]:
    """Classes of the package that the annotations of public methods name as results."""
    found: dict[str, type] = {}
    for owner in [base for member in members if inspect.isclass(member) for base in member.__mro__]:
        if not owner.__module__.startswith("mvc"):
            continue
        imported = _imports(owner.__module__)
        for at, member in vars(owner).items():
            function = inspect.unwrap(getattr(member, "fget", None) or member)
            result = getattr(function, "__annotations__", {}).get("return", "")
            public = isinstance(result, str) and not at.startswith("_")
            for name in re.findall(r"\w+", result) if public else ():
                value = getattr(import_module(imported[name]), name) if name in imported else None
                if inspect.isclass(value) and not any(map(partial(_is_a, value), members)):
                    found[f"{value.__module__}.{name}"] = value
    return [found[name] for name in sorted(found)]


def _is_a(value: type, member: Any) -> bool:
    return inspect.isclass(member) and issubclass(member, value)


def _imports(module: str) -> dict[str, str]:
    """By name the module of this package that another one imports it from, also for types only."""
    tree = ast.parse(inspect.getsource(import_module(module)))
    return {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mvc.")
        for alias in node.names
    }


def _described(name: str, member: Any) -> Iterator[str]:
    if not inspect.isclass(member):
        yield from _called(name, member) if callable(member) else [name]
        return
    yield from _called(f"class {name}", member)
    for at in sorted({at for base in member.__mro__ for at in vars(base)}):
        owner = next(base for base in member.__mro__ if at in vars(base))
        if at.startswith("_") or not owner.__module__.startswith("mvc."):
            continue
        value = vars(owner)[at]
        if isinstance(value, property):
            kind = value.fget.__annotations__.get("return") if value.fget else None
            yield f"    {at}: {_text(kind)}"
        elif callable(getattr(member, at)):
            yield from _called(f"    {at}", getattr(member, at))


def _called(name: str, member: Any) -> Iterator[str]:
    """A name and its parameters, a line each: so a difference shows what was changed."""
    yield name
    try:
        signature = inspect.signature(member)
    except (TypeError, ValueError):  # an exception or a mapping: made as its base is
        return
    indent = " " * (len(name) - len(name.lstrip()) + 8)
    for parameter in signature.parameters.values():
        yield f"{indent}{_KINDS[parameter.kind]}{parameter}"
    if signature.return_annotation not in (None, "None", inspect.Signature.empty):
        yield f"{indent}-> {_text(signature.return_annotation)}"


def _text(annotation: Any) -> str:
    return str(getattr(annotation, "__forward_arg__", annotation))


def test_the_public_api_is_what_was_promised() -> None:
    assert list(_all()) == FROZEN.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    FROZEN.write_text("\n".join(_all()) + "\n", encoding="utf-8")
