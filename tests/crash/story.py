"""A short life of a repository under ``CrashFS``: the states it went through.

A *story* is the list of states that can be seen; some of them were acknowledged, at a point
of the file system's record. A crash at a point must leave one of the states from the last
one acknowledged to the next one.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mvc.api.repository import Repository
from mvc.ids import CommitId
from mvc.repo.commit.request import FileOptions
from mvc.testing import FixedClock, fresh_process, open_quietly
from tests.crash import treatments
from tests.crash.state import (
    Contents,
    Lost,
    State,
    check_arrays,
    check_commit,
    state_of,
)
from tests.faults.crashfs import CrashFS
from tests.recipes import by_hand as recipes

__all__ = [
    "INDEX_STATES", "Lost", "State", "Story", "Teller", "again", "begin", "check_arrays",
    "check_commit", "foreign_index", "go_on", "small", "state_of",
]  # fmt: skip

INDEX_STATES = (
    "current", "stale", "older", "absent", "truncated", "garbage", "foreign", "rebuilt",
)  # fmt: skip
"""What the index may be after a crash. LMDB flushes it by itself, and it may be exchanged
until somebody opens the repository again; ``rebuilt``: made anew from what the crash left."""
_START_NS, _STEP_NS = 1_750_000_000_000_000_000, 1_000

Ignore = Callable[[str, Path], bool]
IndexFiles = dict[str, bytes]
"""The index by path in its folder."""


@dataclass
class Story:
    """``states``: None is "no repository yet". ``contents``: of every commit ever made.

    ``marked``: points that deserve more crashes than others.
    """

    fs: CrashFS
    root: Path
    repo: Repository
    states: list[State | None]
    acknowledged: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    contents: dict[CommitId, Contents] = field(default_factory=dict)
    indexes: list[tuple[int, IndexFiles]] = field(default_factory=list)
    marked: list[int] = field(default_factory=list)

    def acknowledge(self) -> None:
        """The operation that ran last has returned."""
        self.happened()
        self.acknowledged.append((self.fs.crash_points(), len(self.states) - 1))

    def happened(self) -> None:
        """A state that may be seen, but of which nobody was told."""
        self.states.append(state_of(self.repo.handle))

    def save_index(self) -> None:
        self.repo.handle.store.snapshot.index_tail(force=True)
        self.note_index()

    def note_index(self) -> None:
        files = treatments.read(self.root / treatments.INDEX)
        if files:
            self.indexes.append((self.fs.crash_points(), files))

    def allowed(self, point: int) -> list[State | None]:
        """The states that a crash after ``point`` changes may leave."""
        first = max(state for at, state in self.acknowledged if at <= point)
        last = min(
            (state for at, state in self.acknowledged if at > point), default=len(self.states) - 1
        )
        return self.states[first : last + 1]

    def index_at(self, point: int, kind: str, rng: random.Random) -> IndexFiles | None:
        """What the index may be at that moment; None: LMDB has written nothing of it."""
        if kind == "foreign":
            return foreign_index()
        known = [files for at, files in self.indexes if at <= point]
        if kind in {"absent", "rebuilt"} or not known:
            return None
        if kind == "stale":
            return known[-2] if len(known) > 1 else None
        if kind == "current":
            return known[-1]
        if kind == "older":
            return rng.choice(known)
        return {name: _spoiled(name, data, kind, rng) for name, data in known[-1].items()}


def _spoiled(name: str, data: bytes, kind: str, rng: random.Random) -> bytes:
    """An LMDB file that is cut off or garbage; what points to it stays."""
    if not name.endswith("data.mdb"):
        return data
    return data[: rng.randrange(len(data))] if kind == "truncated" else rng.randbytes(len(data))


@cache
def foreign_index() -> IndexFiles:
    """The index of another repository, which has gone further than these stories."""
    with tempfile.TemporaryDirectory() as folder:
        with Repository.init(folder) as repo:
            made = repo.commit(small(1))
            for _ in range(100):
                repo.deploy(made.id, "prod")
            repo.handle.store.snapshot.index_tail(force=True)
        return treatments.read(Path(folder) / treatments.INDEX)


def begin(folder: Path, ignore: Ignore | None = None, *, watched: bool = False) -> Teller:
    """An empty repository in ``folder``; its making is part of the story if ``watched``."""
    root = folder / "repo"
    root.mkdir(parents=True)
    clock = FixedClock(_START_NS, _STEP_NS)
    if not watched:
        Repository.init(root, clock=clock).close()
    fs = CrashFS(root, ignore=ignore)
    if watched:
        Repository.init(root, fs=fs, clock=clock).close()
    repo = open_quietly(root, fs=fs, clock=clock)
    story = Story(fs, root, repo, [None if watched else state_of(repo.handle)])
    if watched:
        story.acknowledge()
    return Teller(story)


def go_on(story: Story, root: Path) -> Teller:
    """The story of what comes after a crash: everything in ``root`` is durable by now."""
    fs = CrashFS(root)
    fresh_process()
    repo = open_quietly(root, fs=fs, clock=FixedClock(_START_NS * 2, _STEP_NS))
    further = Story(fs, root, repo, [state_of(repo.handle)], contents=dict(story.contents))
    further.note_index()
    return Teller(further)


def small(seed: int, change: float = 0.0) -> dict[str, np.ndarray]:
    base = np.random.default_rng(seed)
    state = {
        "weight": base.standard_normal((40, 30)).astype(np.float32),
        "bias": base.standard_normal(30).astype(np.float32),
        "steps": np.array(seed, np.int64),
    }
    if change:
        state["weight"] = state["weight"] + np.float32(change)
    return state


def again(arguments: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What the recipe of a version makes."""
    return small(**arguments)


class Teller:
    """Runs operations and notes what became of them."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.files: dict[str, Any] = {}

    @property
    def repo(self) -> Repository:
        return self.story.repo

    def python(self, state: dict[str, np.ndarray], **options: Any) -> CommitId:
        made = self.repo.commit(state, **options)
        self.files["model.safetensors"] = state
        self.story.contents[made.id] = dict(self.files)
        self.story.acknowledge()
        return made.id

    def trained(self, change: float, base: CommitId, data: CommitId) -> CommitId:
        """A version that its recipe makes again."""
        arguments = {"seed": 1, "change": change}
        made = recipes.trained(self.repo, again, arguments, base, data)
        self.files[recipes.PATH] = again(arguments)
        self.story.contents[made] = dict(self.files)
        self.story.acknowledge()
        return made

    def file(self, name: str, data: bytes, **options: Any) -> CommitId:
        (self.story.root / name).write_bytes(data)
        made = self.repo.commit(name, **options, files=FileOptions(cwd=self.story.root))
        self.files[name] = data
        self.story.contents[made.id] = dict(self.files)
        self.story.acknowledge()
        return made.id

    def do(self, act: Callable[[], object]) -> None:
        act()
        self.story.acknowledge()

    def reopen(self) -> None:
        """As another process would go on."""
        story = self.story
        story.repo.close()
        clock = story.repo.handle.store.clock
        story.repo = open_quietly(story.root, fs=story.fs, clock=clock)

    def overtaken(self) -> None:
        """Two commits on the way: one is written, the other one overtakes its flush."""
        story, store = self.story, self.repo.handle.store
        publish, other = store.publish, Repository.open(
            story.root, fs=story.fs, clock=FixedClock(_START_NS + 10**16, _STEP_NS)
        )  # fmt: skip
        before = dict(self.files)
        first, second = small(7), small(8)

        def between(make: Any, *, release: Any = None) -> Any:
            def released() -> None:
                release()
                id_ = state_of(other.handle).commits[-1]
                story.contents[id_] = {**before, "model.safetensors": first}
                story.happened()
                last = other.commit(second, path="other.safetensors")
                story.contents[last.id] = {
                    **before, "model.safetensors": first, "other.safetensors": second,
                }  # fmt: skip
                story.acknowledge()
                # Two entries, none of them flushed; then come a flush and the witness.
                story.marked.append(story.fs.crash_points() - 2)

            store.publish = publish  # type: ignore[method-assign]
            return publish(make, release=released)

        store.publish = between  # type: ignore[method-assign]
        self.repo.commit(first)
        self.files |= {"model.safetensors": first, "other.safetensors": second}
        other.close()
        story.acknowledge()
