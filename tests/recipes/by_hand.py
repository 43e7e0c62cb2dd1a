"""Versions with a recipe made by hand: their weights are given up and stored again untrained.

A recipe carries the arguments that a test makes the state from, so a replay costs nothing. torch is
imported where weights are given up or stored again: processes that do neither start faster and
are forked faster without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from blake3 import blake3

from mvc.ids import CommitId
from mvc.model.statement import ReplayProof
from mvc.names import RECIPE
from mvc.recipes.recipe import BaseState, Data, Model, Recipe, Result, recipe_of
from mvc.repo import attached
from mvc.repo.commit.committing import commit_states
from mvc.repo.commit.request import CommitRequest
from mvc.repo.context import Context
from mvc.state import StateFile
from mvc.store.journal.entries import Entry, StateMark

__all__ = ["CODE", "OPTIMIZER", "PATH", "check_carried", "drop", "store_again", "trained"]

PATH = "model.safetensors"
CODE = b"def train(model): ...\n"
OPTIMIZER = {"lr": 0.1}
Make = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def trained(
    context: Context,
    make: Make,
    arguments: Mapping[str, Any],
    base: CommitId,
    data: CommitId | None = None,
    **options: Any,
) -> CommitId:
    """Commits ``make(arguments)`` with a recipe that says so."""
    state = make(arguments)
    recipe = Recipe(
        makes=Result(PATH, StateFile.of(state).root),
        base=BaseState(base, PATH),
        data=() if data is None else (Data("digits", data, file=""),),
        model=Model({"code": "net:Net"}, frozen=(), evaluating=(), device="cpu"),
        objects=(),
        service={"code": "net:train"},
        arguments=arguments,
        packages={},
        code={"code/net.py": blake3(CODE).hexdigest()},
        seconds=1.0,
        steps=1,
    )
    carried = {
        RECIPE: recipe.encoded(),
        "code/net.py": CODE,
        "environment.json": b"{}",
        "service/optimizer.safetensors": OPTIMIZER,
    }
    request = CommitRequest((), attachments=carried, needs=recipe.needs, **options)
    return commit_states(
        context, {PATH: StateFile.of(state)}, PATH, request=request, whole=False
    ).id


def prove(context: Context, version: CommitId, path: str, taken: int = 5) -> None:
    """A proof that no replay has made."""
    proof = ReplayProof(
        subject=version, path=path, base=version, milliseconds=taken, environment="by hand"
    )
    context.store.publish(lambda: Entry("prove", 1, statements=(proof,)))


def mark_dropped(context: Context, version: CommitId, path: str = "model.safetensors") -> None:
    """Weights that are given up without a proof."""
    marks = (StateMark(version, "dropped", path),)
    context.store.publish(lambda: Entry("drop-weights", 1, states=marks))


def drop(context: Context, *versions: CommitId) -> None:
    """Gives up weights; the proofs are written by hand."""
    from mvc.recipes import weights

    for version in versions:
        recipe = recipe_of(context, version)
        taken = round(recipe.seconds * 1000)
        prove(context, version, recipe.makes.path, taken)
    weights.drop(context, versions)


def store_again(context: Context, version: CommitId, make: Make) -> None:
    """The replay is ``make``."""
    from mvc.recipes import weights
    from mvc.recipes.replay import ReplayOptions

    @contextmanager
    def made_again(context: Context, version: CommitId, *_: Any) -> Iterator[SimpleNamespace]:
        state = make(recipe_of(context, version).arguments)
        yield SimpleNamespace(state=state, seconds=1.0, where="by hand")

    with patch.object(weights, "made_again", made_again):
        weights.store_again(context, version, ReplayOptions())


def check_carried(context: Context, version: CommitId) -> Recipe:
    """All that a version carries comes back. Returns its recipe."""
    assert attached.read(context, version, "code/net.py") == CODE
    assert attached.read(context, version, "environment.json") == b"{}"
    assert attached.state(context, version, "service/optimizer.safetensors") == OPTIMIZER
    return recipe_of(context, version)
