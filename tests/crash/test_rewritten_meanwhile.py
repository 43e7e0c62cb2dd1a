"""Whatever reads many parts of a repository, while others rewrite it between any two of its calls.

The reader stops before one or two of its calls, and each time another opening moves every pack.
The repository is sound all the time, so nobody may say that something is missing or damaged.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.maintenance import gc
from mvc.maintenance.forget import choose, preview
from mvc.maintenance.repack.super_steps import join
from mvc.report.page import write_report
from mvc.testing import fresh_process, open_quietly
from tests.counters import count
from tests.crash.images import folder_in_memory
from tests.crash.test_interleavings import Act, World, make_world
from tests.faults.scheduled import Run, ScheduledFS, interleave
from tests.moving import move_every_pack
from tests.seeds import draw

_REWRITES = 3
_LATER = 12  # calls


def rewrite(world: World, fs: ScheduledFS) -> None:
    """Moves every pack, again and again; stops after each time."""
    with world.open(fs, 0) as repo:
        for _ in range(_REWRITES):
            move_every_pack(repo.handle)
            fs.wait()


def _looking(name: str, look: Callable[[World, Repository], object]) -> Act:
    def act(world: World, repo: Repository, arm: Callable[[], None]) -> None:
        arm()
        look(world, repo)

    act.__name__ = name
    return act


def _price_of_forgetting(world: World, repo: Repository) -> None:
    chosen = choose(repo.handle.store, [world.commits[0]])
    found = preview(repo.handle.store, repo.handle.config, chosen, grace=timedelta(0))
    assert (found.tensors, found.shared) == (2, 0)
    assert found.collection is not None and found.collection.commits


def _versions(world: World, repo: Repository) -> None:
    assert [version.id for version in repo.log()] == world.commits[1::-1]
    for commit in world.commits[:2]:
        repo.version(commit), repo.manifest(commit)


LOOKS = [
    _looking("stats", lambda world, repo: repo.storage.stats()),
    _looking("stats_by_version", lambda world, repo: repo.storage.by_version()),
    _looking("curve", lambda world, repo: repo.storage.curve()),
    _looking("repack_dry", lambda world, repo: repo.storage.repack(interval=1, dry_run=True)),
    _looking("repack", lambda world, repo: repo.storage.repack(interval=1)),
    _looking(
        "gc_dry",
        lambda world, repo: gc.plan_collection(
            repo.handle.store, repo.handle.config, grace=timedelta(0)
        ),
    ),
    _looking("forget_preview", _price_of_forgetting),
    _looking("join", lambda world, repo: join(repo.handle.store, repo.handle.config)),
    _looking("log", _versions),
    _looking("diff", lambda world, repo: repo.diff(*world.commits[:2])),
    _looking("report", lambda world, repo: write_report(repo)),
    _looking("oplog", lambda world, repo: list(repo.operations())),
    _looking(
        "fsck", lambda world, repo: repo.storage.fsck(full=True).sound or pytest.fail("not sound")
    ),
    _looking("checkout", lambda world, repo: [repo.checkout(c) for c in world.commits[:2]]),
]


def _meet(look: Act, template: World, root: Path, stops: Sequence[int]) -> int:
    """A look and a rewrite at each of its stops; returns the calls of the look."""
    world = template.copy(root)
    fresh_process()
    fs, beside = ScheduledFS(*stops), ScheduledFS()
    runs = Run(fs, lambda _: _in(world, look, fs)), Run(beside, lambda _: rewrite(world, beside))
    interleave(*runs)
    for run in runs:
        if run.failed is not None:
            raise AssertionError(f"{look.__name__}, stops {stops}: {run.failed!r}") from run.failed
    fresh_process()
    with open_quietly(root) as repo:
        assert repo.storage.fsck(full=True).problems == ()
    shutil.rmtree(root)
    return fs.calls


def _in(world: World, look: Act, fs: ScheduledFS) -> None:
    with world.open(fs, 0) as repo:
        look(world, repo, fs.arm)


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.__name__)
@pytest.mark.parametrize("number", [4, pytest.param(400, marks=pytest.mark.long)])
def test_a_look_beside_rewrites(look: Act, tmp_path: Path, number: int) -> None:
    """Up to ``number`` times: at every moment, or at some, and again a few calls later."""
    rng = draw("moments")
    with folder_in_memory(tmp_path) as folder:
        template = make_world(folder / "template")
        calls = _meet(look, template, folder / "alone", ())
        moments = list(product(range(1, calls + 1), range(_LATER)))
        chosen = rng.sample(moments, min(number, len(moments)))
        for at, later in chosen:
            _meet(look, template, folder / f"{at}-{later}", sorted({at, at + later}))
    count(f"{look.__name__} beside rewrites", moments=len(chosen), wrong=0)
