"""The Recorder of a training whose versions can be made again from the rows of their batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from msgspec import Struct
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from mvc.api import Repository
from mvc.errors import CannotRecord, WrongUsage
from mvc.ids import CommitId
from mvc.names import DEFAULT_STATE, RECIPE
from mvc.pipelines import Pipeline
from mvc.recipes import dataset
from mvc.recipes.description import Description, refuse_model, refuse_process_group
from mvc.recipes.making import making_of
from mvc.recipes.recipe import DRAWN, STEPS, BaseState, Batches
from mvc.recipes.stepwise.prover import Prover
from mvc.recipes.stepwise.stepping import Numbered, Stepping, rows_text
from mvc.training.checks import RecorderKeywords, whole
from mvc.training.recorder import StateRecorder
from mvc.training.resume import Resumed
from mvc.training.state.rng import rng_state
from mvc.training.step_notes import ProofReport

_ITSELF = CommitId(bytes(32))


class Recorder(StateRecorder):
    """Records a training's state; use it as a context manager, or ``close`` it.

    ``repo`` is an open Repository, or the path of an existing one, which the recorder opens and
    closes. ``include`` names any of ``model``, ``optimizer``, ``scheduler``, ``scaler``, ``rng``;
    by default everything that is passed, and the random generators. Every ``every``-th step is
    recorded. ``when_full`` says what a step does when the queue is full: ``block`` waits,
    ``coalesce`` replaces the version that waits, ``drop`` leaves this one out. ``queue_bytes``
    bounds the bytes that are staged (default: two states). Versions go onto ``branch`` (default:
    the current one), wherever HEAD goes meanwhile; if HEAD is detached, they follow it.
    ``deploy`` is the target on which each version goes live, as of the call. If somebody else
    deploys or rolls back there, or the setting ``deploy.protect`` names it, versions are committed
    and not deployed any more, until ``deploy_again``. ``push`` names the
    remote to which the branch is pushed, behind the commits; one that is away stops nothing, and
    gets later what it missed. ``metrics`` and
    ``params`` are added to every version: a mapping, or a function that returns one. ``start`` is
    the number of steps done before, or what ``mvc.resume`` returned; by default those of the
    version that ``mvc.resume`` set the model to, and else 0. After a resume every version names
    the one that training went on from. ``message`` is put before each version's own; ``author`` is
    as for ``commit``. ``run`` names the training that the versions belong to; after a resume it is
    by default that of the version that the training went on from.
    ``pipeline`` is text, or Requirements, which ``commit`` explains.

    Without ``pipeline`` versions are exact, and coded as the setting ``commit.pipeline`` says,
    unless that is ``lc`` or its kind: such a pipeline stores approximate weights and moments, from
    which the training can be resumed (docs/lc.md). With another lossy one a version holds
    production weights, made in the recorder's thread; the training's own weights are not touched.
    That thread calls ``on_deploy`` with every version once it is durable; with ``deploy_first``
    before it is stored, so that a crash can lose what was live (docs/production.md).
    ``evaluate(state, data)`` returns an accuracy from 0 to 1, or (accuracy,
    samples), for ``dsed``; ``monitor(data)`` returns what ``drift`` watches: a number, or one for
    each sample. ``exact`` names tensors, beside the buffers, that must not change.
    ``keep_training`` also stores the training weights, exactly; without them such a version
    cannot be resumed.

    With a ``recipe``, a function that makes a step as ``recipe(model, optimizer, batch)``, each
    version can be made again from the rows of its batches in ``data``: ``train`` calls it. Every
    ``full_every``-th version keeps the whole training state. With ``prove`` another process
    replays each segment between two of these, and the weights of versions that it made again bit
    for bit are dropped (docs/recorder.md). Raises CannotRecord for what cannot be made again.

    Call it from one thread, the one that trains. Raises WrongUsage naming an argument that
    cannot be right, InvalidName, InvalidPipeline, NotARepository, and UnknownRevision for a branch
    that does not exist.
    """

    def __init__(
        self,
        repo: Repository | str | PathLike[str],
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        recipe: Callable[..., object] | None = None,
        data: Any = None,
        full_every: int = 15,
        prove: bool = False,
        scheduler: Any = None,
        scaler: Any = None,
        include: Sequence[str] | None = None,
        every: int = 1,
        start: int | Resumed | None = None,
        **options: Unpack[RecorderKeywords],
    ) -> None:
        notes = None
        if recipe is None and (prove or data is not None):
            raise WrongUsage(
                "data and prove belong to a recipe", hint="name the function: recipe=train_step"
            )
        if recipe is not None:
            if not callable(recipe) or not hasattr(data, "__getitem__"):
                raise WrongUsage(
                    "a recipe is a function that makes a step, with data that has data[row]",
                    hint="recipe=train_step, data=mvc.constructed(...)",
                )
            if scheduler is None:
                given = getattr(recipe, "keywords", {}).values()
                scheduler = next((each for each in given if isinstance(each, LRScheduler)), None)
            stepping = Stepping(recipe, model, optimizer, data)
            path = options.get("name", DEFAULT_STATE)
            notes = _Notes(stepping, path, whole("full_every", full_every, 1), prove=prove)
        super().__init__(
            repo, model, optimizer, scheduler=scheduler, scaler=scaler, include=include,
            every=every, start=start, steps=notes, **options,
        )  # fmt: skip
        self._data = data

    def loader(self, **arguments: Any) -> DataLoader[Any]:
        """A DataLoader of the recipe's data with these arguments; it yields rows and batch.

        ``for rows, batch in recorder.loader(batch_size=64): recorder.train(rows, batch)``
        """
        return DataLoader(Numbered(self._data), **arguments)


class _Step(Struct, frozen=True):
    """The rows of a batch, and the random generators before it, if not the step changed them."""

    rows: str
    drawn: Mapping[str, Any] | None


class _Full(Struct, frozen=True):
    """What a full state carries. ``fresh``: no step of the training led to it."""

    attached: Mapping[str, Any]
    fresh: bool


class _Notes:
    """The ``StepNotes`` of one training."""

    def __init__(self, stepping: Stepping, path: str, every: int, *, prove: bool) -> None:
        self._stepping, self._path, self._every, self._prove = stepping, path, every, prove
        self._trained: dict[int, _Step] = {}  # since the last durable version, by position
        self._full: dict[int, _Full] = {}  # staged
        self._position, self._versions, self._fresh = 0, 0, True
        self._after: Mapping[str, Any] | None = None  # the random generators after the last step
        self._start: CommitId | None = None
        self._before: CommitId | None = None

    def open(self, repo: Repository, pipeline: str | None) -> None:
        stages = Pipeline.parse(pipeline or str(repo.config.get("commit.pipeline")))
        if stages.forward_only or (pipeline and (stages.lossy or stages.decisions)):
            raise CannotRecord(
                f"a recipe makes exact weights again, and the pipeline {stages.text} stores others",
                hint="leave out pipeline=, or recipe=",
            )
        refuse_model(self._stepping.model)
        refuse_process_group()
        self._data = dataset.used(repo, {path.name: path for path in _paths(self._stepping.data)})
        self._described()
        self._prover = Prover(repo, prove=self._prove)

    def _described(self) -> Mapping[str, Any]:
        stepping = self._stepping
        description = Description(stepping.model, self._data, self._path)
        value = description.describer.value
        service = value(stepping.function, "recipe")
        given = {"optimizer": stepping.optimizer, "data": stepping.data}
        arguments = {name: value(each, name) for name, each in given.items()}
        recipe, attached = description.recipe(
            BaseState(_ITSELF, self._path), service, arguments=arguments
        )
        return {STEPS: recipe.encoded(), **attached}

    def train(self, rows: Sequence[int], batch: Any) -> Any:
        given = rows.tolist() if hasattr(rows, "tolist") else rows
        if not isinstance(given, Iterable):
            raise WrongUsage("rows is no list: it names the positions of a batch in the data")
        places, most = [whole("a row", row, 0) for row in given], len(self._stepping.data)
        if not places:
            raise WrongUsage("a batch has no rows")
        if max(places) >= most:
            raise WrongUsage(f"row {max(places)} is beyond the data, which has {most}")
        now = rng_state()
        drawn = None if self._after is not None and _same(now, self._after) else now
        done = self._stepping.step(places, batch)
        self._after = rng_state()
        self._position += 1
        self._trained[self._position] = _Step(rows_text(places), drawn)
        return done

    def begin(self) -> tuple[int, bool]:
        full = self._fresh or self._versions % self._every == 0
        if full:
            self._full[self._position] = _Full(self._described(), self._fresh)
            self._fresh, self._versions = False, 0
        self._versions += 1
        return self._position, full

    def restart(self) -> None:
        self._fresh = True

    def carried(self, position: int) -> tuple[Mapping[str, Any], Collection[CommitId]]:
        full, attached = self._full.get(position), dict[str, Any]()
        if full is not None:
            attached.update(full.attached)
        if self._start is None or self._before is None or (full is not None and full.fresh):
            return attached, [each.version for each in self._data.data] if full else ()
        steps = [step for at, step in list(self._trained.items()) if at <= position]
        drawn = {str(at): step.drawn for at, step in enumerate(steps) if step.drawn is not None}
        batches = Batches(
            self._start, self._before, tuple(s.rows for s in steps), tuple(map(int, drawn))
        )
        attached[RECIPE] = batches.encoded()
        if drawn:
            attached[DRAWN] = drawn
        return attached, {self._start, self._before, *(d.version for d in self._data.data)}

    def committed(self, position: int, step: int, commit: CommitId) -> None:
        full = self._full.get(position)
        if self._start is not None and (full is None or not full.fresh):
            self._prover.made(commit, step, ends=full is not None)
        if full is not None:
            self._start = commit
        self._before = commit
        for notes in (self._full, self._trained):
            for at in [at for at in list(notes) if at <= position]:
                del notes[at]

    def finish(self) -> None:
        self._prover.finish()

    @property
    def report(self) -> ProofReport:
        return self._prover.report


def _paths(obj: Any) -> Iterator[Path]:
    """The paths among the arguments of what ``constructed`` made."""
    making = making_of(obj)
    for each in () if making is None else (*making.args, *making.keywords.values()):
        if isinstance(each, Path):
            yield each
        else:
            yield from _paths(each)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether random generators are in the same states."""
    a, b = one["numpy"], other["numpy"]
    return (
        torch.equal(one["torch"], other["torch"])
        and len(one["cuda"]) == len(other["cuda"])
        and all(map(torch.equal, one["cuda"], other["cuda"]))
        and np.array_equal(a["keys"], b["keys"])
        and {**a, "keys": None} == {**b, "keys": None}
        and np.array_equal(one["python"]["words"], other["python"]["words"])
        and one["python"]["gauss"] == other["python"]["gauss"]
    )
