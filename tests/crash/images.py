"""What one crash leaves, opened with the real file system and looked at."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from mvc.api.repository import Repository
from mvc.errors import MvcError, NotARepository
from mvc.maintenance import gc
from mvc.testing import fresh_process, open_quietly
from tests.crash import treatments
from tests.crash.state import (
    Checked,
    Lost,
    check_arrays,
    check_swept,
    check_version,
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
    fresh_process()
    return index


def _rebuild(root: Path) -> None:
    """The first that happens after the crash is ``mvc fsck --rebuild-index``."""
    try:
        with suppress(NotARepository), open_quietly(root) as repo:
            repo.storage.rebuild_index()
    except MvcError as error:
        raise Lost(f"the index cannot be rebuilt: {error!r}") from error


@dataclass
class Seen:
    """Images that were looked at already: a state found in the same bytes is found again.

    Which of them are checked by ``fsck --full``, and collected, is drawn from their bytes.
    """

    full: int
    collect: int
    found: dict[bytes, State | None] = field(default_factory=dict)


def check_once(story: Story, point: int, seed: int, dest: Path, seen: Seen) -> None:
    """As ``check_crash``; an image that was met before must only be allowed at this point, too."""
    index = build(story, point, random.Random(seed), dest)
    allowed = story.allowed(point)
    try:
        key = _digest(dest)
        if key not in seen.found:
            number = int.from_bytes(key[:8], "big")
            full, collect = number % seen.full == 0, number // 1000 % seen.collect == 0
            seen.found[key] = check_image(story, allowed, dest, full=full, collect=collect)
        elif seen.found[key] not in allowed:
            raise Lost(f"found {seen.found[key]}, expected one of {allowed}")
    except (MvcError, Lost) as error:
        raise Lost(f"point {point}, seed {seed}, index {index}: {error!r}") from error
    finally:
        shutil.rmtree(dest)


def _digest(folder: Path) -> bytes:
    """Names and contents of everything in a folder."""
    hasher = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*")):
        data = b"" if path.is_dir() else path.read_bytes()
        name = os.fsencode(path.relative_to(folder))
        for part in (name, b"folder" if path.is_dir() else b"file", data):
            hasher.update(len(part).to_bytes(8, "big") + part)
    return hasher.digest()


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
) -> State | None:
    """One of the states, which it returns; every version bit for bit, and the work can go on.

    ``full``: with ``fsck --full``. ``collect``: a collection follows and leaves no garbage.
    """
    nothing = False
    try:
        repo = open_quietly(root)
    except NotARepository:
        if None not in allowed:
            raise
        nothing = True
        Repository.init(root).close()
        repo = open_quietly(root)
        allowed = [state_of(repo.handle)]
    with repo:
        found = state_of(repo.handle)
        if found not in allowed:
            raise Lost(f"found {found}, expected one of {allowed}")
        checked: Checked = {}
        for commit in found.commits:
            check_version(repo, found, commit, story.contents[commit], checked)
        fresh = small(99)
        made = repo.commit(fresh)
        check_arrays(repo.checkout(made.id, path="model.safetensors"), fresh)
        if state_of(repo.handle).commits != (*found.commits, made.id):
            raise Lost("a further commit did not follow the others")
        if collect:
            _collect(story, repo, found)
            check_arrays(repo.checkout(made.id, path="model.safetensors"), fresh)
        report = repo.storage.fsck(full=full)
        if not report.sound:
            raise Lost(f"fsck: {report.problems}")
    with open_quietly(root) as repo:
        check_arrays(repo.checkout(path="model.safetensors"), fresh)
    return None if nothing else found


def _collect(story: Story, repo: Repository, found: State) -> None:
    checked: Checked = {}
    wanted = reachable(repo.handle)
    gc.collect(repo.handle.store, repo.handle.config, grace=timedelta(0))
    left = state_of(repo.handle)
    if set(left.commits) != wanted:
        raise Lost(f"gc kept {left.commits}, reachable were {wanted}")
    for commit in found.commits:
        if commit in wanted:
            check_version(repo, left, commit, story.contents[commit], checked)
    check_swept(repo.handle)
