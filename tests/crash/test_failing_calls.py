"""Every call of an operation fails once, or from there on (SQLite's method).

Each time the error is one of mvc's, the repository is as before or as after, and the
same thing works as soon as nothing fails any more.
"""

from __future__ import annotations

import errno
import random
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import MvcError, Unattainable
from mvc.repo.commit.request import CommitOptions, FileOptions
from mvc.testing import FailingFS, fresh_process, open_quietly
from tests.counters import count
from tests.crash import maintenance
from tests.crash.images import folder_in_memory
from tests.crash.state import (
    Contents,
    State,
    check_arrays,
    check_swept,
    check_version,
    reachable,
    state_of,
)
from tests.recipes import by_hand as recipes
from tests.seeds import draw

ERRORS: dict[str, Any] = {
    "ENOSPC": errno.ENOSPC,
    "EIO": errno.EIO,
    "EMFILE": errno.EMFILE,
    "EINTR": errno.EINTR,
    "short": "short",
    "MemoryError": MemoryError,
}
FIRST = {"w": np.arange(4000, dtype=np.float32), "b": np.ones(5)}
SECOND = {"w": FIRST["w"] + 1, "b": np.ones(5)}
THIRD = {"w": FIRST["w"] * np.float32(1.0001), "b": np.ones(6)}
UNDONE = {"w": FIRST["w"] + 2, "b": np.zeros(5)}


def _thing(arguments: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
    """What a recipe makes."""
    return {"SECOND": SECOND, "THIRD": THIRD}[arguments["name"]]


FILE = bytes(range(256)) * 40
Act = Callable[[Repository], object]


@dataclass
class World:
    """Three versions; a fourth one was undone, nothing leads to it any more."""

    root: Path
    state: State
    contents: dict[Any, Contents]


def make(root: Path) -> World:
    with Repository.init(root) as repo:
        first = repo.commit(FIRST).id
        (root / "file.bin").write_bytes(FILE)
        second = repo.commit("file.bin", files=FileOptions(cwd=root)).id
        third = recipes.trained(
            repo, _thing, {"name": "THIRD"}, first, options=CommitOptions(reset_point=True)
        )
        fourth = repo.commit(UNDONE).id
        repo.undo()
        contents: dict[Any, Contents] = {
            first: {"model.safetensors": FIRST},
            second: {"model.safetensors": FIRST, "file.bin": FILE},
            third: {"model.safetensors": THIRD, "file.bin": FILE},
            fourth: {"model.safetensors": UNDONE, "file.bin": FILE},
        }
        return World(root, state_of(repo.handle), contents)


# -- operations


def commit(repo: Repository) -> None:
    repo.commit(SECOND, deploy="prod")


def commit_and_index(repo: Repository) -> None:
    repo.commit(SECOND, deploy="prod")
    repo.handle.store.snapshot.index_tail(force=True)


def commit_recipe(repo: Repository) -> None:
    base = state_of(repo.handle).commits[0]
    arguments = {"name": "SECOND"}
    recipes.trained(
        repo, _thing, arguments, base, deploy="prod", message="again",
        options=CommitOptions(allow_empty=True),
    )  # fmt: skip


def checkout(repo: Repository) -> None:
    check_arrays(repo.checkout("main~1", path="model.safetensors"), FIRST)


def restore(repo: Repository) -> None:
    repo.checkout("main~1", to=repo.root)


def collect(repo: Repository) -> None:
    maintenance.collect(repo.handle)


def repack(repo: Repository) -> None:
    """The third version is a reset point no more: its tensors become deltas."""
    with suppress(Unattainable):  # it is none already: an attempt that failed was one step further
        maintenance.repack(repo.handle, remove=state_of(repo.handle).commits[2:3])


def give_up(repo: Repository) -> None:
    """The weights of the third version go, and come back."""
    third = state_of(repo.handle).commits[2]
    recipes.drop(repo, third)
    maintenance.collect(repo.handle)
    recipes.store_again(repo, third, _thing)


def forget(repo: Repository) -> None:
    maintenance.forget_named(repo.handle, state_of(repo.handle).commits[0])


def undo(repo: Repository) -> None:
    repo.undo()


def rebuild(repo: Repository) -> None:
    repo.handle.store.snapshot.rebuild_index()


ACTS: list[Act] = [
    commit, commit_and_index, commit_recipe, checkout, restore, collect, repack, give_up,
    forget, undo, rebuild,
]  # fmt: skip
MAKES_A_COMMIT: list[Act] = [commit, commit_and_index, commit_recipe]
COLLECTS: list[Act] = [collect, give_up]


def check_after(world: World, act: Act, failed: bool) -> None:
    """Sound, as before or one operation further; and now it works."""
    fresh_process()
    with open_quietly(world.root) as repo:
        now = state_of(repo.handle)
        _check_change(world, act, now, failed)
        file = world.root / "file.bin"
        assert file.read_bytes() == FILE if file.exists() else act is restore
        for commit_id in now.commits:
            check_version(repo, now, commit_id, world.contents[commit_id])
        act(repo)
        assert repo.storage.fsck(full=True).problems == ()
        if act in MAKES_A_COMMIT:
            check_arrays(repo.checkout("HEAD", path="model.safetensors"), SECOND)
        left = [p.name for p in world.root.iterdir() if p.name.startswith(".mvc-tmp-")]
        assert len(left) <= 1  # where nothing works, what was begun cannot be taken away
        collect(repo)
        check_swept(repo.handle)


def _check_change(world: World, act: Act, now: State, failed: bool) -> None:
    before = world.state
    assert now.deployments == before.deployments or act in MAKES_A_COMMIT
    if act in MAKES_A_COMMIT:
        new = now.commits[len(before.commits) :]
        assert now.commits[: len(before.commits)] == before.commits
        assert len(new) <= 1
        assert len(now.deployments) == len(new)
        for made in new:
            world.contents[made] = {"model.safetensors": SECOND, "file.bin": FILE}
    elif act in COLLECTS:
        assert now.refs == before.refs
        assert set(now.dropped) <= (set(before.commits[2:3]) if failed else set())
        assert now.commits in (before.commits, before.commits[:3])
    elif act is forget:
        assert now.forgotten in ((), before.commits[:1])
        assert now.commits == before.commits
    elif act in (undo, restore):
        assert now.commits == before.commits
    else:
        assert now == before
    if not failed and act in (*COLLECTS, forget, undo, restore, *MAKES_A_COMMIT):
        assert now != before


def attempt(world: World, act: Act, fs: FailingFS) -> BaseException | None:
    """Runs an operation; what it raised."""
    fresh_process()
    repo = None
    try:
        repo = open_quietly(world.root, fs=fs)
        act(repo)
    except (MvcError, MemoryError) as error:
        return error
    finally:
        if repo is not None:
            repo.close()
    return None


def fail_once(
    folder: Path, template: World, act: Act, n: int, error: Any, persistent: bool
) -> tuple[int, bool]:
    """Calls that failed, and whether the operation did; everything is checked afterwards."""
    root = folder / "try"
    shutil.copytree(template.root, root)
    world = World(root, template.state, dict(template.contents))
    fs = FailingFS(fail_at=n, error=error, persistent=persistent)
    failed = attempt(world, act, fs)
    if not fs.failures or error == "short":
        assert failed is None
    elif failed is not None:
        assert isinstance(failed, MemoryError) == (error is MemoryError)
    check_after(world, act, failed is not None)
    shutil.rmtree(root)
    return fs.failures, failed is not None


def fail_each(otherwise: Path, act: Act, error: Any, persistent: bool) -> None:
    """Call after call, until a run has none that could fail."""
    n = failures = 0
    with folder_in_memory(otherwise) as folder:
        template = make(folder / "template")
        while True:
            n += 1
            struck, failed = fail_once(folder, template, act, n, error, persistent)
            if not struck:
                break
            failures += failed
    count(f"failing calls, {act.__name__}", tried=n - 1, failed=failures, max_calls=n - 1)
    assert n > 3
    assert failures or error in ("short", errno.EINTR)


def calls_of(folder: Path, template: World, act: Act, error: Any) -> int:
    """How many calls of an operation the error could strike."""
    root = folder / "counted"
    shutil.copytree(template.root, root)
    fs = FailingFS(error=error)
    assert attempt(World(root, template.state, {}), act, fs) is None
    shutil.rmtree(root)
    return fs.calls


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_a_failing_call(act: Act, tmp_path: Path) -> None:
    rng: random.Random = draw("failing calls")
    failures = 0
    with folder_in_memory(tmp_path) as folder:
        template = make(folder / "template")
        for name, error in ERRORS.items():
            if act is checkout and name == "ENOSPC":
                continue  # a checkout into memory writes nothing
            calls = calls_of(folder, template, act, error)
            for persistent in (False,) if error == errno.EINTR else (False, True):
                n = rng.randint(1, calls)
                failures += fail_once(folder, template, act, n, error, persistent)[1]
    count(f"failing calls, {act.__name__}", tried=2 * len(ERRORS) - 1, failed=failures)
    assert failures


@pytest.mark.long
@pytest.mark.parametrize("persistent", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_every_failing_call(act: Act, error: str, persistent: bool, tmp_path: Path) -> None:
    if act is checkout and error == "ENOSPC":
        pytest.skip("a checkout into memory writes nothing")
    if persistent and error == "EINTR":
        pytest.skip("an interrupted call is made again, for ever if need be")
    fail_each(tmp_path, act, ERRORS[error], persistent)


@contextmanager
def interrupted(seconds: float) -> Iterator[list[int]]:
    """A signal arrives that often, so that system calls are broken off (EINTR)."""
    arrived: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: arrived.append(number))
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield arrived
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_interrupted_calls_are_made_again(act: Act, tmp_path: Path) -> None:
    world = make(tmp_path / "repo")
    with Repository.open(world.root) as repo, interrupted(0.0003) as arrived:
        act(repo)
    assert arrived
    with Repository.open(world.root) as repo:
        now = state_of(repo.handle)
        _check_change(world, act, now, failed=False)
        assert reachable(repo.handle) <= set(now.commits)
        for commit_id in now.commits:
            check_version(repo, now, commit_id, world.contents[commit_id])
        assert repo.storage.fsck(full=True).problems == ()
