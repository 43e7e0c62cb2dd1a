"""A second misfortune while the first one is being made good (method: SQLite's compound faults).

A crash; then what comes next (opening, a commit, gc, repack, forget, a new index) is cut off by
a power loss or meets a failing call; then everything is looked at.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from mvc.api.repository import Repository
from mvc.errors import MvcError, RefConflict, WeightsDropped
from mvc.ids import CommitId
from mvc.repo.lookup import refs as pointers
from mvc.testing import FailingFS, fresh_process, open_quietly
from tests.counters import count
from tests.crash import maintenance
from tests.crash.images import build, check_crash, check_image, folder_in_memory
from tests.crash.state import state_of
from tests.crash.stories import STORIES
from tests.crash.story import Lost, Story, Teller, go_on, small
from tests.seeds import draw

NAMES = [name for name in STORIES if name != "versions"]  # where there is always a repository
ERRORS: list[Any] = [errno.EIO, errno.ENOSPC, errno.EMFILE, MemoryError]


def commit(repo: Repository) -> None:
    with suppress(WeightsDropped):  # HEAD has none: what follows must have weights of its own
        repo.commit(small(50), path="further.safetensors")


def collect(repo: Repository) -> None:
    maintenance.collect(repo.handle)


def repack(repo: Repository) -> None:
    maintenance.repack(repo.handle, 2)


def forget(repo: Repository) -> None:
    for oldest in state_of(repo.handle).commits[:1]:
        with suppress(RefConflict):  # HEAD stands on it
            maintenance.forget_named(repo.handle, oldest)


def rebuild(repo: Repository) -> None:
    repo.handle.store.snapshot.rebuild_index()


ACTS: list[Callable[[Repository], None]] = [commit, collect, repack, forget, rebuild]


def _tell(teller: Teller, acts: list[Callable[[Repository], None]]) -> None:
    """Goes on, operation by operation; a commit's contents are those of HEAD and its own."""
    for act in acts:
        head = pointers.head(teller.repo.handle.store.fresh()).commit
        act(teller.repo)
        teller.story.acknowledge()
        teller.story.note_index()
        _note_new(teller.story, teller.repo, head)


def _note_new(story: Story, repo: Repository, head: CommitId | None) -> None:
    """What a commit that was just made holds."""
    new = [id_ for id_ in state_of(repo.handle).commits if id_ not in story.contents]
    if len(new) > 1:
        raise Lost(f"one commit made {new}")
    for id_ in new:
        before = {} if head is None else story.contents[head]
        story.contents[id_] = {**before, "further.safetensors": small(50)}


def _lose_power(teller: Teller, rng: random.Random, folder: Path) -> None:
    _tell(teller, rng.sample(ACTS, 2))
    teller.repo.close()
    fs = teller.story.fs
    point = rng.randrange(fs.crash_points() + 1)
    check_crash(
        teller.story, point, rng.getrandbits(32), folder / "second",
        full=rng.random() < 0.2, collect=rng.random() < 0.4,
    )  # fmt: skip


def _fail(teller: Teller, rng: random.Random, root: Path) -> bool:
    """One call fails, or all from there on. Returns whether the operation failed."""
    story = teller.story
    before = story.states[0]
    head = pointers.head(teller.repo.handle.store.fresh()).commit
    teller.repo.close()
    act = rng.choice(ACTS)
    fs = FailingFS(
        fail_at=rng.randrange(1, 150), error=rng.choice(ERRORS), persistent=rng.random() < 0.5
    )
    failed = False
    fresh_process()
    try:
        with closing(open_quietly(root, fs=fs)) as repo:
            act(repo)
    except (MvcError, MemoryError):
        failed = True
    fresh_process()
    with open_quietly(root) as repo:
        _note_new(story, repo, head)
        now = state_of(repo.handle)
    assert before is not None
    if failed and act in (repack, rebuild) and now != before:
        raise Lost(f"{act.__name__} failed and left {now} instead of {before}")
    check_image(story, [now], root, full=rng.random() < 0.2, collect=rng.random() < 0.4)
    return failed


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("number", [12, pytest.param(400, marks=pytest.mark.long)])
def test_nothing_is_lost_when_recovery_is_cut_off(name: str, tmp_path: Path, number: int) -> None:
    rng = draw("compound")
    failed = 0
    with folder_in_memory(tmp_path) as folder:
        story = STORIES[name](folder)
        points = sorted(rng.choices([*range(story.fs.crash_points() + 1), *story.marked], k=number))
        for i, point in enumerate(points):
            once = random.Random(rng.getrandbits(32))
            root = folder / f"first{i}"
            build(story, point, once, root)
            teller = go_on(story, root)
            try:
                if teller.story.states[0] not in story.allowed(point):
                    raise Lost(f"point {point}: found {teller.story.states[0]}")
                if i % 2:
                    _lose_power(teller, once, folder / f"image{i}")
                else:
                    failed += _fail(teller, once, root)
            except (MvcError, Lost) as error:
                raise Lost(f"{name}, point {point}, number {i}: {error!r}") from error
    count(f"compound faults, {name}", crashes=number, second_losses=number // 2, failed=failed)
