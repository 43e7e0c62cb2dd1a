"""Processes that work on a repository are killed, at any time or at each call to the system.

``python -m tests.crash.kills random FOLDER SEED ROUNDS KILLS`` or ``... calls FOLDER SEED
SHARE``. A child does operations at random and says of each that it begins, and then what
state it left. After every kill another child looks: the repository is in the state of the
last word, or one operation further; and goes on from there, until it is killed in turn.
Prints counters as JSON.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from mvc.api.repository import Repository
from mvc.errors import RefConflict, StateForgotten, UnknownPath, WrongUsage
from mvc.ids import CommitId
from mvc.repo.commit.request import CommitOptions
from mvc.testing import HookedFS, open_quietly
from tests.crash import maintenance, treatments
from tests.crash.forks import Send, fork, run, warm_up
from tests.crash.state import (
    Checked,
    Lost,
    State,
    check_version,
    reachable,
    state_of,
)
from tests.crash.story import foreign_index
from tests.recipes import by_hand as recipes

_LONGEST = 0.06  # seconds until a kill
_LOOKED = 0.9  # share of workers that have looked, and begin to work, when that time begins
_SAMPLE = 3  # older versions that are recovered after each kill
_ALL_AFTER = 25  # after so many kills every version is, and fsck runs

_TREATED = 0.4  # share of workers whose index is treated before they begin; of looks likewise
_UNDER_WAY = 0.2  # share of workers whose index is treated while they work

Recipe = dict[str, int]
"""Path to the number that its state is computed from."""


@lru_cache(maxsize=256)
def arrays(number: int) -> dict[str, np.ndarray]:
    base = np.random.default_rng(1).standard_normal((30, 40)).astype(np.float32)
    base[number % 30] += np.float32(number)
    return {"w": base, "n": np.array(number)}


@dataclass
class World:
    """What is known of a repository. ``begun``: the operation that was not acknowledged."""

    root: Path
    state: State
    recipes: dict[CommitId, Recipe] = field(default_factory=dict)
    begun: tuple[str, Any] | None = None

    def treat_index(self, rng: random.Random) -> None:
        """What may happen to the index at any moment: it is deleted or exchanged."""
        foreign = self.root.parent / "foreign"
        if not foreign.exists():
            treatments.write(foreign, foreign_index())
        treatments.drawn(self.root, foreign, rng)

    def contents(self, commit: CommitId) -> dict[str, Any]:
        return {path: arrays(number) for path, number in self.recipes[commit].items()}


# -- operations: (repository, details)


def _commit(repo: Repository, detail: Any) -> None:
    path, number, target = detail
    repo.commit(
        arrays(number), path=path, deploy=target, options=CommitOptions(reset_point=number % 5 == 0)
    )


def again(arguments: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What the recipe of a version makes."""
    return arrays(arguments["number"])


def _train(repo: Repository, detail: Any) -> None:
    path, number, target = detail
    base = _head(state_of(repo.handle))
    assert base is not None and path == recipes.PATH
    recipes.trained(repo, again, {"number": number}, base, deploy=target)


def _drop(repo: Repository, detail: Any) -> None:
    with suppress(UnknownPath, StateForgotten):  # it has no recipe, or what it needs is gone
        recipes.drop(repo, detail)


def _retrain(repo: Repository, detail: Any) -> None:
    with suppress(StateForgotten):
        recipes.store_again(repo, detail, again)


def _undo(repo: Repository, detail: Any) -> None:
    with suppress(RefConflict):
        repo.undo()


def _forget(repo: Repository, detail: Any) -> None:
    with suppress(RefConflict, WrongUsage):
        maintenance.forget_named(repo.handle, detail)


OPERATIONS: dict[str, tuple[Callable[[Repository, Any], object], int]] = {
    "commit": (_commit, 10),
    "train": (_train, 3),
    "drop": (_drop, 3),
    "retrain": (_retrain, 1),
    "deploy": (lambda repo, target: repo.deploy("HEAD", target), 2),
    "branch": (lambda repo, name: repo.branch(name), 2),
    "undo": (_undo, 3),
    "gc": (lambda repo, _: maintenance.collect(repo.handle), 3),
    "repack": (lambda repo, interval: maintenance.repack(repo.handle, interval), 2),
    "forget": (_forget, 1),
    "index": (lambda repo, _: repo.handle.store.snapshot.rebuild_index(), 1),
}


def _detail(name: str, state: State, rng: random.Random) -> Any:
    number = rng.getrandbits(30)
    if name == "commit":
        path = rng.choice((recipes.PATH, recipes.PATH, "other.safetensors"))
        if _head(state) is None or _head(state) in state.dropped:
            path = recipes.PATH  # a version on top of it must have weights of its own
        return path, number % 1000, rng.choice((None, None, None, "prod"))
    if name == "train":
        return recipes.PATH, number % 1000, None
    if name == "repack":
        return rng.choice((2, 5))
    if name in {"forget", "drop"}:
        return rng.choice(state.commits)
    if name == "retrain":
        return rng.choice(state.dropped or state.commits)
    return f"{name}{number}"


def work(world: World, seed: int, everything: bool, send: Send) -> None:
    """Looks at what the last kill left; then operations at random until this process is killed."""
    rng = random.Random(seed)
    names, weights = list(OPERATIONS), [weight for _, weight in OPERATIONS.values()]
    with open_quietly(world.root) as repo:
        _check(world, repo, rng, everything)
        send((world.state, world.recipes))
        while True:
            # An undo of the first commit leaves HEAD without a version.
            name = rng.choices(names, weights)[0] if _head(world.state) else "commit"
            detail = _detail(name, world.state, rng)
            send((name, detail))
            OPERATIONS[name][0](repo, detail)
            _take_in(world, name, detail, state_of(repo.handle))
            send((world.state, world.recipes))


def _head(state: State) -> CommitId | None:
    refs = dict(state.refs)
    at = refs["HEAD"]
    return at if isinstance(at, CommitId) else refs.get(f"heads/{at}")


def _take_in(world: World, name: str, detail: Any, now: State) -> None:
    """An operation has led from the world's state to ``now``: is that what it does?"""
    then = world.state
    new = [commit for commit in now.commits if commit not in world.recipes]
    same = {
        "commits": now.commits == then.commits,
        "refs": now.refs == then.refs,
        "deployments": now.deployments == then.deployments,
        "forgotten": now.forgotten == then.forgotten,
        "dropped": now.dropped == then.dropped,
    }
    may: set[str] = set()
    if name in {"commit", "train"}:
        path, number, target = detail
        may = {"commits", "refs"} | ({"deployments"} if target else set())
        if now.commits != (*then.commits, *new) or len(new) != 1 or _head(now) != new[0]:
            raise Lost(f"a commit led from {then} to {now}")
        head = _head(then)
        before = {} if head is None else world.recipes[head]
        world.recipes[new[0]] = {**before, path: number}
    elif name == "gc":
        may = {"commits", "forgotten", "dropped"}
        if set(now.dropped) != set(then.dropped) & set(now.commits):
            raise Lost(f"gc led from {then} to {now}")
        if not set(now.commits) <= set(then.commits) or not set(now.forgotten) <= set(
            then.forgotten
        ):
            raise Lost(f"gc led from {then} to {now}")
    elif name in {"drop", "retrain"}:
        may = {"dropped"}
        if not set(now.dropped) ^ set(then.dropped) <= {detail}:
            raise Lost(f"{name} led from {then} to {now}")
    elif name == "forget":
        may = {"forgotten"}
        if not set(then.forgotten) <= set(now.forgotten) <= {*then.forgotten, detail}:
            raise Lost(f"forget led from {then} to {now}")
    else:
        may = {"branch": {"refs"}, "undo": {"refs"}, "deploy": {"deployments"}}.get(name, may)
    if changed := [what for what, is_same in same.items() if not is_same and what not in may]:
        raise Lost(f"{name} changed {changed}: from {then} to {now}")
    world.state = now


def look(world: World, seed: int, everything: bool, send: Send) -> None:
    """After a kill, in a process of its own."""
    with open_quietly(world.root) as repo:
        _check(world, repo, random.Random(seed), everything)
    send((world.state, world.recipes))


def _check(world: World, repo: Repository, rng: random.Random, everything: bool) -> None:
    """The state that was acknowledged or the next one, versions bit for bit."""
    found = state_of(repo.handle)
    if found != world.state:
        if world.begun is None:
            raise Lost(f"found {found}, acknowledged was {world.state}")
        _take_in(world, *world.begun, found)
    if not reachable(repo.handle, found) <= set(found.commits):
        raise Lost(f"something leads to what is gone: {found}")
    commits = list(found.commits)
    if not everything:
        commits = [*commits[-1:], *rng.sample(commits, min(_SAMPLE, len(commits)))]
    checked: Checked = {}
    for commit in commits:
        check_version(repo, found, commit, world.contents(commit), checked)
    if everything and (problems := repo.storage.fsck(full=rng.random() < 0.2).problems):
        raise Lost(f"fsck: {problems}")


def kill_at_random(folder: Path, seed: int, rounds: int, kills: int) -> dict[str, int]:
    rng = random.Random(seed)
    counted = {
        "kills": 0,
        "acknowledged": 0,
        "killed_before_they_worked": 0,
        "index_treated": 0,
        "lost": 0,
    }
    for round_ in range(rounds):
        world = _fresh(folder / f"round{round_}")
        for i in range(kills):
            counted["index_treated"] += _perhaps(rng, _TREATED, world)
            worker_seed, whole = rng.getrandbits(32), i % _ALL_AFTER == 0
            child = fork(lambda send, w=world, s=worker_seed, e=whole: work(w, s, e, send))  # type: ignore[misc]
            if rng.random() < _LOOKED:
                child.hear()
            child.listen(rng.random() * _LONGEST)
            if _perhaps(rng, _UNDER_WAY, world):
                counted["index_treated"] += 1
                child.listen(rng.random() * _LONGEST)
            child.kill()
            told, status = child.end()
            assert status == -signal.SIGKILL, f"a worker ended by itself: {status}"
            counted["kills"] += 1
            # The first of these words says what was found, not what was done.
            counted["acknowledged"] += max(0, sum(isinstance(word[0], State) for word in told) - 1)
            counted["killed_before_they_worked"] += len(told) < 2
            _hear(world, told)
            counted["index_treated"] += _perhaps(rng, _TREATED, world)
        _look(world, rng.getrandbits(32), True)
        shutil.rmtree(world.root)
    return counted


def _perhaps(rng: random.Random, share: float, world: World) -> bool:
    """Treats the index in that share of the cases; whether it did."""
    treated = rng.random() < share
    if treated:
        world.treat_index(rng)
    return treated


def _hear(world: World, told: list[Any]) -> None:
    for word in told:
        if isinstance(word[0], State):
            world.state, world.recipes = word
        else:
            world.begun = word


def _look(world: World, seed: int, everything: bool) -> None:
    ((world.state, world.recipes),) = run(lambda send: look(world, seed, everything, send))


def _fresh(root: Path) -> World:
    def make(send: Send) -> None:
        with Repository.init(root) as repo:
            send(state_of(repo.handle))

    return World(root, run(make)[0])


def _small_world(root: Path) -> World:
    """Seven versions, one of them undone and one forgotten, another path, a deployment.

    Two have a recipe; the weights of one of them are gone.
    """

    def make(send: Send) -> None:
        world = World(root, state_of(Repository.init(root).handle))
        with open_quietly(root) as repo:
            for number in range(5):
                detail = ("model.safetensors" if number != 3 else "other.safetensors", number, None)
                (_train if number == 2 else _commit)(repo, detail)
                _take_in(world, "commit", detail, state_of(repo.handle))
            repo.undo()
            world.state = state_of(repo.handle)
            for name, detail in (
                ("train", (recipes.PATH, 7, None)),
                ("drop", None),
                ("commit", (recipes.PATH, 8, None)),
            ):
                detail = detail or world.state.commits[5]
                OPERATIONS[name][0](repo, detail)
                _take_in(world, name, detail, state_of(repo.handle))
            repo.storage.gc()  # within the grace, all but given up weights stays
            repo.deploy("HEAD", "prod")
            maintenance.forget_named(repo.handle, world.state.commits[0])
            send((state_of(repo.handle), world.recipes))

    state, known = run(make)[0]
    return World(root, state, known)


def kill_at_each_call(folder: Path, seed: int, share: float) -> dict[str, int]:
    """One process for every call of every operation (or a share of them), killed there."""
    rng = random.Random(seed)
    template = _small_world(folder / "template")
    counted = {"kills": 0, "index_treated": 0, "lost": 0}
    for name in OPERATIONS:
        detail = {
            "commit": ("model.safetensors", 99, "prod"),
            "repack": 1,
            "train": (recipes.PATH, 77, None),
            "drop": template.state.commits[2],
            "retrain": template.state.commits[5],
            "forget": template.state.commits[1],
        }.get(name, f"{name}-new")
        call, killed = 0, True
        while killed:
            call += 1 if share == 1 else rng.randrange(1, round(2 / share))
            root = folder / f"{name}{call}"
            shutil.copytree(template.root, root)
            world = World(root, template.state, dict(template.recipes), (name, detail))
            at = call
            child = fork(lambda send, w=world, n=at: _die(w, n, send))  # type: ignore[misc]
            told, status = child.end()
            killed = status == -signal.SIGKILL
            assert killed or status == 0, f"{name} ended with {status}"
            assert not told
            counted["kills"] += killed
            counted["index_treated"] += _perhaps(rng, _TREATED, world)
            _look(world, rng.getrandbits(32), True)
            run(lambda send, w=world: _go_on(w))  # type: ignore[misc]
            shutil.rmtree(root)
    return counted


def _die(world: World, call: int, send: Send) -> None:
    def hook(number: int, op: str, path: Path) -> None:
        if number == call:
            os.kill(os.getpid(), signal.SIGKILL)

    assert world.begun is not None
    name, detail = world.begun
    with open_quietly(world.root, fs=HookedFS(hook)) as repo:
        OPERATIONS[name][0](repo, detail)


def _go_on(world: World) -> None:
    """Without any further ado a commit and a collection work."""
    with open_quietly(world.root) as repo:
        detail = ("model.safetensors", 123, None)
        for name, what in (("commit", detail), ("gc", None)):
            OPERATIONS[name][0](repo, what)
            _take_in(world, name, what, state_of(repo.handle))
        for commit in world.state.commits:
            check_version(repo, world.state, commit, world.contents(commit))


def main(how: str, folder: Path, seed: int, *numbers: str) -> None:
    import_module("mvc.recipes.weights")  # and torch: no fork of this process is to import it
    run(lambda send: warm_up(folder / "warm"))
    warm_up(folder / "warm-parent")
    if how == "random":
        counted = kill_at_random(folder, seed, int(numbers[0]), int(numbers[1]))
    else:
        counted = kill_at_each_call(folder, seed, float(numbers[0]))
    print(json.dumps(counted))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
