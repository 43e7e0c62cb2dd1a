"""Records a training so that it can be run again: ``with mvc.record(repo, ...) as run``.

What runs is a function of a module, or an object with a method ``train``: their source is recorded.
The body of a ``with`` block has none that could be run by itself, so it only says when.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any, Self

import torch
from msgspec import Struct
from msgspec.structs import replace

from mvc.api import CommitOptions, CommitResult, Dropped, FileEntry, Repository
from mvc.errors import CannotRecord, CannotRetrain, MvcError, WrongUsage
from mvc.files import MemorySource, parse
from mvc.models.models import Architecture
from mvc.names import RECIPE, printable
from mvc.recipes import dataset
from mvc.recipes.description import Description, refuse_model, refuse_process_group
from mvc.recipes.recipe import BaseState, Recipe, Result, is_made_whole
from mvc.recipes.replay import ReplayOptions, made_again
from mvc.recipes.service import Describer, counting_steps
from mvc.recipes.weights import alternative, is_cheaper
from mvc.state import StateFile
from mvc.times import check_seconds
from mvc.training.state.parts import kernels
from mvc.types import Progress


class RunOptions(Struct, frozen=True):
    """What ``mvc.record`` takes by name.

    ``deterministic``: torch uses deterministic kernels alone while the service runs.
    """

    path: str
    message: str = ""
    metrics: Mapping[str, Any] | None = None
    params: Mapping[str, Any] | None = None
    deploy: str | None = None
    branch: str | None = None
    deterministic: bool = True
    verify: bool = True
    drop_weights: bool | None = None
    timeout: float | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None:
            check_seconds("timeout", self.timeout)


class Run:
    """One recorded training. ``train`` runs the service; the end of the block commits.

    ``trained`` takes a file that the service made elsewhere instead. ``result`` is the commit,
    ``recipe`` what was recorded, ``seconds`` the service took, ``proof_seconds`` the replay with
    its process, ``gave_up`` whether the weights were given up. ``metrics`` may be added to until
    the block ends.
    """

    def __init__(
        self,
        repo: Repository,
        model: torch.nn.Module | Architecture,
        optimizer: torch.optim.Optimizer | None,
        service: Any,
        data: dataset.Given,
        options: RunOptions,
    ) -> None:
        self.result: CommitResult | None = None
        self.recipe: Recipe | None = None
        self.seconds = self.proof_seconds = 0.0
        self.gave_up = False
        self.metrics = dict(options.metrics or {})
        live = model.model if isinstance(model, Architecture) else model
        self._repo, self._model, self._optimizer = repo, live, optimizer
        self._architecture = model
        self._service, self._given, self._options = service, data, options
        self._entered = self._called = False
        self._attached: dict[str, Any] = {}
        self._state: dict[str, Any] = {}
        self._start: dict[str, Any] | None = None
        self._file: StateFile | None = None

    def __enter__(self) -> Self:
        """Checks everything that does not depend on the arguments of ``train``.

        Raises CannotRecord, which names what cannot be recorded and where it is.
        """
        if self._options.drop_weights and not self._options.verify:
            raise WrongUsage(
                "weights are given up only for a recipe that a replay has proven, and verify=False "
                "makes no replay",
                hint="leave one of them out; mvc.retrain(repo, ..., trust=True) proves "
                "recipes later",
            )
        refuse_model(self._model)
        refuse_process_group()
        self._base = _base(self._repo, self._model, self._options)
        if self._options.verify and isinstance(
            self._repo.availability(self._base.version), Dropped
        ):
            start = self._model.state_dict().items()
            self._start = {name: value.detach().clone() for name, value in start}
        self._data = dataset.used(self._repo, self._given)
        self._outside = dataset.outside(self._repo, self._data.data)
        if self._outside and self._options.drop_weights:
            raise CannotRecord(
                f"the data lie outside of mvc: {', '.join(self._outside)}; if they change, weights "
                "that were given up are lost",
                hint="leave out drop_weights, or store the data with 'mvc import --data'",
            )
        self._description = Description(self._architecture, self._data, self._options.path)
        self._call, self._passed = self._described(self._description.describer)
        self._entered = True
        return self

    def _described(self, describer: Describer) -> tuple[Any, dict[str, Any]]:
        """The value of the service, and what a function is given beside its arguments."""
        service, optimizer = self._service, self._optimizer
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise WrongUsage("the optimizer is none of torch", hint="pass others to the service")
        if inspect.isclass(service):
            raise WrongUsage(
                f"service is the class {service.__qualname__}: called, it makes an object",
                hint="pass a function of a module, train(model, ...), or an object of the class",
            )
        train = getattr(service, "train", None)
        if not inspect.isroutine(service) and callable(train):
            value = describer.value(service, "service")
            if optimizer is not None and not describer.knows(optimizer):
                raise CannotRecord(
                    "the service does not use the optimizer that was passed",
                    hint="pass it to the constructor of the service, within mvc.constructed(...)",
                )
            self._function: Callable[..., Any] = train
            return {"method": [value, "train"]}, {}
        if not callable(service):
            raise WrongUsage(
                f"service is of type {type(service).__qualname__}, which cannot train",
                hint="pass a function of a module, train(model, ...), or an object with a method "
                "train(model, ...)",
            )
        self._function = service
        passed: dict[str, Any] = {} if optimizer is None else {"optimizer": optimizer}
        if self._data.argument is not None:
            passed["data"] = self._data.argument
        return describer.value(service, "service"), passed

    def train(self, **arguments: Any) -> Any:
        """Calls the service with the model, and returns what it returns.

        A function is called as ``service(model, optimizer=..., data=..., **arguments)`` with what
        was passed of these, an object as ``service.train(model, **arguments)``. Gradients are
        cleared first. Raises CannotRecord for an argument that cannot be recorded, and
        WrongUsage for arguments that the service does not take, before it is called.
        """
        keywords = self._keywords(arguments)
        with kernels(self._options.deterministic or None):
            recipe = self._prepare(keywords)
            self._model.zero_grad(set_to_none=True)
            began = time.monotonic()
            with counting_steps() as steps:
                done = self._function(self._model, **keywords)
            self.seconds = time.monotonic() - began
        self._data.check_unchanged()
        self._state, path = dict(self._model.state_dict()), self._options.path
        self._file = _file(self._state)
        self.recipe = replace(
            recipe, makes=Result(path, self._file.root), seconds=self.seconds, steps=steps.count
        )
        return done

    def trained(self, file: str | PathLike[str], **arguments: Any) -> None:
        """Takes a file as what the service made of the model, elsewhere, in place of calling it.

        The file is committed, at the ``path`` that ``record`` was given. ``arguments`` are
        those of ``train``. Objects and random generators are recorded as they are now, so a
        service that draws random numbers has to seed the generators itself. Whether all this makes
        the file is not known before the proof. Raises CannotRecord for a file with other tensors
        than the model, WrongUsage for one at another path.
        """
        keywords, path = self._keywords(arguments), self._repo.tracked_name(file)
        if path != self._options.path:
            raise WrongUsage(
                f"{printable(path)} is not at {printable(self._options.path)}, where this training "
                "keeps its model",
                hint="mvc.record(repo, ..., path=NAME) names the file as it is tracked",
            )
        self._file = parse(MemorySource(Path(file).read_bytes()), path)
        _refuse_other_tensors(self._file.entry, path, self._model)
        with kernels(self._options.deterministic or None):
            recipe = self._prepare(keywords)
        self.recipe = replace(recipe, makes=Result(path, self._file.root))

    def _keywords(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What the service is called with beside the model; from now on the block is used."""
        if not self._entered:
            raise WrongUsage(
                "nothing is recorded yet: use it in a with block",
                hint="with mvc.record(repo, ...) as run: run.train(...)",
            )
        if self._called:
            raise WrongUsage(
                "one block records one call of run.train",
                hint="begin another 'with mvc.record(repo, ...)' for the next version",
            )
        keywords = {**self._passed, **arguments}
        try:
            inspect.signature(self._function).bind(self._model, **keywords)
        except TypeError as error:
            raise WrongUsage(f"the service cannot be called so: {error}") from None
        self._called = True
        return keywords

    def _prepare(self, keywords: Mapping[str, Any]) -> Recipe:
        """The recipe without its result; the random state is read last."""
        value = self._description.describer.value
        described = {name: value(given, name) for name, given in keywords.items()}
        recipe, self._attached = self._description.recipe(self._base, self._call, described)
        return recipe

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        """Commits the model, unless the block failed; then proves the recipe, if asked to."""
        if error is not None:
            return
        if self.recipe is None:
            raise WrongUsage("nothing was trained in this block", hint="call run.train(...) in it")
        options, recipe = self._options, self.recipe
        now = dict(self._model.state_dict())
        if self._state and _file(now).root != recipe.makes.root:
            raise CannotRecord(
                "the model was changed after run.train, which a replay would not do",
                hint="change it within the service, or in a version of its own",
            )
        self.result = self._commit(recipe)
        gives_up = bool(options.drop_weights)
        if options.verify:
            began = time.monotonic()
            with _kept(self.result):
                replay = ReplayOptions(
                    trusted={self.result.id},
                    timeout=options.timeout,
                    progress=options.progress,
                    start=self._start,
                )
                with made_again(self._repo, self.result.id, replay) as done:
                    seconds = done.seconds
            self.proof_seconds = time.monotonic() - began
            with suppress(CannotRetrain):  # its data lie outside, or a base is not proven
                again = alternative(self._repo, self.result.id, seconds)
                gives_up |= options.drop_weights is None and is_cheaper(
                    self._repo, self.result.id, again
                )
        if gives_up:
            with _kept(self.result):
                again = alternative(self._repo, self.result.id)
                self._repo.storage.drop_weights({self.result.id: again})
            self.gave_up = True

    def _commit(self, recipe: Recipe) -> CommitResult:
        options = self._options
        done = self._repo.commit(
            states={options.path: self._file},
            message=options.message,
            metrics=self.metrics,
            params=options.params,
            deploy=options.deploy,
            attachments={RECIPE: recipe.encoded(), **self._attached},
            options=CommitOptions(branch=options.branch, needs=recipe.needs),
        )
        return replace(done, state=self._state or None)


@contextmanager
def _kept(result: CommitResult) -> Iterator[None]:
    """Has an error of the proof say what has become of the version."""
    try:
        yield
    except MvcError as error:
        error.message += f"; {result.id.short} is committed and keeps its weights"
        error.args = (error.message,)
        raise


def _refuse_other_tensors(entry: FileEntry, path: str, model: torch.nn.Module) -> None:
    """Raises CannotRecord for a file that is not the state of the model and nothing else."""
    shown, own = printable(path), set(model.state_dict())
    if not entry.tensors or not is_made_whole(entry):
        raise CannotRecord(
            f"{shown} is no file that a recipe can make again",
            hint="save the model's state_dict, and nothing else, as a safetensors file",
        )
    other = sorted(own ^ {tensor.key for tensor in entry.tensors})
    if other:
        lacks = f"{shown} lacks" if other[0] in own else "the model lacks"
        raise CannotRecord(
            f"{shown} is not the state of this model: {lacks} {printable(other[0])}",
            hint="save the state_dict of the model that the training was given",
        )


def _file(state: Mapping[str, Any]) -> StateFile:
    """What a commit of this state stores."""
    try:
        file = StateFile.of(state)
        _ = file.entry
    except MvcError as error:
        raise CannotRecord(f"the model cannot be kept: {error.message}", hint=error.hint) from error
    return file


def _base(repo: Repository, model: torch.nn.Module, options: RunOptions) -> BaseState:
    """The version and path that hold the model's weights as they are now, HEAD preferred."""
    entry = _file(dict(model.state_dict())).entry
    if not entry.tensors:
        raise CannotRecord("the model has no tensors")
    at = repo.head(options.branch).commit
    if at is not None:
        for there in repo.manifest(at).entries:
            if there.tensors and there.state.root == entry.state.root:
                return BaseState(at, there.path)
    for found in repo.identify(entry):
        if found.path is not None:
            return BaseState(found.commit, found.path)
    raise CannotRecord(
        "the model's weights are those of no version, so there is nothing to train them from",
        hint="commit them first: repo.commit(model.state_dict())",
    )
