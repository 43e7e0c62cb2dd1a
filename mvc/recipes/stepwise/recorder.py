"""The Recorder: records the states of a training as versions.

With a recipe (a function that runs one training step), the Recorder also records the batch of each
step, as rows of the data. A replay can then run the steps again, and reproduce the versions.
"""

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
from mvc.training.checks import RecorderKeywords, whole_number
from mvc.training.recorder import StateRecorder
from mvc.training.resume import Resumed
from mvc.training.state.rng import rng_state
from mvc.training.step_notes import ProofReport

_ITSELF = CommitId(bytes(32))


class Recorder(StateRecorder):
    """Records a training's state; use the recorder as a context manager, or call ``close``.

    ``repo`` is an open Repository, or the path of a repository, which the recorder opens and
    closes. ``include`` lists the parts to record: ``model``, ``optimizer``, ``scheduler``,
    ``scaler``, ``rng``. By default the recorder records all objects that were passed, and the
    random generators. The recorder records every ``every``-th step. Recorded states wait in a queue
    for the recorder's thread. If the queue is full, ``when_full`` decides: ``block`` waits,
    ``coalesce`` replaces the newest waiting version, ``drop`` skips the new version.
    ``queue_bytes`` limits the memory for queued states (default: two states). ``name`` is the path
    of the model's file.

    Versions are committed to ``branch``. By default this is the branch that is current at the
    start, even if you switch to another branch later. If HEAD is detached at the start, HEAD moves
    to each new version. If ``deploy`` names a target, every version is deployed to this target. A
    deployment of an exact version is recorded with the time of the call of ``step``. If another
    client deploys to the target or rolls the target back, or if the setting ``deploy.protect``
    names the target, versions are committed but no longer deployed. ``deploy_again`` resumes the
    deployments. ``push`` is a remote to which the branch is pushed after the commits. An
    unreachable remote does not stop the training; a later push sends the missing versions.

    ``metrics`` and ``params`` are added to every version. Each of the two is a mapping, or a
    function that returns a mapping. The message of each version begins with ``message``. ``author``
    is as for ``commit``. ``start`` is the number of steps done before this recorder, or the result
    of ``mvc.resume``. By default, ``start`` is the number of steps of the version that
    ``mvc.resume`` loaded into the model, or 0. After a resume, every version records which version
    the training resumed from. ``run`` names the training. After a resume, ``run`` is by default the
    name in the version that the training resumed from.

    ``pipeline`` is as for ``commit``. Without ``pipeline``, the recorder uses the setting
    ``commit.pipeline``, and versions are exact unless this setting is ``lc`` or a similar pipeline.
    With ``lc``, versions contain approximate weights and optimizer moments, from which the training
    can be resumed (docs/lc.md). With any other lossy ``pipeline``, a version contains production
    weights: weights near the training weights, computed in the recorder's thread to make deltas
    small. The training's own weights do not change. ``exact`` names tensors that a lossy pipeline
    must not change, in addition to the buffers. With ``keep_training``, a version of production
    weights also stores the exact training weights. Without the training weights, no training can be
    resumed from the version.

    The recorder's thread calls ``on_deploy`` with each version, after the version is durable. With
    ``deploy_first``, the thread calls ``on_deploy`` before the version is stored. A crash can then
    lose a version that is already in use (docs/production.md). ``evaluate`` and ``monitor`` are for
    stages of a lossy pipeline that decide which versions are stored. ``evaluate(state, data)``
    returns an accuracy from 0 to 1, or a pair (accuracy, number of samples), for the stages
    ``dsed`` and ``guard``. ``monitor(data)`` returns the value that the stage ``drift`` watches: a
    number, or one number for each sample.

    ``recipe`` is a function for one step, called as ``recipe(model, optimizer, batch)``. With a
    recipe, call ``train`` instead of ``step``. Each version can then be replayed from the rows of
    its batches in ``data``. Every ``full_every``-th version is a full state: it stores the whole
    training state. With ``prove``, another process replays the versions between the full states.
    The weights of a version that was reproduced bit for bit are dropped (docs/recorder.md). Raises
    CannotRecord for objects that cannot be replayed.

    Call the methods only from the training's thread. Raises WrongUsage, which names an invalid
    argument; InvalidName; InvalidPipeline; NotARepository; TargetProtected; UnknownRevision if the
    branch does not exist.
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
                "data and prove need a recipe", hint="pass the function: recipe=train_step"
            )
        if recipe is not None:
            if not callable(recipe) or not hasattr(data, "__getitem__"):
                raise WrongUsage(
                    "a recipe needs a function for one step, and data with data[row]",
                    hint="recipe=train_step, data=mvc.constructed(...)",
                )
            if scheduler is None:
                arguments = getattr(recipe, "keywords", {}).values()
                scheduler = next((a for a in arguments if isinstance(a, LRScheduler)), None)
            stepping = Stepping(recipe, model, optimizer, data)
            path = options.get("name", DEFAULT_STATE)
            notes = _Notes(stepping, path, whole_number("full_every", full_every, 1), prove=prove)
        super().__init__(
            repo, model, optimizer, scheduler=scheduler, scaler=scaler, include=include,
            every=every, start=start, steps=notes, **options,
        )  # fmt: skip
        self._data = data

    def loader(self, **arguments: Any) -> DataLoader[Any]:
        """A DataLoader of the recipe's data with these arguments. The DataLoader yields pairs: the
        rows (positions in the data) of a batch, and the batch.

        ``for rows, batch in recorder.loader(batch_size=64): recorder.train(rows, batch)``
        """
        return DataLoader(Numbered(self._data), **arguments)


class _Step(Struct, frozen=True):
    """A training step. ``rows``: the rows of the batch. ``drawn``: the states of the random
    generators before the step, if other code had changed the generators since the preceding step;
    otherwise None.
    """

    rows: str
    drawn: Mapping[str, Any] | None


class _Full(Struct, frozen=True):
    """The additional files of a version that is a full state.

    ``fresh``: whether recording starts from this state, so that no recorded step led to it.
    """

    attached: Mapping[str, Any]
    fresh: bool


class _Notes:
    """The ``StepNotes`` of one training: what a ``StateRecorder`` records about the steps."""

    def __init__(self, stepping: Stepping, path: str, every: int, *, prove: bool) -> None:
        self._stepping, self._path, self._every, self._prove = stepping, path, every, prove
        self._trained: dict[int, _Step] = {}  # steps after the newest durable version, by number
        self._full: dict[int, _Full] = {}  # full states that are not yet durable, by step
        self._position, self._versions, self._fresh = 0, 0, True
        self._after: Mapping[str, Any] | None = None  # random generators after the newest step
        self._start: CommitId | None = None
        self._before: CommitId | None = None

    def open(self, repo: Repository, pipeline: str | None) -> None:
        stages = Pipeline.parse(pipeline or str(repo.config.get("commit.pipeline")))
        if stages.forward_only or (pipeline and (stages.lossy or stages.decisions)):
            raise CannotRecord(
                f"a recipe reproduces exact weights, but the pipeline {stages.text} changes them",
                hint="remove pipeline=, or recipe=",
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
        objects = {"optimizer": stepping.optimizer, "data": stepping.data}
        arguments = {name: value(obj, name) for name, obj in objects.items()}
        recipe, attached = description.recipe(
            BaseState(_ITSELF, self._path), service, arguments=arguments
        )
        return {STEPS: recipe.encoded(), **attached}

    def train(self, rows: Sequence[int], batch: Any) -> Any:
        row_list = rows.tolist() if hasattr(rows, "tolist") else rows
        if not isinstance(row_list, Iterable):
            raise WrongUsage("rows is not a list of the batch's positions in the data")
        places, most = [whole_number("a row", row, 0) for row in row_list], len(self._stepping.data)
        if not places:
            raise WrongUsage("a batch has no rows")
        if max(places) >= most:
            raise WrongUsage(f"row {max(places)} is beyond the data, which has {most}")
        current = rng_state()
        drawn = None if self._after is not None and _same(current, self._after) else current
        result = self._stepping.step(places, batch)
        self._after = rng_state()
        self._position += 1
        self._trained[self._position] = _Step(rows_text(places), drawn)
        return result

    def begin(self) -> tuple[int, bool]:
        full = self._fresh or self._versions % self._every == 0
        if full:
            self._full[self._position] = _Full(self._described(), self._fresh)
            self._fresh, self._versions = False, 0
        self._versions += 1
        return self._position, full

    def restart(self) -> None:
        self._fresh = True

    def attachments(self, position: int) -> tuple[Mapping[str, Any], Collection[CommitId]]:
        full, attached = self._full.get(position), dict[str, Any]()
        if full is not None:
            attached.update(full.attached)
        if self._start is None or self._before is None or (full is not None and full.fresh):
            return attached, [data.version for data in self._data.data] if full else ()
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
            self._prover.note_version(commit, step, ends=full is not None)
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
    """The paths among the arguments of an object that ``constructed`` created."""
    making = making_of(obj)
    for argument in () if making is None else (*making.args, *making.keywords.values()):
        if isinstance(argument, Path):
            yield argument
        else:
            yield from _paths(argument)


def _same(a_states: Mapping[str, Any], b_states: Mapping[str, Any]) -> bool:
    """Whether the random generators have the same states in both mappings."""
    a, b = a_states["numpy"], b_states["numpy"]
    return (
        torch.equal(a_states["torch"], b_states["torch"])
        and len(a_states["cuda"]) == len(b_states["cuda"])
        and all(map(torch.equal, a_states["cuda"], b_states["cuda"]))
        and np.array_equal(a["keys"], b["keys"])
        and {**a, "keys": None} == {**b, "keys": None}
        and np.array_equal(a_states["python"]["words"], b_states["python"]["words"])
        and a_states["python"]["gauss"] == b_states["python"]["gauss"]
    )
