"""Describes the Python objects of a training (optimizers, data loaders, ...) as JSON, and rebuilds
the objects.

A recipe contains this JSON. A replay runs the training again from the recipe. ``Describer`` turns
objects into JSON values, and refuses objects that cannot be rebuilt. ``Rebuilt`` turns the values
into objects. ``_VALUES`` lists every kind of argument, with the functions that describe and rebuild
the argument. ``_GENERATORS`` lists the kinds of random generators that can be described.
"""

from __future__ import annotations

import functools
import inspect
import io
import math
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from torch.optim.optimizer import register_optimizer_step_post_hook

from mvc.api import Repository
from mvc.errors import CannotRecord, CannotRetrain, MvcError
from mvc.ids import CommitId
from mvc.models.models import code_of
from mvc.models.sources import place_of
from mvc.names import an
from mvc.recipes.making import Making, making_of
from mvc.recipes.recipe import SERVICE, Made, Recipe
from mvc.state import StateFile
from mvc.training.staging import copied
from mvc.training.state.optimizers import Placement, optimizer_state

VALUES = f"{SERVICE}values.safetensors"
"""The attachment with the tensors and arrays among the arguments."""

START = f"{SERVICE}start.safetensors"
"""The attachment with the states of the random generators and the buffers outside ``state_dict``,
both at the start of the training.
"""

_ARRAYS = torch.Tensor | np.ndarray


# -- random generators --------------------------------------------------------------------------


class _Generator(Struct, frozen=True):
    """A kind of random generator: how to create one, and how to read and set its state.

    ``args`` returns the arguments with which ``make`` creates a generator like the given generator.
    """

    kind: type
    make: Callable[..., Any]
    state: Callable[[Any], dict[str, Any]]
    set_state: Callable[[Any, Mapping[str, Any]], object]
    args: Callable[[Any], tuple[Any, ...]] = lambda _: ()


def _numpy_generator(name: str = "") -> np.random.Generator:
    bits = getattr(np.random, name, None)
    if not (isinstance(bits, type) and issubclass(bits, np.random.BitGenerator)):
        raise CannotRetrain(f"numpy has no bit generator {name}")
    return np.random.Generator(bits(0))


def _random_state(obj: random.Random) -> dict[str, Any]:
    version, words, gauss = obj.getstate()
    return {"version": version, "words": list(words), "gauss": gauss}


_GENERATORS = {
    "torch.Generator": _Generator(
        torch.Generator,
        torch.Generator,
        lambda obj: {"state": obj.get_state()},
        lambda obj, state: obj.set_state(state["state"]),
        args=lambda obj: (str(obj.device),),
    ),
    "numpy.Generator": _Generator(
        np.random.Generator,
        _numpy_generator,
        lambda obj: {"state": obj.bit_generator.state},
        lambda obj, state: setattr(obj.bit_generator, "state", state["state"]),
        args=lambda obj: (type(obj.bit_generator).__name__,),
    ),
    "numpy.RandomState": _Generator(
        np.random.RandomState,
        np.random.RandomState,
        lambda obj: {"state": list(obj.get_state(legacy=True))},
        lambda obj, state: obj.set_state(tuple(state["state"])),
    ),
    "Random": _Generator(
        random.Random,
        random.Random,
        _random_state,
        lambda obj, state: obj.setstate((state["version"], tuple(state["words"]), state["gauss"])),
    ),
}


def _kind(obj: object) -> str:
    """``optimizer``, or the key of a generator in ``_GENERATORS``; empty for any other object."""
    if isinstance(obj, torch.optim.Optimizer):
        return "optimizer"
    return next(
        (name for name, generator in _GENERATORS.items() if type(obj) is generator.kind), ""
    )


def _state_name(name: str) -> str:
    return f"{SERVICE}{name}.safetensors"


# -- from objects to a recipe ------------------------------------------------------------------


class Describer:
    """Turns objects into values of a recipe.

    ``objects``: the objects for the recipe. ``states``: maps the name of each attached file to the
    file's content. ``classes``: every class and function that the values name.
    """

    def __init__(self, model: torch.nn.Module, data: Mapping[str, Path]) -> None:
        """``data``: maps the name of each data set to its folder or file on this machine."""
        self._model, self._data = model, {name: path.resolve() for name, path in data.items()}
        self.objects: list[Made] = []
        self.states: dict[str, dict[str, Any]] = {}
        self.classes: list[Any] = []
        self._names: dict[int, str] = {}
        self._referenced: list[Any] = []  # keeps objects alive, so that no id is reused
        self._arrays: dict[str, Any] = {}
        self._open: set[int] = set()

    def knows(self, obj: Any) -> bool:
        """Whether an object is already described."""
        return id(obj) in self._names

    def model(self, call: str, keywords: Mapping[str, Any]) -> Any:
        """The value that builds the model: a class or function and its arguments."""
        named = {name: self.value(value, f"model.{name}") for name, value in keywords.items()}
        return self._built(call, [], named)

    def constructed_model(self) -> Any:
        """The value that builds a model that ``mvc.constructed`` has created."""
        return self._built(*self._making(self._model, "model"))

    def _built(self, call: str, args: list[Any], keywords: Mapping[str, Any]) -> Any:
        self._names[id(self._model)] = "model"
        return {"partial": [{"code": call}, args, [list(pair) for pair in keywords.items()]]}

    def value(self, obj: Any, place: str) -> Any:
        """Turns an argument into a value of a recipe. ``place``: the argument's name in errors.
        Raises CannotRecord.
        """
        if obj is None or type(obj) in {bool, int} or (type(obj) is float and math.isfinite(obj)):
            return obj
        if type(obj) is str:
            return self._text(obj, place)
        if type(obj) is list:
            return self.items(obj, place)
        if isinstance(obj, np.generic):
            return self.value(obj.item(), place)
        if self.knows(obj):
            return {"object": self._names[id(obj)]}
        kind = next(kind for kind in _VALUES if kind.matches(obj))
        content = kind.describe(self, obj, place)
        return content if kind.tag == "data" else {kind.tag: content}

    def items(self, obj: Sequence[Any], place: str) -> list[Any]:
        return [self.value(item, f"{place}[{i}]") for i, item in enumerate(obj)]

    def pairs(self, obj: Mapping[Any, Any], place: str) -> list[list[Any]]:
        return [
            [self.value(key, f"a key of {place}"), self.value(item, f"{place}[{key!r}]")]
            for key, item in obj.items()
        ]

    def partial(self, obj: functools.partial[Any], place: str) -> list[Any]:
        named = [[key, self.value(item, f"{place}.{key}")] for key, item in obj.keywords.items()]
        return [self.value(obj.func, place), self.items(obj.args, place), named]

    def method(self, obj: Any, place: str) -> list[Any]:
        return [self.value(obj.__self__, place), obj.__name__]

    def finish(self) -> None:
        """Adds the arrays among the arguments to ``states``, and checks that all states can be
        stored.
        """
        if self._arrays:
            self.states[VALUES] = self._arrays
        for name, state in self.states.items():
            try:
                self.states[name] = copied(state)
                StateFile.of(self.states[name])
            except MvcError as error:
                owner = name.removeprefix(SERVICE).removesuffix(".safetensors")
                raise CannotRecord(
                    f"the state of {owner} cannot be stored: {error.message}", hint=error.hint
                ) from error

    def _text(self, text: str, place: str) -> Any:
        """Turns a text into a value. A text that is an absolute path in a data set becomes a path.

        Raises CannotRecord for a relative path that exists in a data set, and for an absolute path
        that exists outside of all data sets.
        """
        path = Path(text)
        if not path.is_absolute() and "/" not in text:
            return text
        if path.is_absolute() and self._inside(path) is not None:
            return self.path(path, place)
        exists = os.path.lexists(text)  # False for a text that is too long for a path
        inside = None if path.is_absolute() or not exists else self._inside(path)
        if inside is not None:
            raise CannotRecord(
                f"{place} is the text {text!r}, which names files of the data set {inside[0]}",
                hint=f"pass the text as a path: pathlib.Path({text!r})",
            )
        if path.is_absolute() and exists:
            raise self._outside(path, place)
        return text

    def path(self, path: Path, place: str) -> dict[str, str]:
        inside = self._inside(path)
        if inside is None:
            raise self._outside(path, place)
        return {"data": inside[0], "path": inside[1]}

    def _inside(self, path: Path) -> tuple[str, str] | None:
        real = path.resolve()
        for name, folder in self._data.items():
            if real.is_relative_to(folder):
                inside = real.relative_to(folder).as_posix()
                return name, "" if inside == "." else inside
        return None

    def _outside(self, path: Path, place: str) -> CannotRecord:
        return CannotRecord(
            f"{place} is the path {path}, which is in no data set of this training",
            hint="add its folder to data=",
        )

    def array(self, obj: Any, place: str) -> str:
        """Stores a tensor or an array, and returns the key under which it is stored."""
        if isinstance(obj, torch.nn.Parameter) or getattr(obj, "requires_grad", False):
            raise CannotRecord(
                f"{place} is a parameter, which a recipe cannot store apart from its model",
                hint="pass the model, and read the parameter from it",
            )
        key = f"{place}#{len(self._arrays)}"
        self._arrays[key] = obj
        return key

    def code(self, obj: Any, place: str) -> str:
        """Returns ``module:name`` for a class, a function or a member of an enum."""
        if isinstance(obj, io.IOBase):
            raise CannotRecord(
                f"{place} is an open file",
                hint="pass the file's path, and add the file's folder to data=",
            )
        if isinstance(obj, Iterator):
            raise CannotRecord(
                f"{place} is an iterator ({type(obj).__qualname__}), whose position is unknown",
                hint="pass the iterable instead",
            )
        if inspect.ismodule(obj):
            raise CannotRecord(
                f"{place} is the module {obj.__name__}", hint="pass a function of the module"
            )
        if isinstance(obj, type) or inspect.isroutine(obj):
            return self._place(obj, place)
        if hasattr(type(obj), "__members__"):  # a member of an enum
            return f"{self._place(type(obj), place)}.{obj.name}"
        raise CannotRecord(
            f"{place} is {an(type(obj).__qualname__)}, and its constructor call is unknown",
            hint=f"create the object with mvc.constructed({type(obj).__qualname__}, ...) instead "
            f"of {type(obj).__qualname__}(...)",
        )

    def _place(self, obj: Any, place: str) -> str:
        """Adds a class or function to ``classes``, and returns its ``module:name``."""
        try:
            module, name = place_of(obj)
        except CannotRecord as error:
            raise CannotRecord(f"{place}: {error.message}", hint=error.hint) from error
        self.classes.append(obj)
        return f"{module}:{name}"

    def object(self, obj: Any, place: str) -> str:
        """Adds an object to ``objects``, and its state to ``states``. Returns the object's name."""
        name, kind = self._free_name(place), _kind(obj)
        if id(obj) in self._open:
            raise CannotRecord(f"{place} refers to itself")
        self._open.add(id(obj))
        if making_of(obj) is not None:
            call, args, keywords = self._making(obj, name)
            record = Made(
                name, "made", call, tuple(args), keywords=keywords, state=self._state(obj, name)
            )
        elif kind == "optimizer":
            record = self._optimizer(obj, name)
        else:
            generator = _GENERATORS[kind]
            self.states[_state_name(name)] = generator.state(obj)
            arguments = generator.args(obj)
            record = Made(name, kind, "", arguments, keywords={}, state=True)  # type: ignore[arg-type]
        self._open.discard(id(obj))
        self._names[id(obj)] = name
        self._referenced.append(obj)
        self.objects.append(record)
        return name

    def _free_name(self, place: str) -> str:
        """A unique name for an object, derived from ``place``."""
        name = first = (
            re.sub(r"[^\w.\[\]]", "_", place, flags=re.ASCII)[-150:].lstrip(".[]0123456789") or "_"
        )
        number = 1
        while name in {"model", "start", "values", *(record.name for record in self.objects)}:
            number += 1
            name = f"{first}#{number}"
        return name

    def _making(self, obj: Any, place: str) -> tuple[str, list[Any], dict[str, Any]]:
        """The class or function that created an object, and its arguments as values."""
        making = making_of(obj)
        assert making is not None
        call = self.code(making.call, place)
        named = zip(making.names, making.args, strict=True)
        args = [self.value(value, f"{place}.{name}") for name, value in named]
        keywords = {name: self.value(v, f"{place}.{name}") for name, v in making.keywords.items()}
        if obj is not self._model:
            self._refuse_hidden_state(obj, making, place)
        return call, args, keywords

    def _optimizer(self, obj: torch.optim.Optimizer, name: str) -> Made:
        """Describes an optimizer by its class, its default settings, and the state of each
        parameter.
        """
        call = self.code(type(obj), name)
        accepted = inspect.signature(type(obj)).parameters
        keywords = {
            key: self.value(value, f"{name}.{key}")
            for key, value in obj.defaults.items()
            if key in accepted
        }
        for key, parameter in accepted.items():
            if key not in {*keywords, "params"} and parameter.default is inspect.Parameter.empty:
                raise CannotRecord(
                    f"{name} is {an(type(obj).__qualname__)}, "
                    f"which does not store its argument {key}",
                    hint=f"create it with mvc.constructed({type(obj).__qualname__}, ...)",
                )
        try:
            state = optimizer_state(self._model, obj)
        except MvcError as error:
            raise CannotRecord(f"{name}: {error.message}", hint=error.hint) from error
        self.states[_state_name(name)] = state
        return Made(name, "optimizer", call, (), keywords=keywords, state=True)

    def _state(self, obj: Any, name: str) -> bool:
        """Adds the state of a constructed object to ``states``. Returns False if the object has no
        state.
        """
        state = _state_of(obj)
        if not state:
            return False
        if not callable(getattr(obj, "load_state_dict", None)):
            raise CannotRecord(
                f"{name} has a state_dict, but no load_state_dict",
                hint=f"add one to {type(obj).__qualname__}",
            )
        if not isinstance(state, Mapping):
            raise CannotRecord(f"the state_dict of {name} is not a mapping")
        if isinstance(obj, torch.optim.Optimizer):
            state = optimizer_state(self._model, obj)
        self.states[_state_name(name)] = dict(state)
        return True

    def _refuse_hidden_state(self, obj: Any, making: Making, place: str) -> None:
        """Raises CannotRecord for an object that has a state, but no ``state_dict``."""
        if callable(getattr(obj, "state_dict", None)):
            return
        kind = type(obj).__qualname__
        hint = (
            f"add state_dict and load_state_dict to {kind}, or pass the object that has the state"
        )
        changed = making.changed(obj)
        if changed is not None:
            raise CannotRecord(
                f"{place} has changed since it was created ({changed}), and has no state_dict",
                hint=hint,
            )
        for name, value in vars(obj).items() if hasattr(obj, "__dict__") else ():
            if self.knows(value) or isinstance(value, type):
                continue
            if _kind(value) or isinstance(value, io.IOBase | Iterator) or _state_of(value):
                raise CannotRecord(
                    f"the attribute {name} of {place} is {an(type(value).__qualname__)}, whose "
                    f"state is needed, and {place} has no state_dict",
                    hint=hint,
                )


def _state_of(obj: Any) -> Any:
    method = None if isinstance(obj, type) else getattr(obj, "state_dict", None)
    return method() if callable(method) else None


# -- from a recipe to objects -----------------------------------------------------------------


class Rebuilt:
    """Rebuilds each object of a recipe once. The states are set after all objects exist."""

    def __init__(
        self, repo: Repository, commit: CommitId, recipe: Recipe, data: Mapping[str, Path]
    ) -> None:
        """``commit``: the version with the attached states and code. ``data``: maps the name of
        each data set to its path.
        """
        self._repo, self._commit, self._recipe, self._data = repo, commit, recipe, data
        self._code = code_of(repo, commit, recipe.code, recipe.packages)
        self._arrays: Mapping[str, Any] | None = None
        self._objects: dict[str, Any] = {}

    def state(self, name: str) -> Mapping[str, Any]:
        state: Mapping[str, Any] = self._repo.attachment(self._commit, name)
        return state

    def model(self) -> torch.nn.Module:
        """Builds the model, without its weights."""
        model = self.value(self._recipe.model.constructor)()
        if not isinstance(model, torch.nn.Module):
            raise CannotRetrain(
                f"the stored code creates {an(type(model).__qualname__)}, not a torch.nn.Module"
            )
        self._objects["model"] = model
        return model

    def objects(self) -> None:
        """Creates every object, then sets the states of all objects.

        Call this after the model has its weights.
        """
        for record in self._recipe.objects:
            self.object(record.name)
        for record in self._recipe.objects:
            if record.state:
                self._set(record)

    def value(self, value: Any) -> Any:
        if isinstance(value, list):
            return list(map(self.value, value))
        if not isinstance(value, dict):
            return value
        ((tag, content),) = {"data": value}.items() if "data" in value else value.items()
        (kind,) = (kind for kind in _VALUES if kind.tag == tag)
        return kind.rebuild(self, content)

    def items(self, content: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(map(self.value, content))

    def pairs(self, content: Iterable[Sequence[Any]]) -> dict[Any, Any]:
        return {self.value(key): self.value(item) for key, item in content}

    def partial(self, content: Sequence[Any]) -> Any:
        function, args, keywords = content
        return functools.partial(self.value(function), *self.value(args), **self.pairs(keywords))

    def method(self, content: Sequence[Any]) -> Any:
        return getattr(self.value(content[0]), content[1])

    def dtype(self, name: str) -> torch.dtype:
        dtype_ = getattr(torch, name, None)
        if not isinstance(dtype_, torch.dtype):
            raise CannotRetrain(f"torch has no dtype {name}")
        return dtype_

    def device(self, name: str) -> torch.device:
        try:
            return torch.device(name)
        except RuntimeError:
            raise CannotRetrain(f"torch has no device {name}") from None

    def object(self, name: str) -> Any:
        """The object with this name, created when it is first needed."""
        if name not in self._objects:
            (record,) = (record for record in self._recipe.objects if record.name == name)
            self._objects[name] = self._make(record)
        return self._objects[name]

    def code(self, name: str) -> Any:
        """The class, function or enum member that ``name`` (``module:name``) names."""
        module, _, path = name.partition(":")
        return self._code.load(module, path)

    def path(self, value: Mapping[str, str]) -> Path:
        path = self._data[value["data"]]
        return path / value["path"] if value["path"] else path

    def array(self, key: str) -> Any:
        if self._arrays is None:
            self._arrays = self.state(VALUES)
        return self._arrays[key]

    def _make(self, record: Made) -> Any:
        args, keywords = self.value(list(record.args)), self.pairs(record.keywords.items())
        if record.kind in _GENERATORS:
            return _GENERATORS[record.kind].make(*args)
        if record.kind == "optimizer":
            args = [self._groups(self.state(_state_name(record.name)))]
        try:
            return self.code(record.call)(*args, **keywords)
        except MvcError:
            raise
        except Exception as error:
            raise CannotRetrain(
                f"{record.name} cannot be rebuilt: {record.call}: {type(error).__name__}: {error}"
            ) from error

    def _groups(self, state: Mapping[str, Any]) -> list[dict[str, Any]]:
        parameters = dict(self._objects["model"].named_parameters(remove_duplicate=False))
        return [{"params": [parameters[n] for n in group["names"]]} for group in state["groups"]]

    def _set(self, record: Made) -> None:
        obj, state = self._objects[record.name], self.state(_state_name(record.name))
        try:
            if record.kind in _GENERATORS:
                _GENERATORS[record.kind].set_state(obj, state)
            elif isinstance(obj, torch.optim.Optimizer):
                Placement(self._objects["model"], obj, state).apply()
            else:
                obj.load_state_dict(state)
        except MvcError:
            raise
        except Exception as error:
            raise CannotRetrain(
                f"the state of {record.name} cannot be set: {type(error).__name__}: {error}"
            ) from error


# -- the kinds of arguments: how to describe and rebuild each ----------------------------------


class _Value(Struct, frozen=True):
    """A kind of argument. The kind of an argument is the first in ``_VALUES`` whose ``matches``
    returns true.

    ``describe`` turns an argument into JSON, which the recipe stores as ``{tag: JSON}`` (for
    ``data``, as it is). ``rebuild`` turns the JSON into an argument.
    """

    tag: str
    matches: Callable[[Any], bool]
    describe: Callable[[Describer, Any, str], Any]
    rebuild: Callable[[Rebuilt, Any], Any]


def _text(_: Describer, obj: object, __: str) -> str:
    return str(obj).removeprefix("torch.")


_VALUES = (
    _Value(
        "object",
        lambda obj: making_of(obj) is not None or bool(_kind(obj)),
        Describer.object,
        Rebuilt.object,
    ),
    _Value("number", lambda obj: type(obj) is float, _text, lambda _, text: float(text)),
    _Value("tuple", lambda obj: type(obj) is tuple, Describer.items, Rebuilt.items),
    _Value("dict", lambda obj: type(obj) is dict, Describer.pairs, Rebuilt.pairs),
    _Value("data", lambda obj: isinstance(obj, Path), Describer.path, Rebuilt.path),
    _Value("dtype", lambda obj: isinstance(obj, torch.dtype), _text, Rebuilt.dtype),
    _Value("device", lambda obj: isinstance(obj, torch.device), _text, Rebuilt.device),
    _Value("array", lambda obj: isinstance(obj, _ARRAYS), Describer.array, Rebuilt.array),
    _Value(
        "partial", lambda obj: type(obj) is functools.partial, Describer.partial, Rebuilt.partial
    ),
    _Value(
        "method",
        lambda obj: inspect.ismethod(obj) and not inspect.isclass(obj.__self__),
        Describer.method,
        Rebuilt.method,
    ),
    _Value("code", lambda _: True, Describer.code, Rebuilt.code),
)


# -- steps -------------------------------------------------------------------------------------


class StepCount(Struct):
    """The number of steps that optimizers have made."""

    count: int = 0


@contextmanager
def counting_steps(progress: Callable[[int], object] | None = None) -> Iterator[StepCount]:
    """Counts the steps of all torch optimizers during the block. Calls ``progress`` with the count
    after each step.
    """
    steps = StepCount()

    def step(*_: object) -> None:
        steps.count += 1
        if progress is not None:
            progress(steps.count)

    hook = register_optimizer_step_post_hook(step)
    try:
        yield steps
    finally:
        hook.remove()
