"""Records a training so that mvc can repeat it: ``with mvc.record(repo, ...) as run``.

The user passes a *service*, the code that trains: a function of a module, or an object with a
method ``train``. ``run.train(...)`` calls the service, and records this call in a *recipe*. A
*replay* makes the recorded call a second time. If the replay computes the same weights bit for bit,
the recipe is proven. A replay does not run the other code of the ``with`` block.
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
from mvc.recipes.recipe import BaseState, Recipe, Result, is_whole_state
from mvc.recipes.replay import ReplayOptions, replaying
from mvc.recipes.service import Describer, counting_steps
from mvc.recipes.weights import alternative, is_cheaper
from mvc.state import StateFile
from mvc.times import check_seconds
from mvc.training.state.parts import kernels
from mvc.types import Progress


class RunOptions(Struct, frozen=True):
    """Keyword arguments of ``mvc.record``.

    ``deterministic``: torch uses only deterministic kernels while the service runs.
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
    """One recorded training. Call ``train`` or ``trained`` once. The end of the block commits.

    ``result``: the commit. ``recipe``: the recorded recipe. ``seconds``: how long the service ran.
    ``proof_seconds``: how long the replay took, including the start of its process.
    ``weights_dropped``: whether the weights were deleted, because a replay can compute them.
    ``metrics``: metrics of the commit, which you may change in the block.
    """

    def __init__(
        self,
        repo: Repository,
        model: torch.nn.Module | Architecture,
        optimizer: torch.optim.Optimizer | None,
        service: Any,
        data: dataset.DataArgument,
        options: RunOptions,
    ) -> None:
        self.result: CommitResult | None = None
        self.recipe: Recipe | None = None
        self.seconds = self.proof_seconds = 0.0
        self.weights_dropped = False
        self.metrics = dict(options.metrics or {})
        live = model.model if isinstance(model, Architecture) else model
        self._repo, self._model, self._optimizer = repo, live, optimizer
        self._architecture = model
        self._service, self._data_argument, self._options = service, data, options
        self._entered = self._called = False
        self._attached: dict[str, Any] = {}
        self._state: dict[str, Any] = {}
        self._start: dict[str, Any] | None = None
        self._file: StateFile | None = None

    def __enter__(self) -> Self:
        """Checks the arguments of ``mvc.record``, and stores new data sets.

        Raises WrongUsage, and CannotRecord for an argument that cannot be recorded.
        """
        if self._options.drop_weights and not self._options.verify:
            raise WrongUsage(
                "drop_weights needs a recipe proven by a replay, and verify=False makes no replay",
                hint="remove drop_weights or verify=False; mvc.retrain(repo, ..., trust=True) "
                "proves a recipe later",
            )
        refuse_model(self._model)
        refuse_process_group()
        self._base = _base(self._repo, self._model, self._options)
        if self._options.verify and isinstance(
            self._repo.availability(self._base.version), Dropped
        ):
            start = self._model.state_dict().items()
            self._start = {name: value.detach().clone() for name, value in start}
        self._data = dataset.used(self._repo, self._data_argument)
        self._outside = dataset.outside(self._repo, self._data.data)
        if self._outside and self._options.drop_weights:
            raise CannotRecord(
                f"the data are stored outside of mvc: {', '.join(self._outside)}; if these change, "
                "dropped weights are lost",
                hint="remove drop_weights, or store the data with 'mvc import --data'",
            )
        self._description = Description(self._architecture, self._data, self._options.path)
        self._call, self._passed = self._described(self._description.describer)
        self._entered = True
        return self

    def _described(self, describer: Describer) -> tuple[Any, dict[str, Any]]:
        """Returns the description of the service in the recipe, and the keyword arguments that
        ``train`` adds to the user's. Only a function gets added arguments: ``optimizer``, ``data``.
        """
        service, optimizer = self._service, self._optimizer
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise WrongUsage(
                "the optimizer is not a torch optimizer",
                hint="pass the optimizer to the service instead",
            )
        if inspect.isclass(service):
            raise WrongUsage(
                f"service is the class {service.__qualname__}, not a function or an object",
                hint="pass a function of a module, train(model, ...), or an object of the class",
            )
        train = getattr(service, "train", None)
        if not inspect.isroutine(service) and callable(train):
            value = describer.value(service, "service")
            if optimizer is not None and not describer.knows(optimizer):
                raise CannotRecord(
                    "the service does not use the optimizer that was passed",
                    hint="pass the optimizer to the constructor of the service, within "
                    "mvc.constructed(...)",
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
        """Calls the service with the model, and returns the service's result.

        A function is called as ``service(model, optimizer=..., data=..., **arguments)``, with the
        optimizer and data that were passed to ``record``. An object is called as
        ``service.train(model, **arguments)``. The model's gradients are cleared before the call. If
        an argument cannot be recorded, raises CannotRecord before the call. Raises WrongUsage for
        arguments that the service does not accept.
        """
        keywords = self._keywords(arguments)
        with kernels(self._options.deterministic or None):
            recipe = self._prepare(keywords)
            self._model.zero_grad(set_to_none=True)
            began = time.monotonic()
            with counting_steps() as steps:
                result = self._function(self._model, **keywords)
            self.seconds = time.monotonic() - began
        self._data.check_unchanged()
        self._state, path = dict(self._model.state_dict()), self._options.path
        self._file = _file(self._state)
        self.recipe = replace(
            recipe, makes=Result(path, self._file.root), seconds=self.seconds, steps=steps.count
        )
        return result

    def trained(self, file: str | PathLike[str], **arguments: Any) -> None:
        """Records a file that the service produced elsewhere, instead of calling the service.

        The file is committed at the ``path`` of ``record``. ``arguments`` are as for ``train``.
        Arguments and random generators are recorded as they are now, not as before the training. So
        a service that draws random numbers must seed the generators itself. Only a replay shows
        whether the recipe reproduces the file. Raises CannotRecord if the file has other tensors
        than the model, and WrongUsage if the file is not at ``path``.
        """
        keywords, path = self._keywords(arguments), self._repo.tracked_name(file)
        if path != self._options.path:
            raise WrongUsage(
                f"{printable(path)} is not at {printable(self._options.path)}, the path of this "
                "training's model",
                hint="mvc.record(repo, ..., path=NAME) sets the path",
            )
        self._file = parse(MemorySource(Path(file).read_bytes()), path)
        _refuse_other_tensors(self._file.entry, path, self._model)
        with kernels(self._options.deterministic or None):
            recipe = self._prepare(keywords)
        self.recipe = replace(recipe, makes=Result(path, self._file.root))

    def _keywords(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the keyword arguments for the service. Raises WrongUsage if they do not fit, or
        if this method was called before.
        """
        if not self._entered:
            raise WrongUsage(
                "the recording has not started: use a with block",
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
            raise WrongUsage(f"the service does not accept these arguments: {error}") from None
        self._called = True
        return keywords

    def _prepare(self, keywords: Mapping[str, Any]) -> Recipe:
        """Returns the recipe without the hash of the result, which is not known yet."""
        value = self._description.describer.value
        described = {name: value(argument, name) for name, argument in keywords.items()}
        recipe, self._attached = self._description.recipe(self._base, self._call, described)
        return recipe

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        """Commits the model, unless the block failed. With ``verify``, replays the recipe after the
        commit.
        """
        if error is not None:
            return
        if self.recipe is None:
            raise WrongUsage(
                "nothing was trained in this block", hint="call run.train(...) in the block"
            )
        options, recipe = self._options, self.recipe
        if self._state and _file(dict(self._model.state_dict())).root != recipe.makes.root:
            raise CannotRecord(
                "the model was changed after run.train; a replay cannot reproduce this change",
                hint="change the model in the service, or commit the change as another version",
            )
        self.result = self._commit(recipe)
        drops = bool(options.drop_weights)
        if options.verify:
            began = time.monotonic()
            with _noting_commit(self.result):
                replay = ReplayOptions(
                    trusted={self.result.id},
                    timeout=options.timeout,
                    progress=options.progress,
                    start=self._start,
                )
                with replaying(self._repo, self.result.id, replay) as replayed:
                    seconds = replayed.seconds
            self.proof_seconds = time.monotonic() - began
            with suppress(CannotRetrain):  # data outside of mvc, or an unproven base
                substitute = alternative(self._repo, self.result.id, seconds)
                drops |= options.drop_weights is None and is_cheaper(
                    self._repo, self.result.id, substitute
                )
        if drops:
            with _noting_commit(self.result):
                substitute = alternative(self._repo, self.result.id)
                self._repo.storage.drop_weights({self.result.id: substitute})
            self.weights_dropped = True

    def _commit(self, recipe: Recipe) -> CommitResult:
        options = self._options
        result = self._repo.commit(
            states={options.path: self._file},
            message=options.message,
            metrics=self.metrics,
            params=options.params,
            deploy=options.deploy,
            attachments={RECIPE: recipe.encoded(), **self._attached},
            options=CommitOptions(branch=options.branch, needs=recipe.needs),
        )
        return replace(result, state=self._state or None)


@contextmanager
def _noting_commit(result: CommitResult) -> Iterator[None]:
    """If the block raises an error, adds to the error's message that the version is committed."""
    try:
        yield
    except MvcError as error:
        error.message += f"; {result.id.short} is committed with its weights"
        error.args = (error.message,)
        raise


def _refuse_other_tensors(entry: FileEntry, path: str, model: torch.nn.Module) -> None:
    """Raises CannotRecord for a file that contains anything but the tensors of the model."""
    shown, own = printable(path), set(model.state_dict())
    if not entry.tensors or not is_whole_state(entry):
        raise CannotRecord(
            f"a recipe cannot reproduce {shown}",
            hint="save only the model's state_dict, as a safetensors file",
        )
    other = sorted(own ^ {tensor.key for tensor in entry.tensors})
    if other:
        lacks = f"{shown} lacks" if other[0] in own else "the model lacks"
        raise CannotRecord(
            f"{shown} is not the state of this model: {lacks} {printable(other[0])}",
            hint="save the state_dict of the model passed to mvc.record",
        )


def _file(state: Mapping[str, Any]) -> StateFile:
    """The model file with these tensors, in memory. Raises CannotRecord."""
    try:
        file = StateFile.of(state)
        _ = file.entry
    except MvcError as error:
        raise CannotRecord(
            f"the model cannot be stored: {error.message}", hint=error.hint
        ) from error
    return file


def _base(repo: Repository, model: torch.nn.Module, options: RunOptions) -> BaseState:
    """Finds a committed file with the model's current weights: returns its version and path.

    Searches the newest version of the branch first. Raises CannotRecord if there is no such file.
    """
    entry = _file(dict(model.state_dict())).entry
    if not entry.tensors:
        raise CannotRecord("the model has no tensors")
    at = repo.head(options.branch).commit
    if at is not None:
        for candidate in repo.manifest(at).entries:
            if candidate.tensors and candidate.state.root == entry.state.root:
                return BaseState(at, candidate.path)
    for match in repo.identify(entry):
        if match.path is not None:
            return BaseState(match.commit, match.path)
    raise CannotRecord(
        "no version has the model's current weights, so the recipe has no base",
        hint="commit the weights first: repo.commit(model.state_dict())",
    )
