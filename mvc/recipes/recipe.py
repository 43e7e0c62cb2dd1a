"""A recipe: how a version's weights are made again from another version, as ``recipe.json``.

A recipe names a base version, data sets, a training service with its objects and their
references to each other, and the Merkle root that the result must have. The states of objects, the
source code and the environment are attached to the version beside it.

A training by steps attaches all this to its full states instead, as ``steps.json``: a recipe whose
base is the version itself, which cannot name its own id and root; both are zeros. The
``recipe.json`` of each version then names the full state before it, and the rows of its batches
(``Batches``).

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

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from msgspec import Meta, Struct, convert, structs

from mvc.api import Dropped, FileEntry, Repository
from mvc.documents import OtherSchema, decoded, encoded
from mvc.errors import DamagedData, InvalidName, UnknownPath
from mvc.ids import CommitId, Root
from mvc.models.models import attached_bytes
from mvc.models.stored_code import file_of, is_code
from mvc.names import RECIPE, check_path, printable

SERVICE = "service/"
"""Where a version's attached files hold the states; the recipe is ``names.RECIPE``."""

STEPS = "steps.json"
"""The attached file of a full state from which a training by steps goes on."""

DRAWN = f"{SERVICE}random.safetensors"
"""The attached file with the states of random generators that ``Batches.drawn`` counts."""

_LONGEST = 16 << 20  # bytes
_SCHEMA = "mvc.recipe/1"
_BATCHES = "mvc.batches/1"
_T = TypeVar("_T")
_DEPTH = 180  # of lists and objects in a value
_DATA = re.compile(r"[A-Za-z0-9_][\w.+-]{0,150}", re.ASCII)
_QUALIFIED = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
_Text: TypeAlias = Annotated[str, Meta(max_length=1 << 16)]
_Name: TypeAlias = Annotated[str, Meta(pattern=r"(?a)\A[A-Za-z_][\w.\[\]#]{0,200}\Z")]
_Short: TypeAlias = Annotated[str, Meta(pattern=r"\A[ -~]{1,200}\Z")]

_FORMS: dict[str, Any] = {
    "object": _Name,
    "code": Annotated[str, Meta(pattern=rf"\A{_QUALIFIED}\Z")],
    "partial": tuple[Any, list[Any], list[tuple[_Text, Any]]],
    "method": tuple[Any, Annotated[str, Meta(pattern=r"\A[^\W\d]\w*\Z")]],
    "tuple": list[Any],
    "dict": list[tuple[Any, Any]],
    "number": Annotated[str, Meta(pattern=r"\A(-?inf|nan)\Z")],
    "array": _Short,
    "dtype": _Short,
    "device": _Short,
}
"""What each tag of a value holds, but ``data``; what lies in a list is a value again."""


class Result(Struct, frozen=True, forbid_unknown_fields=True):
    """What a recipe makes: the file at ``path`` of its version, and the root of its state."""

    path: str
    root: Root


class BaseState(Struct, frozen=True, forbid_unknown_fields=True):
    """The state that training begins with: the file at ``path`` of a version."""

    version: CommitId
    path: str


class Data(Struct, frozen=True, forbid_unknown_fields=True):
    """A data set: ``name``, the version that holds it, and its only file (empty for a folder)."""

    name: Annotated[str, Meta(pattern=rf"(?a)\A{_DATA.pattern}\Z")]
    version: CommitId
    file: str


class Model(Struct, frozen=True, forbid_unknown_fields=True):
    """The model beside its weights.

    ``made``: the value that builds it. ``frozen``: parameters without gradient; ``evaluating``:
    modules in evaluation mode, by name; the model itself is the empty name.
    """

    made: Any
    frozen: tuple[_Text, ...]
    evaluating: tuple[_Text, ...]
    device: _Text


class Made(Struct, frozen=True, forbid_unknown_fields=True):
    """An object that the service uses: how to build it, and whether it has a state.

    ``kind``: ``made`` for a class or function that is called with its arguments; the others are
    the types whose arguments mvc knows by itself. ``state``: whether ``service/NAME.safetensors``
    holds its state.
    """

    name: _Name
    kind: Literal[
        "made", "optimizer", "torch.Generator", "numpy.Generator", "numpy.RandomState", "Random"
    ]
    call: Annotated[str, Meta(pattern=rf"\A({_QUALIFIED})?\Z")]
    args: tuple[Any, ...]
    keywords: Mapping[_Name, Any]
    state: bool


class Call(Struct, frozen=True):
    """A call that a replay makes, as ``optimizer = torch.optim.adam:Adam(model, lr=0.01)``.

    ``stored``: whether the version carries the files of all functions and classes in it.
    """

    text: str
    stored: bool


class Recipe(Struct, frozen=True, forbid_unknown_fields=True):
    """How a state of a version is made; its fields are those of ``recipe.json``.

    ``service`` is the value that is called, with the model and ``arguments``; ``objects`` come
    before those that refer to them. ``packages``: versions of the
    installed packages that the code imports. ``code``: the BLAKE3 of each attached source file.
    ``seconds`` and ``steps`` (of optimizers) are those of the training.
    """

    makes: Result
    base: BaseState
    data: tuple[Data, ...]
    model: Model
    objects: tuple[Made, ...]
    service: Any
    arguments: Mapping[_Name, Any]
    packages: Mapping[_Text, _Text]
    code: Mapping[str, Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]]
    seconds: Annotated[float, Meta(ge=0, lt=1e12)]
    steps: Annotated[int, Meta(ge=0, lt=1 << 60)]

    @property
    def needs(self) -> tuple[CommitId, ...]:
        """The versions without which the recipe is worth nothing."""
        return tuple(sorted({self.base.version, *(data.version for data in self.data)}))

    def carrier(self, commit: CommitId) -> CommitId:
        """The version that carries states, code and environment; ``commit`` has the recipe."""
        return commit

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
        return encoded(self, _SCHEMA)

    @classmethod
    def decode(cls, data: bytes) -> Recipe:
        """Raises DamagedData unless ``data`` is a recipe in every detail."""
        try:
            recipe = _decoded(data, cls, _SCHEMA)
            files = (each.file for each in recipe.data if each.file)
            for path in (recipe.makes.path, recipe.base.path, *files):
                check_path(path)
            if not all(map(is_code, recipe.code)):
                raise ValueError("it names a file of code that cannot be imported")
            _check_values(recipe)
        except OtherSchema:
            raise _damaged("its schema is unknown; a newer mvc may read it") from None
        except (ValueError, InvalidName) as error:
            raise _damaged(str(error)) from None
        return recipe


class Batches(Struct, frozen=True, forbid_unknown_fields=True):
    """The ``recipe.json`` of a version that steps made, from the full state ``start``.

    Each text of ``rows`` is a batch after the version ``before``: positions in the data, with
    spaces between them. Before the batches of the positions ``drawn``, something else had changed
    the random generators: the attached file ``DRAWN`` has their states.
    """

    start: CommitId
    before: CommitId
    rows: tuple[Annotated[str, Meta(pattern=r"(?a)\A\d{1,15}( \d{1,15})*\Z")], ...]
    drawn: tuple[Annotated[int, Meta(ge=0)], ...] = ()

    def encoded(self) -> bytes:
        return encoded(self, _BATCHES)


class StepRecipe(Recipe, frozen=True, kw_only=True):
    """The recipe of a version that steps made, with its ``batches``."""

    batches: Batches

    @property
    def needs(self) -> tuple[CommitId, ...]:
        others = (data.version for data in self.data)
        return tuple(sorted({self.base.version, self.batches.before, *others}))

    def carrier(self, _: CommitId) -> CommitId:
        return self.base.version


def recipe_of(repo: Repository, commit: CommitId) -> Recipe:
    """The recipe that a version carries. Raises UnknownPath if it has none, DamagedData."""
    version = repo.version(commit)
    if RECIPE not in version.attached:
        raise UnknownPath(
            f"version {commit.short} has no recipe to make it again by",
            hint="mvc.record(repo, ...) records one",
        )
    data, files = attached_bytes(repo, commit, RECIPE), repo.manifest(commit).by_path
    batches = _batches_in(data)
    if batches is None:
        recipe = Recipe.decode(data)
    else:
        steps = Recipe.decode(attached_bytes(repo, batches.start, STEPS))
        path = steps.makes.path
        made = {
            "makes": Result(path, files[path].state.root if path in files else steps.makes.root),
            "base": BaseState(batches.start, path),
            "steps": len(batches.rows),
        }
        recipe = StepRecipe(**{**structs.asdict(steps), **made}, batches=batches)
    entry = files.get(recipe.makes.path)
    if entry is None or not is_made_whole(entry) or entry.state.root != recipe.makes.root:
        raise DamagedData(f"the recipe of {commit.short} makes something that it does not hold")
    if set(recipe.needs) != set(version.needs):
        raise DamagedData(f"the recipe of {commit.short} needs other versions than its commit says")
    return recipe


def carrier_of(repo: Repository, commit: CommitId) -> CommitId:
    """The version that carries code and environment for this one: itself, or a full state."""
    has_recipe = RECIPE in repo.version(commit).attached
    return recipe_of(repo, commit).carrier(commit) if has_recipe else commit


def segment(repo: Repository, commit: CommitId) -> dict[CommitId, Batches]:
    """Each version from a full state, which is left out, to one that steps made.

    Raises DamagedData where no batches lead there.
    """
    found, at, start = dict[CommitId, Batches](), commit, None
    while at != start:
        batches = _batches_in(attached_bytes(repo, at, RECIPE))
        if batches is None or start not in {None, batches.start}:
            raise DamagedData(f"the recipe of {commit.short} leads to no full state")
        found[at], start, at = batches, batches.start, batches.before
    return dict(reversed(found.items()))


def missing_weights(repo: Repository, commit: CommitId) -> Dropped | None:
    """The weights of a version that only a replay makes again; None if there are none such."""
    found = repo.availability(commit)
    return found if isinstance(found, Dropped) and not found.stored else None


def is_made_whole(entry: FileEntry) -> bool:
    """Whether a state gives all of a file but its skeleton: each content is one whole tensor."""
    if entry.format == "state":
        return True
    whole = {tensor.content for tensor in entry.tensors if tensor.view is None}
    return entry.format == "safetensors" and whole == set(range(len(entry.contents)))


def is_data_name(name: Any) -> bool:
    """Whether a data set may have this name: letters, digits and ``. _ + -``."""
    return isinstance(name, str) and bool(_DATA.fullmatch(name))


def _batches_in(data: bytes) -> Batches | None:
    """What ``recipe.json`` says of a version that steps made; None for any other recipe."""
    try:
        return _decoded(data, Batches, _BATCHES)
    except OtherSchema:
        return None
    except ValueError as error:
        raise _damaged(str(error)) from None


def _decoded(data: bytes, kind: type[_T], schema: str) -> _T:
    if len(data) > _LONGEST:
        raise ValueError(f"it is longer than {_LONGEST} bytes")
    return decoded(data, kind, schema)


def _damaged(why: str) -> DamagedData:
    why = printable(why)[:300]
    return DamagedData(f"a recipe cannot be read: {why}", hint="run 'mvc fsck' to check the store")


# -- values ------------------------------------------------------------------------------------


def _check_values(recipe: Recipe) -> None:
    """Every value has one of the forms of the table above, and leads to what the recipe has.

    Raises ValueError, InvalidName.
    """
    objects = ["model", *(each.name for each in recipe.objects)]
    named = {"object": objects, "data": [each.name for each in recipe.data]}
    for kind, names in named.items():
        if len({*names}) < len(names):
            raise ValueError(f"it names two {kind}s alike")
    made = [value for each in recipe.objects for value in (*each.args, *each.keywords.values())]
    for tag, held in _tags([recipe.model.made, *made, recipe.service, *recipe.arguments.values()]):
        if held not in named.get(tag, [held]):
            raise ValueError(f"it has no {tag} {held}")


def _tags(value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every tag in a value with what it holds. Raises ValueError for what is no value."""
    if depth > _DEPTH:
        raise ValueError("a value is nested too deep")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number of a value is out of range")
    if isinstance(value, dict):
        tag, held = _tagged(value)
        yield tag, held
        value = held
    for each in value if isinstance(value, list) else ():
        yield from _tags(each, depth + 1)


def _tagged(value: dict[str, Any]) -> tuple[str, Any]:
    if value.keys() == {"data", "path"}:
        if value["path"] != "":
            check_path(convert(value["path"], _Text))
        return "data", convert(value["data"], _Text)
    if len(value) != 1 or not value.keys() <= _FORMS.keys():
        raise ValueError("a value has an unknown form")
    ((tag, held),) = value.items()
    convert(held, _FORMS[tag])
    return tag, held


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
