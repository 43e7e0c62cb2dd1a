"""Any operation beside maintenance, in every order of their calls to the system.

The first one stops before its i-th call; the second one runs up to its j-th call, or to
its end; then both go on. Clocks differ by up to a day. Nobody may be left with a reference
to something that is gone; what was acknowledged is whole.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import MvcError, StateForgotten, WeightsDropped
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.maintenance import gc
from mvc.repo.commit.request import CommitOptions
from mvc.testing import FixedClock, fresh_process, open_quietly
from tests.counters import count
from tests.crash import maintenance
from tests.crash.images import folder_in_memory
from tests.crash.state import (
    Contents,
    check_arrays,
    check_version,
    reachable,
    state_of,
)
from tests.faults.scheduled import Run, ScheduledFS, interleave
from tests.recipes import by_hand as recipes
from tests.seeds import draw

DAY_NS = 86_400 * 10**9
NOW_NS = 1_750_000_000_000_000_000
Arrays = dict[str, np.ndarray]


def _arrays(step: int) -> Arrays:
    base = np.random.default_rng(1).standard_normal((40, 30)).astype(np.float32)
    return {"w": base + np.float32(step) * np.float32(1e-3), "b": np.full(20, step, np.float32)}


def again(arguments: Mapping[str, Any]) -> Arrays:
    """What a recipe makes."""
    return _arrays(arguments["step"])


GONE, NEXT = _arrays(2), _arrays(3)


@dataclass
class World:
    """A repository with two versions and a third one that was undone: nothing leads to it.

    The second one has a recipe.
    """

    root: Path
    commits: list[CommitId] = field(default_factory=list)
    contents: dict[CommitId, Contents] = field(default_factory=dict)

    @property
    def gone(self) -> CommitId:
        return self.commits[2]

    def copy(self, root: Path) -> World:
        shutil.copytree(self.root, root)
        return World(root, self.commits, dict(self.contents))

    def open(self, fs: FileSystem, skew_ns: int) -> Repository:
        clock = FixedClock(NOW_NS + DAY_NS // 24 + skew_ns, 1_000)
        return open_quietly(self.root, fs=fs, clock=clock)


def make_world(root: Path) -> World:
    world = World(root)
    with Repository.init(root, clock=FixedClock(NOW_NS, 1_000)) as repo:
        for step in range(3):
            if step == 1:
                made = recipes.trained(repo, again, {"step": 1}, world.commits[0])
            else:
                made = repo.commit(_arrays(step)).id
            world.commits.append(made)
            world.contents[made] = {"model.safetensors": _arrays(step)}
        repo.undo()
    return world


# -- operations: (world, repository) -> what was committed, if anything


Act = Callable[[World, Repository], Any]


def commit(world: World, repo: Repository) -> Any:
    return repo.commit(NEXT).id, {"model.safetensors": NEXT}


def commit_what_is_gone(world: World, repo: Repository) -> Any:
    """Every tensor is there already, but only a version that nothing leads to has it."""
    return repo.commit(GONE).id, {"model.safetensors": GONE}


def commit_another_path(world: World, repo: Repository) -> Any:
    """The same content under another name, beside what HEAD has."""
    both = {**world.contents[world.commits[1]], "other.safetensors": GONE}
    return repo.commit(GONE, path="other.safetensors").id, both


def commit_on_a_kept_base(world: World, repo: Repository) -> Any:
    """The base is in memory, of a version that was undone since."""
    return repo.commit(NEXT).id, {"model.safetensors": NEXT}


def commit_kept_tensors(world: World, repo: Repository) -> Any:
    """Nothing changes since a version, in memory, that was undone."""
    return repo.commit(_arrays(7)).id, {"model.safetensors": _arrays(7)}


def reset_point(world: World, repo: Repository) -> Any:
    return repo.commit(NEXT, options=CommitOptions(reset_point=True)).id, {
        "model.safetensors": NEXT
    }


def branch_there(world: World, repo: Repository) -> Any:
    repo.branch("side", world.gone.hex())


def deploy_there(world: World, repo: Repository) -> Any:
    repo.deploy(world.gone, "prod")


def redo(world: World, repo: Repository) -> Any:
    repo.undo(next(iter(repo.operations())).number)


def read(world: World, repo: Repository) -> Any:
    for commit_id in reversed(world.commits[:2]):
        with suppress(StateForgotten):
            found = repo.checkout(commit_id)
            check_arrays(found, world.contents[commit_id]["model.safetensors"])
    assert len(list(repo.log())) == 2


def check_all(world: World, repo: Repository) -> Any:
    assert repo.storage.fsck(full=True).problems == ()


def collect(world: World, repo: Repository) -> Any:
    gc.collect(repo.handle.store, repo.handle.config, grace=timedelta(0))


def collect_with_grace(world: World, repo: Repository) -> Any:
    gc.collect(repo.handle.store, repo.handle.config, grace=timedelta(minutes=30))


def repack(world: World, repo: Repository) -> Any:
    maintenance.repack(repo.handle, 1)


def forget_and_collect(world: World, repo: Repository) -> Any:
    maintenance.forget_named(repo.handle, world.commits[0])
    gc.collect(repo.handle.store, repo.handle.config, grace=timedelta(0))


def give_up_and_collect(world: World, repo: Repository) -> Any:
    recipes.drop(repo, world.commits[1])
    gc.collect(repo.handle.store, repo.handle.config, grace=timedelta(0))


def store_again(world: World, repo: Repository) -> Any:
    """Weights that were given up, and are stored until a collection."""
    recipes.store_again(repo, world.commits[1], again)


def index(world: World, repo: Repository) -> Any:
    repo.handle.store.snapshot.rebuild_index()


# -- what is done before calls are counted


def _undone(world: World, repo: Repository) -> None:
    made = repo.commit(_arrays(7))
    world.contents[made.id] = {"model.safetensors": _arrays(7)}
    repo.undo()


BEFORE: dict[Act, Act] = {
    commit_on_a_kept_base: _undone,
    commit_kept_tensors: _undone,
    store_again: lambda world, repo: recipes.drop(repo, world.commits[1]),
}


COMMITS: list[Act] = [
    commit, commit_what_is_gone, commit_another_path, commit_on_a_kept_base,
    commit_kept_tensors, reset_point,
]  # fmt: skip
OTHERS: list[Act] = [
    branch_there, deploy_there, redo, read, check_all, collect, repack, store_again, index,
]  # fmt: skip
MAINTENANCE: list[Act] = [
    collect,
    collect_with_grace,
    repack,
    forget_and_collect,
    give_up_and_collect,
]
NEVER_FAIL = {*COMMITS, read, check_all, collect, collect_with_grace, repack, index}


@dataclass(frozen=True)
class Schedule:
    act: Act
    beside: Act
    stop: int
    stop_beside: int
    skews: tuple[int, int]
    swapped: bool

    def __str__(self) -> str:
        return (
            f"{self.act.__name__} stops at {self.stop}, {self.beside.__name__} at "
            f"{self.stop_beside}, clocks {self.skews}, swapped {self.swapped}"
        )


def carry_out(schedule: Schedule, template: World, root: Path) -> tuple[int, int]:
    """Runs one schedule on a copy and looks at what it leaves; calls that each run made."""
    world = template.copy(root)
    fresh_process()
    runs = []
    for act, stop, skew in (
        (schedule.act, schedule.stop, schedule.skews[0]),
        (schedule.beside, schedule.stop_beside, schedule.skews[1]),
    ):
        fs = ScheduledFS(stop)
        runs.append(Run(fs, _bound(world, act, fs, skew)))
    interleave(*(reversed(runs) if schedule.swapped else runs))
    for run, act in zip(runs, (schedule.act, schedule.beside), strict=True):
        if isinstance(run.failed, WeightsDropped) and schedule.beside is give_up_and_collect:
            continue
        if run.failed is not None and (act in NEVER_FAIL or not isinstance(run.failed, MvcError)):
            raise AssertionError(f"{schedule}: {act.__name__} failed") from run.failed
    try:
        _look(world, runs[0])
    except (MvcError, AssertionError) as error:
        raise AssertionError(f"{schedule}: {error!r}") from error
    finally:
        shutil.rmtree(root)
    return runs[0].fs.calls, runs[1].fs.calls


def _bound(world: World, act: Act, fs: ScheduledFS, skew: int) -> Callable[[FileSystem], Any]:
    def run(_: FileSystem) -> Any:
        with world.open(fs, skew) as repo:
            if act in BEFORE:
                BEFORE[act](world, repo)
            fs.arm()
            return act(world, repo)

    return run


def _look(world: World, run: Run) -> None:
    fresh_process()
    with open_quietly(world.root) as repo:
        if run.result is not None:
            commit_id, contents = run.result
            world.contents[commit_id] = contents
            assert repo.find("HEAD") == commit_id
        _look_at_versions(world, repo)
        wanted = reachable(repo.handle)
        gc.collect(repo.handle.store, repo.handle.config, grace=timedelta(0))
        assert wanted == set(state_of(repo.handle).commits)
        _look_at_versions(world, repo)
        assert repo.storage.fsck(full=True).problems == ()


def _look_at_versions(world: World, repo: Repository) -> None:
    state = state_of(repo.handle)
    named = {value for _, value in state.refs if isinstance(value, CommitId)}
    named |= {commit_id for _, _, commit_id, _ in state.deployments}
    assert named <= set(state.commits)
    for commit_id in state.commits:
        check_version(repo, state, commit_id, world.contents[commit_id])


def _schedules(
    act: Act, lengths: Callable[[Act, Act], tuple[int, int]], rng: random.Random, number: int
) -> list[Schedule]:
    made = []
    for i in range(number):
        beside = MAINTENANCE[i % len(MAINTENANCE)]
        calls, calls_beside = lengths(act, beside)
        skew = rng.choice((0, 0, DAY_NS, -DAY_NS))
        made.append(
            Schedule(
                act,
                beside,
                rng.randint(1, calls),
                rng.choice((0, rng.randint(1, calls_beside))),
                rng.choice(((skew, 0), (0, skew))),
                rng.random() < 0.3,
            )
        )
    return made


def _carry_out_many(act: Act, otherwise: Path, number: int) -> None:
    rng = draw("schedules")
    with folder_in_memory(otherwise) as folder:
        template = make_world(folder / "template")
        known: dict[tuple[Act, Act], tuple[int, int]] = {}

        def lengths(first: Act, second: Act) -> tuple[int, int]:
            if (first, second) not in known:
                alone = Schedule(first, second, 0, 0, (0, 0), False)
                known[first, second] = carry_out(alone, template, folder / "alone")
            return known[first, second]

        for i, schedule in enumerate(_schedules(act, lengths, rng, number)):
            carry_out(schedule, template, folder / str(i))
    count(f"schedules beside maintenance, {act.__name__}", schedules=number)


@pytest.mark.parametrize("act", [*COMMITS, *OTHERS], ids=lambda act: act.__name__)
def test_beside_maintenance(act: Act, tmp_path: Path) -> None:
    _carry_out_many(act, tmp_path, 8)


@pytest.mark.long
@pytest.mark.parametrize("act", [*COMMITS, *OTHERS], ids=lambda act: act.__name__)
def test_beside_maintenance_in_many_orders(act: Act, tmp_path: Path) -> None:
    _carry_out_many(act, tmp_path, 400 if act in COMMITS else 100)
