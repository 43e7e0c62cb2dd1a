"""The rules of the house that a program can check. A ceiling may be lowered, never raised.

``python -m tests.test_house`` prints what counts towards each ceiling.
"""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.slow import KNOWN

PROJECT = Path(__file__).parents[1]

CEILINGS = {
    "positional": 2,
    "class names": 1,
    "privates": 9,
    "frames": 0,
    "any": 0,
    "root": 0,
    "faces": 0,
}

BUDGET = {
    ".": 1_055,
    "adapters": 2_595,
    "api": 836,
    "cli": 3_704,
    "codecs": 1_574,
    "distributed": 1_685,
    "frameworks": 2_555,
    "importing": 412,
    "io": 1_599,
    "lossy": 2_118,
    "maintenance": 5_603,
    "model": 665,
    "models": 916,
    "pipelines": 455,
    "probing": 785,
    "recipes": 1_922,
    "remote": 6_010,
    "repo": 6_900,
    "report": 649,
    "server": 1_200,
    "serving": 495,
    "store": 5_935,
    "testing": 238,
    "training": 1_478,
}
"""Statements of each package, without docstrings; ``.`` is for modules that are in none."""

ANY = {
    r"state|states|batch|sample|inputs|target|before|after": "what the user's code made: any tree",
    r"model|service|data|scheduler|scaler|loss": "objects of torch or of the user, by what they do",
    r"metrics|params|arguments|\*\*arguments": "values by name, checked where they enter",
    r"->": "states and what a function of the user's returned",
}
"""Names that may have the type ``Any`` in the public API, and why."""


@cache
def parsed(folder: str) -> dict[Path, ast.Module]:
    return {
        path.relative_to(PROJECT): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted((PROJECT / folder).rglob("*.py"))
    }


def nodes(folder: str) -> Iterator[tuple[str, ast.AST]]:
    for path, tree in parsed(folder).items():
        for node in ast.walk(tree):
            yield f"{path}:{getattr(node, 'lineno', 0)}", node


def positional() -> Iterator[str]:
    """Calls with more than four positional arguments."""
    for place, node in nodes("mvc"):
        starred = isinstance(node, ast.Call) and any(isinstance(a, ast.Starred) for a in node.args)
        if isinstance(node, ast.Call) and len(node.args) > 4 and not starred:
            yield f"{place} {ast.unparse(node.func)}"


def class_names() -> Iterator[str]:
    """Names of classes that are used more than once."""
    places = defaultdict(list)
    for place, node in nodes("mvc"):
        if isinstance(node, ast.ClassDef):
            places[node.name].append(place)
    yield from (f"{name}: {', '.join(at)}" for name, at in places.items() if len(at) > 1)


def is_private(name: object) -> bool:
    """``_replace`` and ``_fields`` are named tuples'."""
    last = name.rpartition(".")[2] if isinstance(name, str) else ""
    return (
        last.startswith("_")
        and not last.startswith("__")
        and not last.endswith("_")
        and last not in {"_replace", "_fields"}
    )


def privates() -> Iterator[str]:
    """Private names that tests read of other objects than their own, or replace."""
    own = {"self", "cls", "os"}  # os._exit is public, whatever its name says
    for place, node in nodes("tests"):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in own):
                yield f"{place} {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            if node.func.attr in {"setattr", "object", "patch"} and any(map(is_private, given)):
                yield f"{place} {ast.unparse(node)}"


def frames() -> Iterator[str]:
    """Looks at the callers' variables."""
    for place, node in nodes("mvc"):
        if isinstance(node, ast.Attribute) and node.attr in {"_getframe", "currentframe"}:
            yield f"{place} {ast.unparse(node)}"


def any_() -> Iterator[str]:
    """Parameters and results of the public API of type ``Any`` that have no reason above."""
    allowed = re.compile(rf" *(= )?({'|'.join(ANY)})[: ]")
    lines = (PROJECT / "tests/public_api.txt").read_text(encoding="utf-8").splitlines()
    yield from (line for line in lines if re.search(r"\bAny\b", line) and not allowed.match(line))


def root() -> Iterator[str]:
    """Imports of ``mvc`` itself, which offers the clients: theirs would be circles."""
    for place, node in nodes("mvc"):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if "mvc" in names or (isinstance(node, ast.ImportFrom) and node.module == "mvc"):
            yield place


def faces() -> Iterator[str]:
    """Names that are imported from a face, and are not in its list: mypy passes over them."""
    offered = dict[str, set[str]]()
    for path, tree in parsed("mvc").items():
        ends = {t.id: node.value for node in tree.body if isinstance(node, ast.Assign)
                for t in node.targets if isinstance(t, ast.Name)}  # fmt: skip
        if "__getattr__" in ends and "__all__" in ends:
            module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
            beside = {each.stem for each in (PROJECT / module.replace(".", "/")).glob("*")}
            offered[module] = {*ast.literal_eval(ends["__all__"]), *beside}
    for folder in ("mvc", "tests", "examples"):
        for place, node in nodes(folder):
            if isinstance(node, ast.ImportFrom) and node.module in offered:
                names = {alias.name for alias in node.names} - offered[node.module]
                yield from (f"{place} {name} of {node.module}" for name in sorted(names))


RULES = {"positional": positional, "class names": class_names, "privates": privates,
         "frames": frames, "any": any_, "root": root, "faces": faces}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_no_more_than_there_were(rule: str) -> None:
    found = list(RULES[rule]())
    assert len(found) <= CEILINGS[rule], "\n".join(found)


def statements() -> dict[str, int]:
    """Statements without docstrings, by package."""
    found = dict.fromkeys(BUDGET, 0)
    for path, tree in parsed("mvc").items():
        package = path.parts[1] if len(path.parts) > 2 else "."
        found[package] = found.get(package, 0) + sum(map(is_statement, ast.walk(tree)))
    return found


def is_statement(node: ast.AST) -> bool:
    return isinstance(node, ast.stmt) and not (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def test_no_package_grows() -> None:
    grown = {name: n for name, n in statements().items() if n > BUDGET.get(name, 0)}
    assert not grown, f"statements of {grown}, at most {BUDGET}"


def test_slow_tests_are_there() -> None:
    for name in json.loads(KNOWN.read_text(encoding="utf-8")):
        file, _, function = name.partition("::")
        text = (PROJECT / file).read_text(encoding="utf-8")
        assert f"def {function.rpartition('::')[2]}(" in text, name


BEHIND = {"mvc.training", "mvc.probing", "mvc.distributed.runner", "mvc.frameworks",
          "mvc.recipes.description", "mvc.recipes.recording", "mvc.recipes.service",
          "mvc.recipes.stepwise", "mvc.recipes.worker", "mvc.models.settings"}  # fmt: skip
"""What may import torch: behind calls of ``need_torch``, or behind a framework."""


def at_import(module: ast.Module) -> Iterator[str]:
    """What a module imports when it is imported: names of modules, or of what is in them."""
    statements = list(module.body)
    while statements:
        each = statements.pop()
        if isinstance(each, ast.Import):
            yield from (alias.name for alias in each.names)
        elif isinstance(each, ast.ImportFrom):
            yield from (f"{each.module}.{alias.name}" for alias in each.names)
        elif isinstance(each, ast.If) and "TYPE_CHECKING" not in ast.unparse(each.test):
            statements += each.body + each.orelse
        elif isinstance(each, ast.Try | ast.With):
            statements += each.body


def with_parents(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts) + 1)}


def test_whoever_trains_nothing_never_imports_torch() -> None:
    imported = {
        ".".join(path.with_suffix("").parts).removesuffix(".__init__"): set().union(
            *map(with_parents, at_import(tree))
        )
        for path, tree in parsed("mvc").items()
    }
    of_torch = {"torch", "safetensors", "mvc.training", "mvc.probing"}
    while more := {n for n, parents in imported.items() if parents & of_torch} - of_torch:
        of_torch |= more
    wrong = [name for name in of_torch & imported.keys() if not with_parents(name) & BEHIND]
    assert not wrong
    assert len(of_torch) > 30


if __name__ == "__main__":
    for name, rule in RULES.items():
        print(name, *rule(), sep="\n    ")
    print("statements", *statements().items(), sep="\n    ")
