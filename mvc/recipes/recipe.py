"""A recipe: the file ``recipe.json`` in a version, which says how to train the version again.

To *replay* a recipe is to run the training again. A recipe names the base version (the training
started from its weights), the data sets, the *service* (the function or object that trains), the
objects that the service uses, and the Merkle root of the resulting weights. The version also has
files with the states of these objects, the source code and the environment.

``mvc.Recorder`` with a recipe commits many versions of one training (a training by steps). Only
some of these versions, the *full states*, store the whole training state. A full state has the
files above, but its recipe is named ``steps.json``. The base of ``steps.json`` is the full state
itself. A version cannot contain its own id and root, so ``steps.json`` has zeros in place of both.
In every version after a full state, ``recipe.json`` names this full state, the preceding version,
and the data of each batch since the preceding version (``Batches``).

In a recipe, finite numbers, texts, lists, true, false and null are written as in JSON. Any other
argument is a JSON object with one of these tags as its key:

- ``{"object": n}``: the object named n, such as ``model`` or ``optimizer``
- ``{"code": "m:q"}``: the class, function or enum member with the qualified name q in module m
- ``{"partial": [f, args, [[name, value], ...]]}``: a ``functools.partial`` of f
- ``{"method": [object, name]}``: a method of an object
- ``{"data": n, "path": p}``: the file or folder p in the data set n; with an empty p, all of n
- ``{"tuple": [...]}``, ``{"dict": [[key, value], ...]}``: a tuple, a dict
- ``{"number": text}``: an infinite number or NaN
- ``{"array": key}``: a tensor or an array in ``service/values.safetensors``
- ``{"dtype": n}``, ``{"device": n}``: a dtype or a device of torch
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from msgspec import Meta, Struct, convert, field, structs

from mvc.api import Dropped, FileEntry, Repository
from mvc.documents import OtherSchema, decoded, encoded
from mvc.errors import DamagedData, InvalidName, UnknownPath
from mvc.ids import CommitId, Root
from mvc.models.models import attached_bytes
from mvc.models.stored_code import file_of, is_code
from mvc.names import RECIPE, check_path, printable

SERVICE = "service/"
"""The folder of the states of the objects, in the attachments of a version."""

STEPS = "steps.json"
"""The attachment of a full state with the recipe of a training by steps."""

DRAWN = f"{SERVICE}random.safetensors"
"""The attachment with the states of the random generators for ``Batches.drawn``."""

_LONGEST = 16 << 20  # maximum number of bytes of a recipe
_SCHEMA = "mvc.recipe/1"
_BATCHES = "mvc.batches/1"
_T = TypeVar("_T")
_DEPTH = 180  # maximum nesting of lists and objects in a value
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
"""Maps each tag except ``data`` to the type of its content. ``Any``: any argument."""


class Result(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of a training: the path of the file with the weights, and the Merkle root of the
    tensors in the file.
    """

    path: str
    root: Root


class BaseState(Struct, frozen=True, forbid_unknown_fields=True):
    """The initial weights of the training: the file at ``path`` in ``version``."""

    version: CommitId
    path: str


class Data(Struct, frozen=True, forbid_unknown_fields=True):
    """A data set. ``file``: the name of its only file; empty for a folder."""

    name: Annotated[str, Meta(pattern=rf"(?a)\A{_DATA.pattern}\Z")]
    version: CommitId
    file: str


class Model(Struct, frozen=True, forbid_unknown_fields=True):
    """The model without its weights.

    ``constructor``: what a replay calls, without arguments, to build the model: a ``partial``, as
    described above. ``frozen``: names of the parameters without gradient. ``evaluating``: names of
    the modules in evaluation mode; an empty name means the model itself.
    """

    constructor: Any = field(name="made")
    frozen: tuple[_Text, ...]
    evaluating: tuple[_Text, ...]
    device: _Text


class Made(Struct, frozen=True, forbid_unknown_fields=True):
    """An object that the service uses: how to build it, and whether it has a state.

    ``kind``: ``made`` if the class or function ``call`` builds the object from the arguments;
    otherwise a type that mvc can build itself. ``state``: whether the file
    ``service/NAME.safetensors`` contains the object's state.
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
    """A call that a replay makes, such as ``optimizer = torch.optim.adam:Adam(model, lr=0.01)``.

    ``stored``: whether the source files of all functions and classes in the call are attached.
    """

    text: str
    stored: bool


class Recipe(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``recipe.json``: how to train a version again.

    ``service``: the function or method that a replay calls with the model and ``arguments``.
    ``objects``: an object comes after the objects that it refers to. ``packages``: versions of the
    installed packages that the code imports. ``code``: the BLAKE3 hash of each attached source
    file. ``seconds``: duration of the training. ``steps``: number of optimizer steps.
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
        """The versions that a replay depends on."""
        return tuple(sorted({self.base.version, *(data.version for data in self.data)}))

    def carrier(self, commit: CommitId) -> CommitId:
        """The version that has the states, code and environment for a replay. ``commit``: the
        version that has this recipe.
        """
        return commit

    @property
    def calls(self) -> list[Call]:
        """The calls that a replay makes, in order: to build the model, to build the objects, and to
        train.
        """
        model: list[Any] = [{"object": "model"}]
        return [
            self._call("model = ", self.model.constructor, [], {}),
            *(
                self._call(
                    f"{obj.name} = ",
                    {"code": obj.call},
                    model if obj.kind == "optimizer" else obj.args,
                    obj.keywords,
                )
                for obj in self.objects
                if obj.kind in {"made", "optimizer"}
            ),
            self._call("", self.service, model, self.arguments),
        ]

    def _call(
        self, prefix: str, function: Any, args: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Call:
        first, named = list[Any](), list[Any]()
        if isinstance(function, dict) and "partial" in function:
            function, first, named = function["partial"]
        value = [function, [*first, *args], [*named, *map(list, keywords.items())]]
        modules = {content.partition(":")[0] for tag, content in _tags(value) if tag == "code"}
        stored = all({file_of(m), file_of(m, package=True)} & {*self.code} for m in modules)
        return Call(printable(prefix + _called(*value)), stored)

    def encoded(self) -> bytes:
        return encoded(self, _SCHEMA)

    @classmethod
    def decode(cls, data: bytes) -> Recipe:
        """Raises DamagedData unless every field of ``data`` is valid."""
        try:
            recipe = _decoded(data, cls, _SCHEMA)
            files = (dataset_.file for dataset_ in recipe.data if dataset_.file)
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
    """The ``recipe.json`` of a version in a training by steps.

    ``start``: the full state from which a replay starts. ``before``: the preceding version.
    ``rows``: one text for each batch since ``before``, with the positions of the samples in the
    data, separated by spaces. Before some batches, code outside of the training steps changed the
    random generators. ``drawn``: the positions of these batches in ``rows``. The attachment
    ``DRAWN`` contains the states of the generators before these batches.
    """

    start: CommitId
    before: CommitId
    rows: tuple[Annotated[str, Meta(pattern=r"(?a)\A\d{1,15}( \d{1,15})*\Z")], ...]
    drawn: tuple[Annotated[int, Meta(ge=0)], ...] = ()

    def encoded(self) -> bytes:
        return encoded(self, _BATCHES)


class StepRecipe(Recipe, frozen=True, kw_only=True):
    """The recipe of a version in a training by steps. ``batches``: the content of ``recipe.json``
    in this version. ``makes``, ``base`` and ``steps`` are computed for this version. All other
    fields are from ``steps.json`` in the full state.
    """

    batches: Batches

    @property
    def needs(self) -> tuple[CommitId, ...]:
        data_versions = (data.version for data in self.data)
        return tuple(sorted({self.base.version, self.batches.before, *data_versions}))

    def carrier(self, _: CommitId) -> CommitId:
        return self.base.version


def recipe_of(repo: Repository, commit: CommitId) -> Recipe:
    """The recipe of a version.

    Raises UnknownPath if the version has no recipe, and DamagedData if the recipe is invalid.
    """
    version = repo.version(commit)
    if RECIPE not in version.attached:
        raise UnknownPath(
            f"version {commit.short} has no recipe",
            hint="mvc.record(repo, ...) records one",
        )
    data, files = attached_bytes(repo, commit, RECIPE), repo.manifest(commit).by_path
    batches = _batches_in(data)
    if batches is None:
        recipe = Recipe.decode(data)
    else:
        steps = Recipe.decode(attached_bytes(repo, batches.start, STEPS))
        path = steps.makes.path
        changes = {
            "makes": Result(path, files[path].state.root if path in files else steps.makes.root),
            "base": BaseState(batches.start, path),
            "steps": len(batches.rows),
        }
        recipe = StepRecipe(**{**structs.asdict(steps), **changes}, batches=batches)
    entry = files.get(recipe.makes.path)
    if entry is None or not is_whole_state(entry) or entry.state.root != recipe.makes.root:
        raise DamagedData(f"the recipe of {commit.short} is for other weights than the version has")
    if set(recipe.needs) != set(version.needs):
        raise DamagedData(f"the recipe of {commit.short} and its commit need different versions")
    return recipe


def carrier_of(repo: Repository, commit: CommitId) -> CommitId:
    """The version whose attachments have the code and environment of ``commit``.

    In a training by steps, the full state before ``commit``; otherwise ``commit`` itself.
    """
    has_recipe = RECIPE in repo.version(commit).attached
    return recipe_of(repo, commit).carrier(commit) if has_recipe else commit


def segment(repo: Repository, commit: CommitId) -> dict[CommitId, Batches]:
    """The versions that a replay of ``commit`` trains, oldest first, with their batches.

    These are all versions after the preceding full state, up to and including ``commit``. Raises
    DamagedData if no full state precedes ``commit``.
    """
    batches_of, at, start = dict[CommitId, Batches](), commit, None
    while at != start:
        batches = _batches_in(attached_bytes(repo, at, RECIPE))
        if batches is None or start not in {None, batches.start}:
            raise DamagedData(f"the recipe of {commit.short} leads to no full state")
        batches_of[at], start, at = batches, batches.start, batches.before
    return dict(reversed(batches_of.items()))


def missing_weights(repo: Repository, commit: CommitId) -> Dropped | None:
    """Describes the dropped weights of a version. None if the weights can be restored without a
    replay.
    """
    available = repo.availability(commit)
    return available if isinstance(available, Dropped) and not available.stored else None


def is_whole_state(entry: FileEntry) -> bool:
    """Whether a file contains only tensors and their names, so that a replay can reproduce it."""
    if entry.format == "state":
        return True
    whole = {tensor.content for tensor in entry.tensors if tensor.view is None}
    return entry.format == "safetensors" and whole == set(range(len(entry.contents)))


def is_data_name(name: Any) -> bool:
    """Whether a data set may have this name: letters, digits and ``. _ + -``."""
    return isinstance(name, str) and bool(_DATA.fullmatch(name))


def _batches_in(data: bytes) -> Batches | None:
    """The batches in a ``recipe.json`` of a training by steps; None for any other recipe."""
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
    """Checks the arguments in a recipe. Raises ValueError, InvalidName.

    Each argument must have a known form. The recipe must have each object and each data set that an
    argument names.
    """
    objects = ["model", *(obj.name for obj in recipe.objects)]
    named = {"object": objects, "data": [data.name for data in recipe.data]}
    for kind, names in named.items():
        if len({*names}) < len(names):
            raise ValueError(f"two of its {kind}s have the same name")
    arguments = [value for obj in recipe.objects for value in (*obj.args, *obj.keywords.values())]
    for tag, content in _tags(
        [recipe.model.constructor, *arguments, recipe.service, *recipe.arguments.values()]
    ):
        if content not in named.get(tag, [content]):
            raise ValueError(f"it has no {tag} {content}")


def _tags(value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yields every tag in an argument, with the content of the tag. Raises ValueError for an
    invalid argument.
    """
    if depth > _DEPTH:
        raise ValueError("a value is nested too deeply")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number of a value is out of range")
    if isinstance(value, dict):
        tag, content = _tagged(value)
        yield tag, content
        value = content
    for item in value if isinstance(value, list) else ():
        yield from _tags(item, depth + 1)


def _tagged(value: dict[str, Any]) -> tuple[str, Any]:
    if value.keys() == {"data", "path"}:
        if value["path"] != "":
            check_path(convert(value["path"], _Text))
        return "data", convert(value["data"], _Text)
    if len(value) != 1 or not value.keys() <= _FORMS.keys():
        raise ValueError("a value has an unknown form")
    ((tag, content),) = value.items()
    convert(content, _FORMS[tag])
    return tag, content


def _called(function: Any, args: list[Any], keywords: list[Any]) -> str:
    """A call as text. ``function``: a name, or a function in the form of a recipe."""
    texts = [*map(_shown, args), *(f"{name}={_shown(item)}" for name, item in keywords)]
    name = function if isinstance(function, str) else _shown(function)
    return f"{name}({', '.join(texts)})"


def _shown(value: Any) -> str:
    """An argument in Python's notation. A function is shown as ``module:name``."""
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if not isinstance(value, dict):
        return repr(value)
    if "data" in value:
        return "/".join(filter(None, (value["data"], value["path"])))
    ((tag, content),) = value.items()
    if tag == "tuple":
        return f"({', '.join(map(_shown, content))})"
    if tag == "dict":
        return f"{{{', '.join(f'{_shown(key)}: {_shown(item)}' for key, item in content)}}}"
    if tag == "method":
        return f"{_shown(content[0])}.{content[1]}"
    if tag == "partial":
        return _called("partial", [content[0], *content[1]], content[2])
    return str(content)
