"""The Recorder of a training whose versions can be made again from the rows of their batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from msgspec import Struct

from mvc.api import Repository
from mvc.errors import WrongUsage
from mvc.ids import CommitId
from mvc.names import DEFAULT_STATE, RECIPE
from mvc.recipes import dataset
from mvc.recipes.description import Description, refuse_model, refuse_process_group
from mvc.recipes.making import making_of
from mvc.recipes.prover import Prover
from mvc.recipes.recipe import DRAWN, STEPS, BaseState, Batches
from mvc.recipes.stepping import Stepping, rows_text
from mvc.training import recorder
from mvc.training.checks import RecorderKeywords, whole
from mvc.training.resume import Resumed
from mvc.training.state.rng import rng_state
from mvc.training.step_notes import ProofReport

_ITSELF = CommitId(bytes(32))


class Recorder(recorder.Recorder):
    """A ``mvc.training`` Recorder, also of a training whose versions can be made again.

    With a ``recipe``, a function that makes a step as ``recipe(model, optimizer, batch)``, each
    version can be made again from the rows of its batches in ``data``: ``train`` calls it. Every
    ``full_every``-th version keeps the whole training state. With ``prove`` another process
    replays each segment between two of these, and the weights of versions that it made again bit
    for bit are dropped (docs/recorder.md). Raises CannotRecord for what cannot be made again.
    """

    def __init__(
        self,
        repo: Repository | str | PathLike[str],
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        recipe: Callable[..., Any] | None = None,
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
        if recipe is not None:
            stepping = Stepping(recipe, model, optimizer, data)
            path = options.get("name", DEFAULT_STATE)
            notes = _Notes(stepping, path, whole("full_every", full_every, 1), prove=prove)
        super().__init__(
            repo, model, optimizer, scheduler=scheduler, scaler=scaler, include=include,
            every=every, start=start, steps=notes, **options,
        )  # fmt: skip


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

    def open(self, repo: Repository) -> None:
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
        places = [whole("a row", row, 0) for row in rows]
        if not places:
            raise WrongUsage("a batch has no rows")
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
