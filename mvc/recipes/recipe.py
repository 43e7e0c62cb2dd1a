"""A recipe: how a version's weights are made again from another version, as ``recipe.json``.

A recipe names a base version, data sets, a training service with its objects and their
references to each other, and the Merkle root that the result must have. The states of objects, the
source code and the environment are attached to the version beside it.

An object's arguments are JSON values. A number that is finite, a text, a list, true, false and
null are themselves; everything else is an object with one tag:

====================  ===================================================================
``{"object": n}``     the object named n; ``model`` and ``optimizer`` are names, too
``{"code": "m:q"}``   a class, function or enum member: qualified name q of module m
``{"partial": [f, args, [[name, value], ..]]}``, ``{"method": [object, name]}``
``{"data": n, "path": p}``  a file or folder of data set n; an empty p is the data set itself
``{"tuple": [..]}``, ``{"dict": [[key, value], ..]}``, ``{"number": text}`` (infinite, NaN)
``{"array": key}``    a tensor or an array, kept in ``service/values.safetensors``
``{"dtype": n}``, ``{"device": n}``  of torch
====================  ===================================================================
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from mvc.errors import DamagedData, InvalidName, UnknownPath
from mvc.ids import CommitId, Root
from mvc.model.manifest import FileEntry
from mvc.model.names import check_path, printable
from mvc.models.stored_code import file_of, is_code
from mvc.repo import attached
from mvc.repo.context import Context
from mvc.repo.lookup import commits, manifests

__all__ = [
    "RECIPE", "SERVICE", "Call", "Data", "Made", "Model", "Recipe", "is_data_name",
    "is_made_whole", "recipe_of",
]  # fmt: skip

RECIPE = "recipe.json"
SERVICE = "service/"
"""Where a version's attached files hold the recipe and the states."""

_LONGEST = 16 << 20  # bytes
_SCHEMA = "mvc.recipe/1"
_MOST = 100_000  # objects, files, names
_DEPTH = 60
_HEX = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z_][\w.\[\]#]{0,200}", re.ASCII)
_DATA = re.compile(r"[A-Za-z0-9_][\w.+-]{0,150}", re.ASCII)
_QUALIFIED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_KINDS = ("made", "optimizer", "torch.Generator", "numpy.Generator", "numpy.RandomState", "Random")
_NUMBER = re.compile(r"-?inf|nan")
_ANY = re.compile(r"[ -~]{1,200}")


class Made(Struct, frozen=True):
    """An object that the service uses: how to build it, and whether it has a state.

    ``kind``: ``made`` for a class or function that is called with its arguments; the others are
    the types whose arguments mvc knows by itself. ``state``: whether ``service/NAME.safetensors``
    holds its state.
    """

    name: str
    kind: str
    call: str
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]
    state: bool


class Data(Struct, frozen=True):
    """A data set: ``name``, the version that holds it, and its only file (empty for a folder)."""

    name: str
    version: CommitId
    file: str = ""


class Model(Struct, frozen=True):
    """The model beside its weights.

    ``made``: the value that builds it. ``frozen``: parameters without gradient; ``evaluating``:
    modules in evaluation mode, by name; the model itself is the empty name.
    """

    made: Any
    frozen: tuple[str, ...] = ()
    evaluating: tuple[str, ...] = ()
    device: str = "cpu"


class Call(Struct, frozen=True):
    """A call that a replay makes, as ``optimizer = torch.optim.adam:Adam(model, lr=0.01)``.

    ``stored``: whether the version carries the files of all functions and classes in it.
    """

    text: str
    stored: bool


class Recipe(Struct, frozen=True):
    """How the state at ``path`` of a version is made.

    ``base`` and ``base_path``: the state that training begins with. ``service`` is
    the value that is called, with the model and ``arguments``; ``objects`` come before those that
    refer to them. ``packages``: versions of the
    installed packages that the code imports. ``code``: the BLAKE3 of each attached source file.
    ``seconds`` and ``steps`` (of optimizers) are those of the training.
    """

    path: str
    root: Root
    base: CommitId
    base_path: str
    data: tuple[Data, ...]
    model: Model
    objects: tuple[Made, ...]
    service: Any
    arguments: Mapping[str, Any]
    packages: Mapping[str, str]
    code: Mapping[str, str]
    seconds: float
    steps: int

    @property
    def needs(self) -> tuple[CommitId, ...]:
        """The versions without which the recipe is worth nothing."""
        return tuple(sorted({self.base, *(data.version for data in self.data)}))

    @property
    def calls(self) -> list[Call]:
        """What a replay calls, in this order: the model, the objects, the service."""
        model: list[Any] = [{"object": "model"}]
        return [
            self._call("model = ", self.model.made, [], {}),
            *(
                self._call(
                    f"{each.name} = ",
                    {"code": each.call},
                    model if each.kind == "optimizer" else each.args,
                    each.keywords,
                )
                for each in self.objects
                if each.kind in {"made", "optimizer"}
            ),
            self._call("", self.service, model, self.arguments),
        ]

    def _call(
        self, before: str, function: Any, args: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Call:
        first, named = list[Any](), list[Any]()
        if isinstance(function, dict) and "partial" in function:
            function, first, named = function["partial"]
        value = [function, [*first, *args], [*named, *map(list, keywords.items())]]
        modules = {held.partition(":")[0] for tag, held in _tags(value) if tag == "code"}
        stored = all({file_of(m), file_of(m, package=True)} & {*self.code} for m in modules)
        return Call(printable(before + _called(*value)), stored)

    def encoded(self) -> bytes:
        """The bytes of ``recipe.json``."""
        document = {
            "schema": _SCHEMA,
            "makes": {"path": self.path, "root": self.root.hex()},
            "base": {"version": self.base.hex(), "path": self.base_path},
            "data": [
                {"name": d.name, "version": d.version.hex(), "file": d.file} for d in self.data
            ],
            "model": {
                "made": self.model.made,
                "frozen": list(self.model.frozen),
                "evaluating": list(self.model.evaluating),
                "device": self.model.device,
            },
            "objects": [
                {
                    "name": each.name,
                    "kind": each.kind,
                    "call": each.call,
                    "args": list(each.args),
                    "keywords": dict(each.keywords),
                    "state": each.state,
                }
                for each in self.objects
            ],
            "service": self.service,
            "arguments": dict(self.arguments),
            "packages": dict(sorted(self.packages.items())),
            "code": dict(sorted(self.code.items())),
            "seconds": self.seconds,
            "steps": self.steps,
        }
        return json.dumps(document, indent=1, allow_nan=False).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Recipe:
        """Raises DamagedData unless ``data`` is a recipe in every detail."""
        if len(data) > _LONGEST:
            raise _damaged(f"it is longer than {_LONGEST} bytes")
        try:
            document = json.loads(data, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            raise _damaged("it is no JSON") from None
        if not isinstance(document, dict) or document.get("schema") != _SCHEMA:
            raise _damaged("its schema is unknown; a newer mvc may read it")
        try:
            top = _fields(document, "recipe", _RECIPE)
        except InvalidName as error:
            raise _damaged(error.message) from None
        makes, base = top.pop("makes"), top.pop("base")
        del top["schema"]
        recipe = cls(
            path=makes["path"],
            root=Root(makes["root"]),
            base=CommitId(base["version"]),
            base_path=base["path"],
            **top,
        )
        _check_references(recipe)
        return recipe


def recipe_of(context: Context, commit: CommitId) -> Recipe:
    """The recipe that a version carries. Raises UnknownPath if it has none, DamagedData."""
    found = manifests.of_commit(context, commit)
    if RECIPE not in {entry.path.partition("/")[2] for entry in found.attached}:
        raise UnknownPath(
            f"version {commit.short} has no recipe to make it again by",
            hint="repo.recipes.record(...) records one",
        )
    recipe = Recipe.decode(attached.read(context, commit, RECIPE))
    entry = found.by_path.get(recipe.path)
    if entry is None or not is_made_whole(entry) or entry.state.root != recipe.root:
        raise DamagedData(f"the recipe of {commit.short} makes something that it does not hold")
    if set(recipe.needs) != set(commits.get(context, commit).needs):
        raise DamagedData(f"the recipe of {commit.short} needs other versions than its commit says")
    return recipe


def is_made_whole(entry: FileEntry) -> bool:
    """Whether a state gives all of a file but its skeleton: each content is one whole tensor."""
    if entry.format == "state":
        return True
    whole = {tensor.content for tensor in entry.tensors if tensor.view is None}
    return entry.format == "safetensors" and whole == set(range(len(entry.contents)))


def is_data_name(name: Any) -> bool:
    """Whether a data set may have this name: letters, digits and ``. _ + -``."""
    return isinstance(name, str) and bool(_DATA.fullmatch(name))


def _damaged(why: str) -> DamagedData:
    return DamagedData(f"a recipe cannot be read: {why}", hint="run 'mvc fsck' to check the store")


def _no_constant(text: str) -> Any:
    raise ValueError(text)


# -- the form of the document: each check returns the value that is kept, or raises ------------

_Check = Callable[[Any, str], Any]


def _fields(value: Any, place: str, checks: Mapping[str, _Check]) -> dict[str, Any]:
    """An object with exactly these fields."""
    if not isinstance(value, dict):
        raise _damaged(f"{place} is no object")
    for name in set(value) ^ set(checks):
        raise _damaged(f"{place} {'has the unknown' if name in value else 'lacks the'} {name!r}")
    return {name: check(value[name], f"{place}.{name}") for name, check in checks.items()}


def _if(holds: Callable[[Any], object]) -> _Check:
    def check(value: Any, place: str) -> Any:
        if not holds(value):
            raise _damaged(f"{place} has a wrong value")
        return value

    return check


def _each(check: _Check) -> _Check:
    def checked(value: Any, place: str) -> tuple[Any, ...]:
        _list(value, place)
        return tuple(check(item, f"{place}[{i}]") for i, item in enumerate(value))

    return checked


def _by_name(check: _Check, key: _Check) -> _Check:
    def checked(value: Any, place: str) -> dict[str, Any]:
        _dict(value, place)
        return {key(k, place): check(item, f"{place}.{k[:80]}") for k, item in value.items()}

    return checked


def _of(make: Callable[..., Any], checks: Mapping[str, _Check]) -> _Check:
    """An object with these fields, as what ``make`` makes of them."""
    return lambda value, place: make(**_fields(value, place, checks))


_text = _if(lambda v: isinstance(v, str) and len(v) <= 1 << 16)
_flag = _if(lambda v: isinstance(v, bool))
_list = _if(lambda v: isinstance(v, list) and len(v) <= _MOST)
_dict = _if(lambda v: isinstance(v, dict) and len(v) <= _MOST)
_name = _if(lambda v: isinstance(v, str) and _NAME.fullmatch(v))
_hex = _if(lambda v: isinstance(v, str) and _HEX.fullmatch(v))
_count = _if(lambda v: type(v) is int and 0 <= v < 1 << 60)
_seconds = _if(lambda v: type(v) in {int, float} and 0 <= v < 1e12)


def _id(value: Any, place: str) -> bytes:
    return bytes.fromhex(_hex(value, place))


def _path(value: Any, place: str) -> str:
    return check_path(_text(value, place))


def _path_or_none(value: Any, place: str) -> str:
    return value if value == "" else _path(value, place)


def _value(value: Any, place: str, depth: int = 0) -> Any:
    """One of the forms of the table above."""
    if depth > _DEPTH:
        raise _damaged(f"{place} is nested too deep")
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    inner: list[Any] | None = None
    if isinstance(value, list):
        inner = value
    elif isinstance(value, dict) and set(value) == {"data", "path"}:
        _if(is_data_name)(value["data"], place)
        _path_or_none(value["path"], place)
        inner = []
    elif isinstance(value, dict) and len(value) == 1:
        inner = _tagged(*next(iter(value.items())))
    if inner is None:
        raise _damaged(f"{place} has a value of an unknown form")
    for each in inner:
        _value(each, place, depth + 1)
    return value


def _tagged(tag: str, held: Any) -> list[Any] | None:
    """The values inside a tagged one; None if what it holds does not fit the tag."""
    good, inner = False, list[Any]()
    if tag in {"object", "code", "array", "dtype", "device", "number"}:
        forms = {"object": _NAME, "code": _QUALIFIED, "number": _NUMBER}
        good = isinstance(held, str) and bool(forms.get(tag, _ANY).fullmatch(held))
    elif not isinstance(held, list):
        return None
    elif tag == "tuple":
        good, inner = True, held
    elif tag == "dict":
        good = all(isinstance(pair, list) and len(pair) == 2 for pair in held)
        inner = [each for pair in held for each in pair] if good else []
    elif tag == "method" and len(held) == 2:
        good, inner = isinstance(held[1], str) and held[1].isidentifier(), held[:1]
    elif tag == "partial" and len(held) == 3:
        good = isinstance(held[1], list) and isinstance(held[2], list)
        good = good and all(isinstance(p, list) and len(p) == 2 for p in held[2])
        inner = [held[0], *held[1], *held[2]] if good else []
    return inner if good else None


_RECIPE: dict[str, _Check] = {
    "schema": _text,
    "makes": lambda v, at: _fields(v, at, {"path": _path, "root": _id}),
    "base": lambda v, at: _fields(v, at, {"version": _id, "path": _path}),
    "data": _each(
        _of(
            lambda name, version, file: Data(name, CommitId(version), file),
            {"name": _if(is_data_name), "version": _id, "file": _path_or_none},
        )
    ),
    "model": _of(
        Model,
        {"made": _value, "frozen": _each(_text), "evaluating": _each(_text), "device": _text},
    ),
    "objects": _each(
        _of(
            Made,
            {
                "name": _name,
                "kind": _if(lambda v: v in _KINDS),
                "call": _if(lambda v: v == "" or (isinstance(v, str) and _QUALIFIED.fullmatch(v))),
                "args": _each(_value),
                "keywords": _by_name(_value, _name),
                "state": _flag,
            },
        )
    ),
    "service": _value,
    "arguments": _by_name(_value, _name),
    "packages": _by_name(_text, _text),
    "code": _by_name(_hex, _if(is_code)),
    "seconds": _seconds,
    "steps": _count,
}


def _check_references(recipe: Recipe) -> None:
    """Every reference leads to an object before it, every path into a data set of the recipe."""
    known, data = set[str](), {each.name for each in recipe.data}
    if len(data) != len(recipe.data):
        raise _damaged("it names a data set twice")
    of_model = {held for tag, held in _tags(recipe.model.made) if tag == "object"}

    def look(value: Any) -> None:
        for tag, held in _tags(value):
            if tag == "object" and held not in known:
                raise _damaged(f"it refers to {held}, which is not there before")
            if tag == "data" and held not in data:
                raise _damaged(f"it has no data set {held}")

    for each in (None, *recipe.objects):
        if each is not None:
            if each.name in {*known, "model"}:
                raise _damaged(f"it names two objects {each.name}")
            look([*each.args, *each.keywords.values()])
            known.add(each.name)
        if of_model <= known:
            known.add("model")
    look([recipe.model.made, {"object": "model"}, recipe.service, *recipe.arguments.values()])


def _tags(value: Any) -> Iterator[tuple[str, Any]]:
    """Every tag in a value with what it holds."""
    waiting = [value]
    while waiting:
        at = waiting.pop()
        if isinstance(at, list):
            waiting.extend(at)
        elif isinstance(at, dict):
            yield from at.items()
            waiting.extend(held for held in at.values() if isinstance(held, list))


def _called(function: Any, args: list[Any], keywords: list[Any]) -> str:
    """A call; ``function`` is a name, or a value."""
    texts = [*map(_shown, args), *(f"{name}={_shown(each)}" for name, each in keywords)]
    name = function if isinstance(function, str) else _shown(function)
    return f"{name}({', '.join(texts)})"


def _shown(value: Any) -> str:
    """A value as its reader would write it in Python; functions as ``module:name``."""
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if not isinstance(value, dict):
        return repr(value)
    if "data" in value:
        return "/".join(filter(None, (value["data"], value["path"])))
    ((tag, held),) = value.items()
    if tag == "tuple":
        return f"({', '.join(map(_shown, held))})"
    if tag == "dict":
        return f"{{{', '.join(f'{_shown(key)}: {_shown(each)}' for key, each in held)}}}"
    if tag == "method":
        return f"{_shown(held[0])}.{held[1]}"
    if tag == "partial":
        return _called("partial", [held[0], *held[1]], held[2])
    return str(held)
