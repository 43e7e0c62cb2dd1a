"""The objects of a training: how each was made, its state, and what it refers to.

``made(Class, *args, **keywords)`` makes an object and remembers how. ``describe`` turns objects
into values of a recipe, and refuses by its place whatever cannot be made again. ``Rebuilt`` is the
way back. mvc knows by itself how to make optimizers of torch and random generators.
"""

from __future__ import annotations

import functools
import inspect
import io
import math
import os
import random
import re
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from msgspec import Struct

from mvc.adapters.python.state import from_state
from mvc.errors import CannotRecord, CannotRetrain, MvcError, WrongUsage
from mvc.model.names import an
from mvc.models.sources import place_of
from mvc.recipes.recipe import SERVICE, Made, Recipe
from mvc.training.state.optimizers import Placement, optimizer_state

__all__ = ["START", "VALUES", "Describer", "Making", "Rebuilt", "made", "making_of"]

VALUES = f"{SERVICE}values.safetensors"
"""The attached file with the tensors and arrays among the arguments."""

START = f"{SERVICE}start.safetensors"
"""The attached file with the random generators and the buffers outside of ``state_dict``."""

_P = ParamSpec("_P")
_T = TypeVar("_T")
_SCALARS = (bool, int, float, str)


def _state_name(name: str) -> str:
    return f"{SERVICE}{name}.safetensors"


class Making(Struct, frozen=True):
    """How an object was made. ``seen``: its plain attributes right after that."""

    call: Callable[..., Any]
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]
    seen: Mapping[str, Any]


_makings: dict[int, Making] = {}


def made(call: Callable[_P, _T], /, *args: _P.args, **keywords: _P.kwargs) -> _T:
    """``call(*args, **keywords)``, remembered: ``Repository.provenance`` can record the result.

    ``call`` is a class or a function of a module. Its arguments are plain values, paths inside of
    a data set, tensors, functions of modules, and other objects that were made like this.
    Raises WrongUsage for arguments that ``call`` does not take, and for a result whose type cannot
    be remembered.
    """
    making_args, making_keywords = _copied(args), _copied(keywords)
    try:
        obj = call(*args, **keywords)
    except TypeError:
        _refuse_arguments(call, args, keywords)
        raise
    try:
        weakref.finalize(obj, _makings.pop, id(obj), None)
    except TypeError:
        raise WrongUsage(
            f"made() cannot remember {an(type(obj).__qualname__)}",
            hint="plain values need no made(); a class with __slots__ needs __weakref__",
        ) from None
    _makings[id(obj)] = Making(call, making_args, making_keywords, _plain_attributes(obj))
    return obj


def _refuse_arguments(call: Any, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    """Raises WrongUsage if it is the call itself that does not fit."""
    name = getattr(call, "__qualname__", type(call).__qualname__)
    if not callable(call):
        raise WrongUsage(
            f"made() cannot call {an(name)}",
            hint="pass the class or function, and its arguments after it: mvc.made(Net, width=64)",
        )
    try:
        inspect.signature(call).bind(*args, **keywords)
    except ValueError:  # it has no signature
        return
    except TypeError as error:
        raise WrongUsage(f"{name} cannot be made so: {error}") from None


def making_of(obj: Any) -> Making | None:
    """How an object was made, if ``made`` made it."""
    return _makings.get(id(obj))


def _copied(value: Any) -> Any:
    """Containers are copied, so that later changes of them are not recorded as arguments."""
    if type(value) in {list, tuple}:
        return type(value)(_copied(each) for each in value)
    if type(value) is dict:
        return {key: _copied(each) for key, each in value.items()}
    return value


def _plain_attributes(obj: Any) -> dict[str, Any]:
    """Those of a class of the project; what an installed package changes is its own business."""
    home = getattr(sys.modules.get(type(obj).__module__), "__file__", None) or ""
    if {"site-packages", "dist-packages"} & set(Path(home).parts):
        return {}
    found = getattr(obj, "__dict__", {})
    return {k: v for k, v in found.items() if v is None or type(v) in _SCALARS}


# -- from objects to a recipe ------------------------------------------------------------------


class Describer:
    """Turns objects into values; ``objects`` and ``states`` are what the recipe then holds.

    ``code``: every class and function that was met. ``states``: attached files by name.
    """

    def __init__(self, model: torch.nn.Module, data: Mapping[str, Path]) -> None:
        """``data``: by name the folder or file of each data set on this machine."""
        self._model, self._data = model, {name: path.resolve() for name, path in data.items()}
        self._relative = {name: str(path) for name, path in data.items()}
        self.objects: list[Made] = []
        self.states: dict[str, dict[str, Any]] = {}
        self.code: list[Any] = []
        self._names: dict[int, str] = {}
        self._held: list[Any] = []  # so that no id is used again
        self._arrays: dict[str, Any] = {}
        self._open: set[int] = set()

    def knows(self, obj: Any) -> bool:
        """Whether an object is among those that were described."""
        return id(obj) in self._names

    def model(self, value: Any) -> Any:
        """Takes ``value`` as what builds the model; None: what ``made`` remembers of it."""
        if value is None:
            value = self._making(self._model, "model")
        self._names[id(self._model)] = "model"
        return value

    def value(self, obj: Any, place: str) -> Any:
        """An argument as a value of a recipe. Raises CannotRecord, which names the place."""
        if obj is None or type(obj) in {bool, int}:
            return obj
        if type(obj) is str:
            return self._text(obj, place)
        if type(obj) is float:
            return obj if math.isfinite(obj) else {"number": str(obj)}
        if type(obj) is list:
            return [self.value(each, f"{place}[{i}]") for i, each in enumerate(obj)]
        if type(obj) is tuple:
            return {"tuple": [self.value(each, f"{place}[{i}]") for i, each in enumerate(obj)]}
        if type(obj) is dict:
            pairs = [
                [self.value(k, f"a key of {place}"), self.value(v, f"{place}[{k!r}]")]
                for k, v in obj.items()
            ]
            return {"dict": pairs}
        if isinstance(obj, Path):
            return self._path(obj, place)
        if isinstance(obj, torch.dtype):
            return {"dtype": str(obj).removeprefix("torch.")}
        if isinstance(obj, torch.device):
            return {"device": str(obj)}
        if isinstance(obj, np.generic):
            return self.value(obj.item(), place)
        if id(obj) in self._names:
            return {"object": self._names[id(obj)]}
        if id(obj) in _makings or _kind(obj):
            return {"object": self._object(obj, place)}
        if isinstance(obj, torch.Tensor | np.ndarray):
            return self._array(obj, place)
        if type(obj) is functools.partial:
            keywords = [[k, self.value(v, f"{place}.{k}")] for k, v in obj.keywords.items()]
            args = [self.value(v, f"{place}[{i}]") for i, v in enumerate(obj.args)]
            return {"partial": [self.value(obj.func, place), args, keywords]}
        if inspect.ismethod(obj) and not inspect.isclass(obj.__self__):
            return {"method": [self.value(obj.__self__, place), obj.__name__]}
        return {"code": self._code(obj, place)}

    def finish(self) -> None:
        """Adds the arrays among the arguments to ``states``, and checks that all can be kept."""
        if self._arrays:
            self.states[VALUES] = self._arrays
        self.states = {name: _apart(state) for name, state in self.states.items()}
        for name, state in self.states.items():
            try:
                from_state(state)
            except MvcError as error:
                owner = name.removeprefix(SERVICE).removesuffix(".safetensors")
                raise CannotRecord(
                    f"the state of {owner} cannot be kept: {error.message}", hint=error.hint
                ) from error

    # -- one kind each ---------------------------------------------------------------------

    def _text(self, text: str, place: str) -> Any:
        """A text; one that names a file of a data set must be a path, to be found again."""
        path = Path(text)
        if not path.is_absolute() and "/" not in text:
            return text
        if path.is_absolute() and self._inside(path) is not None:
            return self._path(path, place)
        there = os.path.lexists(text)  # a text may be too long to be a path
        inside = None if path.is_absolute() or not there else self._inside(path)
        if inside is not None:
            raise CannotRecord(
                f"{place} is the text {text!r}, which names files of the data set {inside[0]}",
                hint=f"pass it as a path: pathlib.Path({text!r})",
            )
        if path.is_absolute() and there:
            raise self._outside(path, place)
        return text

    def _path(self, path: Path, place: str) -> dict[str, str]:
        found = self._inside(path)
        if found is None:
            raise self._outside(path, place)
        return {"data": found[0], "path": found[1]}

    def _inside(self, path: Path) -> tuple[str, str] | None:
        real = path.resolve()
        for name, folder in self._data.items():
            if real.is_relative_to(folder):
                inside = real.relative_to(folder).as_posix()
                return name, "" if inside == "." else inside
        return None

    def _outside(self, path: Path, place: str) -> CannotRecord:
        return CannotRecord(
            f"{place} is the path {path}, which belongs to no data set of this training",
            hint="name its folder in data=",
        )

    def _array(self, obj: Any, place: str) -> dict[str, str]:
        if isinstance(obj, torch.nn.Parameter) or getattr(obj, "requires_grad", False):
            raise CannotRecord(
                f"{place} is a parameter, which a recipe cannot keep apart from its model",
                hint="pass the model, and take the parameter from it",
            )
        key = f"{place}#{len(self._arrays)}"
        self._arrays[key] = obj
        return {"array": key}

    def _code(self, obj: Any, place: str) -> str:
        if isinstance(obj, io.IOBase):
            raise CannotRecord(
                f"{place} is an open file", hint="pass its path, and name its folder in data="
            )
        if isinstance(obj, Iterator):
            raise CannotRecord(
                f"{place} is an iterator ({type(obj).__qualname__}), whose position is unknown",
                hint="pass what it iterates over",
            )
        if inspect.ismodule(obj):
            raise CannotRecord(
                f"{place} is the module {obj.__name__}", hint="pass a function of it"
            )
        if isinstance(obj, type) or inspect.isroutine(obj):
            return self._place(obj, place)
        if hasattr(type(obj), "__members__"):  # a member of an enum
            return f"{self._place(type(obj), place)}.{obj.name}"
        raise CannotRecord(
            f"{place} is {an(type(obj).__qualname__)}, and how it was made is unknown",
            hint=f"make it with mvc.made({type(obj).__qualname__}, ...) in place of "
            f"{type(obj).__qualname__}(...)",
        )

    def _place(self, obj: Any, place: str) -> str:
        """``module:name`` of a class or function, which is added to ``code``."""
        try:
            module, name = place_of(obj)
        except CannotRecord as error:
            raise CannotRecord(f"{place}: {error.message}", hint=error.hint) from error
        self.code.append(obj)
        return f"{module}:{name}"

    def _object(self, obj: Any, place: str) -> str:
        name = self._free_name(place)
        kind = _kind(obj)
        if id(obj) in self._open:
            raise CannotRecord(f"{place} refers to itself")
        self._open.add(id(obj))
        if id(obj) in _makings:
            making = self._making(obj, name)
            each = Made(name, "made", *_split(making), self._state(obj, name))
        elif kind == "optimizer":
            each = self._optimizer(obj, name)
        else:
            args = (str(obj.device),) if kind == "torch.Generator" else ()
            args = (type(obj.bit_generator).__name__,) if kind == "numpy.Generator" else args
            self.states[_state_name(name)] = _generator_state(obj, kind)
            each = Made(name, kind, "", args, {}, True)
        self._open.discard(id(obj))
        self._names[id(obj)] = name
        self._held.append(obj)
        self.objects.append(each)
        return name

    def _free_name(self, place: str) -> str:
        """The place as the name of an object, which nothing else has."""
        name = first = (
            re.sub(r"[^\w.\[\]]", "_", place, flags=re.ASCII)[-150:].lstrip(".[]0123456789") or "_"
        )
        number = 1
        while name in {"model", "start", "values", *(each.name for each in self.objects)}:
            number += 1
            name = f"{first}#{number}"
        return name

    def _making(self, obj: Any, place: str) -> dict[str, Any]:
        """``{"partial": [code, args, keywords]}`` of an object that ``made`` made."""
        making = _makings[id(obj)]
        call = self._code(making.call, place)
        names = _parameter_names(making)
        args = [self.value(v, f"{place}.{n}") for v, n in zip(making.args, names, strict=True)]
        keywords = [[k, self.value(v, f"{place}.{k}")] for k, v in making.keywords.items()]
        if obj is not self._model:
            self._refuse_hidden_state(obj, making, place)
        return {"partial": [{"code": call}, args, keywords]}

    def _optimizer(self, obj: torch.optim.Optimizer, name: str) -> Made:
        """An optimizer is made from the defaults that it holds, over parameters by their names."""
        call = self._code(type(obj), name)
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
                    f"whose argument {key} it does not keep",
                    hint=f"make it with mvc.made({type(obj).__qualname__}, ...)",
                )
        try:
            state = optimizer_state(self._model, obj)
        except MvcError as error:
            raise CannotRecord(f"{name}: {error.message}", hint=error.hint) from error
        self.states[_state_name(name)] = state
        return Made(name, "optimizer", call, (), keywords, True)

    def _state(self, obj: Any, name: str) -> bool:
        """Adds the state of a made object to ``states``; False if it has none."""
        state = _state_of(obj)
        if not state:
            return False
        if not callable(getattr(obj, "load_state_dict", None)):
            raise CannotRecord(
                f"{name} has a state_dict, but no load_state_dict to set it again",
                hint=f"write one for {type(obj).__qualname__}",
            )
        if not isinstance(state, Mapping):
            raise CannotRecord(f"the state_dict of {name} is no mapping")
        if isinstance(obj, torch.optim.Optimizer):
            state = optimizer_state(self._model, obj)
        self.states[_state_name(name)] = dict(state)
        return True

    def _refuse_hidden_state(self, obj: Any, making: Making, place: str) -> None:
        """Refuses an object without ``state_dict`` that evidently has a state."""
        if callable(getattr(obj, "state_dict", None)):
            return
        kind = type(obj).__qualname__
        hint = (
            f"write state_dict and load_state_dict for {kind}, or pass what holds the state to it"
        )
        for name, value in vars(obj).items() if hasattr(obj, "__dict__") else ():
            if name in making.seen and type(value) in _SCALARS and value != making.seen[name]:
                raise CannotRecord(
                    f"{place} has changed since it was made ({name}: {making.seen[name]!r}, now "
                    f"{value!r}), and has no state_dict",
                    hint=hint,
                )
            if self.knows(value):
                continue
            stateful = _kind(value) or isinstance(value, io.IOBase | Iterator) or _state_of(value)
            if stateful and not isinstance(value, type):
                raise CannotRecord(
                    f"{place} holds a {type(value).__qualname__} in its attribute {name}, whose "
                    f"state is needed, and has no state_dict",
                    hint=hint,
                )


def _split(making: dict[str, Any]) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    code, args, keywords = making["partial"]
    return code["code"], tuple(args), dict(keywords)


def _parameter_names(making: Making) -> list[str]:
    """Names for the positional arguments: those of the parameters, or their numbers."""
    try:
        parameters = list(inspect.signature(making.call).parameters.values())
    except (ValueError, TypeError):
        parameters = []
    plain = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    names = [p.name for p in parameters if p.kind in plain]
    return [names[i] if i < len(names) else f"_{i}" for i in range(len(making.args))]


def _apart(value: Any) -> Any:
    """A state with tensors and containers of its own, which training does not change."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        made = {key: _apart(each) for key, each in value.items()}
        return OrderedDict(made) if isinstance(value, OrderedDict) else made
    if type(value) in {list, tuple}:
        return type(value)(_apart(each) for each in value)
    return value


def _state_of(obj: Any) -> Any:
    method = None if isinstance(obj, type) else getattr(obj, "state_dict", None)
    return method() if callable(method) else None


def _kind(obj: Any) -> str:
    """The kind of an object that mvc knows how to make; empty for others."""
    if isinstance(obj, torch.optim.Optimizer):
        return "optimizer"
    if type(obj) is torch.Generator:
        return "torch.Generator"
    if type(obj) is np.random.Generator:
        return "numpy.Generator"
    if type(obj) is np.random.RandomState:
        return "numpy.RandomState"
    return "Random" if type(obj) is random.Random else ""


def _generator_state(obj: Any, kind: str) -> dict[str, Any]:
    if kind == "torch.Generator":
        return {"state": obj.get_state()}
    if kind == "numpy.Generator":
        return {"state": obj.bit_generator.state}
    if kind == "numpy.RandomState":
        return {"state": list(obj.get_state(legacy=True))}
    version, words, gauss = obj.getstate()
    return {"version": version, "words": list(words), "gauss": gauss}


def _set_generator_state(obj: Any, kind: str, state: Mapping[str, Any]) -> None:
    if kind == "torch.Generator":
        obj.set_state(state["state"])
    elif kind == "numpy.Generator":
        obj.bit_generator.state = state["state"]
    elif kind == "numpy.RandomState":
        obj.set_state(tuple(state["state"]))
    else:
        obj.setstate((state["version"], tuple(state["words"]), state["gauss"]))


# -- from a recipe to objects -----------------------------------------------------------------


class Rebuilt:
    """The objects of a recipe, made again, each once; their states are set last."""

    def __init__(
        self,
        recipe: Recipe,
        data: Mapping[str, Path],
        states: Callable[[str], Mapping[str, Any]],
        take: Callable[[str, str], Any],
    ) -> None:
        """``data``: by name where each data set lies; ``states`` reads an attached file.

        ``take`` imports what a module has under a name, stored code first.
        """
        self._recipe, self._data, self._states, self._take = recipe, data, states, take
        self._arrays: Mapping[str, Any] | None = None
        self._objects: dict[str, Any] = {}

    def model(self) -> torch.nn.Module:
        """The model as its constructor makes it, without its weights."""
        model = self.value(self._recipe.model.made)()
        if not isinstance(model, torch.nn.Module):
            raise CannotRetrain(f"the stored code makes a {type(model).__qualname__}, no module")
        self._objects["model"] = model
        return model

    def objects(self) -> None:
        """Makes every object after the model has its weights, then sets the states."""
        for each in self._recipe.objects:
            self._object(each.name)
        for each in self._recipe.objects:
            if each.state:
                self._set(each)

    def value(self, value: Any) -> Any:
        """What a value of the recipe stands for."""
        if isinstance(value, list):
            return [self.value(each) for each in value]
        if not isinstance(value, dict):
            return value
        if "data" in value:
            path = self._data[value["data"]]
            return path / value["path"] if value["path"] else path
        ((tag, held),) = value.items()
        return getattr(self, f"_{tag}")(held)

    def _object(self, name: str) -> Any:
        if name not in self._objects:
            (each,) = (each for each in self._recipe.objects if each.name == name)
            self._objects[name] = self._make(each)
        return self._objects[name]

    def _code(self, name: str) -> Any:
        module, _, path = name.partition(":")
        return self._take(module, path)

    def _tuple(self, held: list[Any]) -> tuple[Any, ...]:
        return tuple(self.value(each) for each in held)

    def _dict(self, held: list[list[Any]]) -> dict[Any, Any]:
        return {self.value(key): self.value(each) for key, each in held}

    def _number(self, text: str) -> float:
        return float(text)

    def _dtype(self, name: str) -> torch.dtype:
        found = getattr(torch, name, None)
        if not isinstance(found, torch.dtype):
            raise CannotRetrain(f"torch has no dtype {name}")
        return found

    def _device(self, name: str) -> torch.device:
        try:
            return torch.device(name)
        except RuntimeError:
            raise CannotRetrain(f"torch has no device {name}") from None

    def _array(self, key: str) -> Any:
        if self._arrays is None:
            self._arrays = self._states(VALUES)
        return self._arrays[key]

    def _method(self, held: list[Any]) -> Any:
        return getattr(self.value(held[0]), held[1])

    def _partial(self, held: list[Any]) -> Any:
        args, keywords = self.value(held[1]), {name: self.value(v) for name, v in held[2]}
        return functools.partial(self.value(held[0]), *args, **keywords)

    def _make(self, each: Made) -> Any:
        args = [self.value(arg) for arg in each.args]
        keywords = {name: self.value(v) for name, v in each.keywords.items()}
        if each.kind == "made":
            return self._called(each, self._code(each.call), args, keywords)
        if each.kind == "optimizer":
            groups = self._groups(self._states(_state_name(each.name)))
            return self._called(each, self._code(each.call), [groups], keywords)
        if each.kind == "torch.Generator":
            return torch.Generator(*args)
        if each.kind == "numpy.Generator":
            bits = getattr(np.random, str(args[0]) if args else "", None)
            if not (isinstance(bits, type) and issubclass(bits, np.random.BitGenerator)):
                raise CannotRetrain(f"numpy has no bit generator {args}")
            return np.random.Generator(bits(0))
        return random.Random() if each.kind == "Random" else np.random.RandomState()  # noqa: S311

    def _called(self, each: Made, call: Any, args: list[Any], keywords: Mapping[str, Any]) -> Any:
        try:
            return call(*args, **keywords)
        except MvcError:
            raise
        except Exception as error:
            raise CannotRetrain(
                f"{each.name} cannot be made again: {each.call}: {type(error).__name__}: {error}"
            ) from error

    def _groups(self, state: Mapping[str, Any]) -> list[dict[str, Any]]:
        parameters = dict(self._objects["model"].named_parameters(remove_duplicate=False))
        return [{"params": [parameters[n] for n in group["names"]]} for group in state["groups"]]

    def _set(self, each: Made) -> None:
        obj, state = self._objects[each.name], self._states(_state_name(each.name))
        try:
            if each.kind not in {"made", "optimizer"}:
                _set_generator_state(obj, each.kind, state)
            elif isinstance(obj, torch.optim.Optimizer):
                Placement(self._objects["model"], obj, state).apply()
            else:
                obj.load_state_dict(state)
        except MvcError:
            raise
        except Exception as error:
            raise CannotRetrain(
                f"the state of {each.name} cannot be set: {type(error).__name__}: {error}"
            ) from error
