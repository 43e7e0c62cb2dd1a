"""Versions with a recipe made by hand: their weights are given up and stored again untrained.

A recipe carries the arguments that a test makes the state from, so a replay costs nothing. torch is
not imported: processes without it start and are forked faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from blake3 import blake3
from msgspec.structs import replace

from mvc.api import CommitOptions, Repository
from mvc.ids import CommitId
from mvc.model.statement import ReplayProof
from mvc.names import RECIPE
from mvc.recipes.recipe import STEPS, BaseState, Batches, Data, Model, Recipe, Result, recipe_of
from mvc.recipes.weights import alternative
from mvc.repo.handle import Handle
from mvc.state import StateFile
from mvc.store.journal.entries import Entry, StateMark

__all__ = [
    "CODE",
    "ITSELF",
    "OPTIMIZER",
    "PATH",
    "check_carried",
    "drop",
    "full_state",
    "recipe_of_state",
    "stepped",
    "store_again",
    "trained",
]  # fmt: skip

PATH = "model.safetensors"
CODE = b"def train(model): ...\n"
OPTIMIZER = {"lr": 0.1}
ITSELF = CommitId(bytes(32))
_CARRIED = {
    "code/net.py": CODE,
    "environment.json": b"{}",
    "service/optimizer.safetensors": OPTIMIZER,
}
Make = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def trained(
    repo: Repository,
    make: Make,
    arguments: Mapping[str, Any],
    base: CommitId,
    data: CommitId | None = None,
    options: CommitOptions | None = None,
    **keywords: Any,
) -> CommitId:
    """Commits ``make(arguments)`` with a recipe that says so."""
    state = make(arguments)
    recipe = recipe_of_state(state, arguments, base, data)
    chosen = replace(options or CommitOptions(), needs=recipe.needs)
    carried = {RECIPE: recipe.encoded(), **_CARRIED}
    return repo.commit(state, path=PATH, attachments=carried, options=chosen, **keywords).id


def full_state(
    repo: Repository,
    state: Mapping[str, Any],
    data: CommitId | None = None,
    *,
    last: Batches | None = None,
    base: CommitId = ITSELF,
    **keywords: Any,
) -> CommitId:
    """Commits a full state of a training by steps; ``last`` led to it."""
    steps = recipe_of_state(state, {}, base, data)
    carried = {STEPS: steps.encoded(), **_CARRIED}
    needs = () if data is None else (data,)
    if last is not None:
        carried[RECIPE], needs = last.encoded(), (*needs, last.start, last.before)
    options = CommitOptions(needs=tuple({*needs}))
    return repo.commit(state, path=PATH, attachments=carried, options=options, **keywords).id


def stepped(
    repo: Repository,
    state: Mapping[str, Any],
    batches: Batches,
    data: CommitId | None = None,
    **keywords: Any,
) -> CommitId:
    """Commits what batches are said to have made."""
    needs = {batches.start, batches.before, *(() if data is None else (data,))}
    options, carried = CommitOptions(needs=tuple(needs)), {RECIPE: batches.encoded()}
    return repo.commit(state, path=PATH, attachments=carried, options=options, **keywords).id


def recipe_of_state(
    state: Mapping[str, Any],
    arguments: Mapping[str, Any],
    base: CommitId,
    data: CommitId | None,
) -> Recipe:
    return Recipe(
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


def prove(
    context: Handle, version: CommitId, path: str, taken: int = 5, base: CommitId | None = None
) -> None:
    """A proof that no replay has made."""
    proof = ReplayProof(
        subject=version, path=path, base=base or version, milliseconds=taken, environment="by hand"
    )
    context.store.publish(lambda: Entry("prove", 1, statements=(proof,)))


def mark_dropped(context: Handle, version: CommitId, path: str = "model.safetensors") -> None:
    """Weights that are given up without a proof."""
    marks = (StateMark(version, "dropped", path),)
    context.store.publish(lambda: Entry("drop-weights", 1, states=marks))


def drop(repo: Repository, *versions: CommitId) -> None:
    """Gives up weights; the proofs are written by hand."""
    for version in versions:
        recipe = recipe_of(repo, version)
        taken, base = round(recipe.seconds * 1000), recipe.base.version
        prove(repo.handle, version, recipe.makes.path, taken, base)
    repo.storage.drop_weights({version: alternative(repo, version) for version in versions})


def store_again(repo: Repository, version: CommitId, make: Make) -> None:
    """The replay is ``make``."""
    from mvc.recipes import verbs

    @contextmanager
    def replaying(repo: Repository, version: CommitId, *_: Any) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(file=StateFile.of(make(recipe_of(repo, version).arguments)))

    with patch.object(verbs, "replaying", replaying):
        verbs.store_weights(repo, version)


def check_carried(repo: Repository, version: CommitId) -> Recipe:
    """All that a version carries comes back. Returns its recipe."""
    assert repo.attachment(version, "code/net.py") == CODE
    assert repo.attachment(version, "environment.json") == b"{}"
    assert repo.attachment(version, "service/optimizer.safetensors") == OPTIMIZER
    return recipe_of(repo, version)
