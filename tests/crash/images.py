"""What one crash leaves, opened with the real file system and looked at."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

from mvc.errors import MvcError, NotARepository
from mvc.repo import gc, manifests
from mvc.repo.fsck import rebuild_index
from mvc.repo.repository import Repository
from tests.crash import treatments
from tests.crash.state import (
    Lost,
    check_arrays,
    check_swept,
    check_version,
    open_quietly,
    reachable,
    state_of,
)
from tests.crash.story import INDEX_STATES, State, Story, small

_MEMORY = Path("/dev/shm")


@contextmanager
def folder_in_memory(otherwise: Path) -> Iterator[Path]:
    """A folder of its own; images that lie in memory are checked several times as fast."""
    if not os.access(_MEMORY, os.W_OK):
        yield otherwise
        return
    folder = Path(tempfile.mkdtemp(prefix="mvc-test-", dir=_MEMORY))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def build(story: Story, point: int, rng: random.Random, dest: Path) -> str:
    """Builds an image of a crash; returns which state the index is in."""
    index = rng.choice(INDEX_STATES)
    story.fs.image(point, rng, dest)
    files = story.index_at(point, index, rng)
    if files is not None and (dest / ".mvc").exists():
        treatments.write(dest / treatments.INDEX, files)
    if index == "rebuilt":
        _rebuild(dest)
    manifests._kept.clear()
    return index


def _rebuild(root: Path) -> None:
    """The first that happens after the crash is ``mvc fsck --rebuild-index``."""
    with suppress(NotARepository), open_quietly(root) as repo:
        rebuild_index(repo.context)


def check_crash(
    story: Story, point: int, seed: int, dest: Path, *, full: bool = True, collect: bool = False
) -> None:
    """Builds one image of a crash and looks at it; raises Lost."""
    rng = random.Random(seed)
    index = build(story, point, rng, dest)
    try:
        check_image(story, story.allowed(point), dest, full=full, collect=collect)
    except (MvcError, Lost) as error:
        raise Lost(f"point {point}, seed {seed}, index {index}: {error!r}") from error
    finally:
        shutil.rmtree(dest)


def check_image(
    story: Story, allowed: list[State | None], root: Path, *, full: bool, collect: bool
) -> None:
    """One of the states, every version bit for bit, and the work can go on.

    ``full``: with ``fsck --full``. ``collect``: a collection follows and leaves no garbage.
    """
    try:
        repo = open_quietly(root)
    except NotARepository:
        if None not in allowed:
            raise
        Repository.init(root).close()
        repo = open_quietly(root)
        allowed = [state_of(repo.context)]
    with repo:
        found = state_of(repo.context)
        if found not in allowed:
            raise Lost(f"found {found}, expected one of {allowed}")
        for commit in found.commits:
            check_version(repo, found, commit, story.contents[commit])
        fresh = small(99)
        made = repo.commit(fresh)
        check_arrays(repo.checkout(made.id, path="model.safetensors"), fresh)
        if state_of(repo.context).commits != (*found.commits, made.id):
            raise Lost("a further commit did not follow the others")
        if collect:
            _collect(story, repo, found)
            check_arrays(repo.checkout(made.id, path="model.safetensors"), fresh)
        report = repo.fsck(full=full)
        if not report.sound:
            raise Lost(f"fsck: {report.problems}")
    with open_quietly(root) as repo:
        check_arrays(repo.checkout(path="model.safetensors"), fresh)


def _collect(story: Story, repo: Repository, found: State) -> None:
    wanted = reachable(repo.context)
    gc.collect(repo.context, grace=timedelta(0))
    left = state_of(repo.context)
    if set(left.commits) != wanted:
        raise Lost(f"gc kept {left.commits}, reachable were {wanted}")
    for commit in found.commits:
        if commit in wanted:
            check_version(repo, left, commit, story.contents[commit])
    check_swept(repo.context)
