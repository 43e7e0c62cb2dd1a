"""How far one value travels: the files that a call enters with it, and steps back to upper rows.

``python -m tests.trips`` follows, without running anything, what ``TRIPS`` names: from a method,
every call that gets the value as an argument, in the order of the source, also by ``partial``; and
every method of an object that keeps it. A step back is a call whose row is above that of the call
before it, in the rows of the contract in ``pyproject.toml``.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TRIPS = {
    "commit": ("mvc.api.repository", "Repository.commit", ("request", "self._store")),
    "checkout": ("mvc.api.repository", "Repository.checkout", ("self._store",)),
    "gc": ("mvc.api.storage", "Storage.gc", ("self._store",)),
    "push": ("mvc.api.repository", "Repository.push", ("self._store",)),
    "recorded step": ("mvc.training.recorder", "StateRecorder.step", ("self", "state")),
}


class Function(NamedTuple):
    module: str
    name: str
    node: ast.FunctionDef


@cache
def functions(module: str) -> dict[str, ast.FunctionDef]:
    """Functions of a module by name, methods as ``Class.method``."""
    found: dict[str, ast.FunctionDef] = {}
    for node in tree(module).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            found |= {f"{node.name}.{each.name}": each for each in methods}
    return found


@cache
def tree(module: str) -> ast.Module:
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8") if file.exists() else "")


@cache
def imported(module: str) -> dict[str, str]:
    """What each name of a module stands for: a module, or a name in one."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mvc")
        for alias in node.names
    }


def resolved(caller: Function, called: ast.expr) -> Function | None:
    """The function that an expression names; None if it is a value's, or another package's."""
    text = ast.unparse(called)
    owner = caller.name.rpartition(".")[0]
    if owner and text.startswith(("self.", "cls.")):
        text = f"{owner}.{text.partition('.')[2]}"
    first, _, rest = text.partition(".")
    module = caller.module
    if first in imported(module):
        module, _, text = f"{imported(module)[first]}{rest and '.'}{rest}".rpartition(".")
        while not functions(module) and text in imported(module):  # a face
            module, _, text = imported(module)[text].rpartition(".")
    for name in (text, f"{text}.__init__"):
        if name in functions(module):
            return Function(module, name, functions(module)[name])
    return None


def entered(caller: Function, value: str, seen: set[tuple[str, str, str]]) -> Iterator[str]:
    """Modules in the order in which calls take the value there."""
    calls = [node for node in ast.walk(caller.node) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0)):
        called, given = call.func, list(call.args)
        if ast.unparse(called) == "partial":
            called, *given = given
        named = {each.arg: ast.unparse(each.value) for each in call.keywords}
        target = resolved(caller, called)
        if target is None:
            continue
        names = [each.arg for each in (*target.node.args.posonlyargs, *target.node.args.args)]
        named |= zip(names["." in target.name :], map(ast.unparse, given), strict=False)
        for name in (name for name, text in named.items() if name and text == value):
            yield from _into(target, name, seen)


def _into(target: Function, value: str, seen: set[tuple[str, str, str]]) -> Iterator[str]:
    if (*target[:2], value) in seen:
        return
    seen.add((*target[:2], value))
    yield target.module
    yield from entered(target, value, seen)
    owner, _, method = target.name.rpartition(".")
    for node in ast.walk(target.node) if method == "__init__" else ():
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == value:
            for name, other in functions(target.module).items():
                if name.startswith(f"{owner}."):
                    each = Function(target.module, name, other)
                    yield from _into(each, ast.unparse(node.targets[0]), seen)


def rows() -> dict[str, int]:
    """The row of each package, the lowest 0."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = tomllib.loads(text)["tool"]["importlinter"]["contracts"][0]["layers"]
    return {
        package.strip(): row
        for row, line in enumerate(reversed(layers))
        for package in line.split("|")
    }


def main() -> None:
    height = rows()
    for trip, (module, name, values) in TRIPS.items():
        start = Function(module, name, functions(module)[name])
        seen: set[tuple[str, str, str]] = set()
        path = [module, *(each for value in values for each in entered(start, value, seen))]
        heights = [height[".".join(each.split(".")[:2])] for each in path]
        back = sum(after > before for before, after in pairwise(heights))
        sys.stdout.write(f"{trip:14} {len(set(path)):3} files {back:3} steps back\n")
        if "-v" in sys.argv:
            sys.stdout.write("".join(f"    {each}\n" for each in path))


if __name__ == "__main__":
    main()
