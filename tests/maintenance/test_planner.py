"""The planner over contents against the one over whole versions that was there before it.

No goal may cost 1 % more than with that one: bytes within a bound, time within a size, a price, or
both bytes and time where a goal names neither.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import mvc
from mvc.errors import Unattainable
from mvc.io.files import FileSystem
from mvc.maintenance.repack.goal import Goal
from mvc.maintenance.repack.plan import RepackPlan, RepackProblem
from mvc.maintenance.repack.planner import planned
from mvc.repo.config import set_value
from mvc.store.writing.layout import Layout
from tests.maintenance.old_planner.planner import chosen
from tests.maintenance.old_planner.problem import RepackProblem as OldProblem

GROUPS = "xor | planes:all | zstd:1"
ALIKE = 1.01
SCALE = 1e-5  # of the steps
FEW = {0, 1, 2, 7}  # random histories that are always compared


class History:
    """Versions of some tensors: those named by ``moving`` change with every commit."""

    def __init__(self, root: Path, seed: int = 0, **settings: object) -> None:
        self.root, self.draw = root, np.random.default_rng(seed)
        mvc.Repository.init(root).close()
        self.configure(pipeline="xor | planes | zstd:1", layout="chain", **settings)
        self.state: dict[str, np.ndarray] = {}

    def configure(self, pipeline: str | None = None, **settings: object) -> None:
        file = self.root / ".mvc/config.yaml"
        if pipeline is not None:
            set_value(FileSystem(), file, "commit.pipeline", pipeline)
        for key, value in settings.items():
            if value is not None:
                set_value(FileSystem(), file, f"store.{key}", str(value))

    def tensors(self, *shapes: tuple[int, ...]) -> None:
        draws = (0.05 * self.draw.standard_normal(shape) for shape in shapes)
        self.state = {f"w{i}": draw.astype(np.float32) for i, draw in enumerate(draws)}

    def commit(self, repo: mvc.Repository, moving: Iterable[int]) -> None:
        self.state = dict(self.state)
        for i in moving:
            step = SCALE * self.draw.standard_normal(self.state[f"w{i}"].shape)
            self.state[f"w{i}"] = self.state[f"w{i}"] + step.astype(np.float32)
        repo.commit(self.state)


SHAPES = ((60, 50), (40, 50), (30, 30), (200,))
TEN = tuple((40, n) for n in (48, 12, 33, 27, 51, 14, 40, 22, 57, 19))


def all_change(root: Path, **settings: object) -> None:
    history = History(root)
    history.configure(**settings)  # type: ignore[arg-type]
    history.tensors(*SHAPES)
    with mvc.Repository.open(root) as repo:
        for _ in range(50):
            history.commit(repo, range(4))


def half_frozen(root: Path, **settings: object) -> None:
    """Three versions train one half of the weights, the next three the other one."""
    history = History(root)
    history.configure(reset_interval=100, **settings)  # type: ignore[arg-type]
    history.tensors(*[(60, 50)] * 4)
    with mvc.Repository.open(root) as repo:
        for version in range(52):
            history.commit(repo, (0, 2) if version // 3 % 2 else (1, 3))


def a_third(root: Path) -> None:
    history = History(root)
    history.tensors(*SHAPES)
    with mvc.Repository.open(root) as repo:
        for version in range(50):
            history.commit(repo, range(0 if version % 3 == 0 else 1, 4))


def branches(root: Path) -> None:
    history = History(root)
    history.tensors(*SHAPES)
    with mvc.Repository.open(root) as repo:
        for _ in range(12):
            history.commit(repo, range(4))
        base, state = repo.find("HEAD"), history.state
        for branch in range(4):
            repo.branch(f"b{branch}", base)
            repo.switch(f"b{branch}")
            history.state = state
            for _ in range(9):
                history.commit(repo, range(branch % 2 * 2, 4))


def at_random(root: Path, **settings: object) -> None:
    history, pick = History(root), random.Random(0)
    history.configure(**settings)  # type: ignore[arg-type]
    history.tensors(*TEN)
    with mvc.Repository.open(root) as repo:
        for _ in range(50):
            history.commit(repo, (i for i in range(10) if pick.random() < 0.3))


def large_groups(root: Path) -> None:
    history = History(root)
    history.configure(pipeline=GROUPS)
    history.tensors((400, 400), (300, 400), (200,), (200, 400))
    with mvc.Repository.open(root) as repo:
        for version in range(20):
            history.commit(repo, range(version % 3, 4))


def skips_and_chains(root: Path) -> None:
    history = History(root)
    history.tensors(*SHAPES)
    for layout in ("skip:4", "chain", "skip:2"):
        history.configure(layout=layout)
        with mvc.Repository.open(root) as repo:
            for _ in range(17):
                history.commit(repo, range(4))


def adam(root: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(40, 40)
    optimizer = torch.optim.Adam(model.parameters())
    with mvc.Repository.init(root) as repo:
        for _ in range(20):
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            repo.commit(copy.deepcopy(state))


def approximate(root: Path) -> None:
    history = History(root)
    history.configure(pipeline="lc:x=3")
    history.tensors((60, 50), (40, 50))
    with mvc.Repository.open(root) as repo:
        for _ in range(24):
            history.commit(repo, range(2))


HISTORIES = {
    "all change": all_change,
    "all change, groups": lambda root: all_change(root, pipeline=GROUPS),
    "all change, groups, interval 12": lambda root: all_change(
        root, pipeline=GROUPS, reset_interval=12
    ),
    "half frozen": half_frozen,
    "half frozen, groups": lambda root: half_frozen(root, pipeline=GROUPS),
    "one changes every third version": a_third,
    "four branches": branches,
    "ten at random": at_random,
    "ten at random, groups": lambda root: at_random(root, pipeline=GROUPS),
    "ten at random, groups, interval 16": lambda root: at_random(
        root, pipeline=GROUPS, reset_interval=16
    ),
    "large groups": large_groups,
    "skips and chains": skips_and_chains,
    "Adam": adam,
    "approximate steps": approximate,
}


def drawn(root: Path, seed: int) -> None:
    """A history of random shapes, frozen parts, branches, pipelines, layouts and intervals."""
    pick = random.Random(seed)
    history = History(root, seed)
    history.configure(
        pipeline=pick.choice((GROUPS, "xor | planes | zstd:1", "lossless")),
        layout=pick.choice(("chain", "skip:2", "skip:4")),
        reset_interval=pick.choice((None, None, 3, 8)),
    )
    shapes = [(pick.randrange(1, 60), pick.randrange(1, 60)) for _ in range(pick.randint(1, 6))]
    history.tensors(*shapes)
    share = pick.choice((0.2, 0.5, 1.0))
    with mvc.Repository.open(root) as repo:
        seen = list[tuple[object, dict[str, np.ndarray]]]()
        for version in range(pick.randint(3, 24)):
            if seen and pick.random() < 0.1:
                base, history.state = pick.choice(seen)
                repo.branch(f"b{version}", base)  # type: ignore[arg-type]
                repo.switch(f"b{version}")
            history.commit(repo, (i for i in range(len(shapes)) if pick.random() <= share))
            seen.append((repo.find("HEAD"), history.state))


def goals(repo: mvc.Repository) -> Iterator[Goal]:
    problem = RepackProblem(repo.handle.store, repo.handle.config, Goal())
    before, ids = problem.before, [version.commit for version in problem.survey.versions]
    yield Goal(layout=Layout(64, 4))
    yield Goal(interval=2)
    yield Goal(interval=7)
    yield Goal(add=(ids[len(ids) // 2], ids[-1]))
    if len(before.reset_points) > 1:
        yield Goal(remove=before.reset_points[-1:])
    for part in (0.95, 0.85, 0.7):
        yield Goal(max_recovery=part * before.worst_seconds)
    for part in (1.0, 1.1, 1.4):
        yield Goal(max_size=int(part * before.bytes))
    for weight in (10.0, 1e3, 1e5):
        yield Goal(weight=weight)
    yield Goal(weight=100.0, bound=0.9 * before.worst_seconds)


def of_old(repo: mvc.Repository, goal: Goal) -> RepackPlan | None:
    try:
        return chosen(OldProblem(repo.handle.store, repo.handle.config, goal))
    except Unattainable:
        return None


def check(repo: mvc.Repository, goal: Goal) -> None:
    old = of_old(repo, goal)
    if old is None:
        return
    new = planned(RepackProblem(repo.handle.store, repo.handle.config, goal))
    a, b = old.after, new.after
    if goal.weight is not None:
        assert old.prices is not None
        assert new.prices is not None
        assert new.prices[1] <= ALIKE * old.prices[1], goal
    if goal.max_recovery is not None:
        assert b.worst_seconds <= goal.max_recovery
    elif goal.weight is None:
        assert b.worst_seconds <= ALIKE * a.worst_seconds, goal
    if goal.max_size is not None:
        assert b.bytes <= goal.max_size
    elif goal.weight is None:
        assert b.bytes <= ALIKE * a.bytes, goal


@pytest.mark.parametrize("name", HISTORIES)
def test_no_goal_costs_more_than_with_the_planner_of_versions(tmp_path: Path, name: str) -> None:
    HISTORIES[name](tmp_path / "repo")
    with mvc.Repository.open(tmp_path / "repo") as repo:
        for goal in goals(repo):
            check(repo, goal)


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=() if n in FEW else pytest.mark.long) for n in range(200)]
)
def test_no_goal_costs_more_in_random_histories(tmp_path: Path, seed: int) -> None:
    drawn(tmp_path / "repo", seed)
    with mvc.Repository.open(tmp_path / "repo") as repo:
        for goal in goals(repo):
            check(repo, goal)


@pytest.mark.parametrize("name", ["half frozen", "half frozen, groups"])
def test_what_is_frozen_is_not_stored_in_full_with_the_rest(tmp_path: Path, name: str) -> None:
    HISTORIES[name](tmp_path / "repo")
    with mvc.Repository.open(tmp_path / "repo") as repo:
        least = min(point.worst_seconds for point in repo.storage.curve().points)
        now = RepackProblem(repo.handle.store, repo.handle.config, Goal()).before.worst_seconds
        goal = Goal(max_recovery=least + 0.03 * (now - least))
        old, new = (
            of_old(repo, goal),
            planned(RepackProblem(repo.handle.store, repo.handle.config, goal)),
        )
        assert old is not None
        assert new.after.bytes <= 0.85 * old.after.bytes
