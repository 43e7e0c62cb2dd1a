"""A short life of a repository under ``CrashFS``, and what each crash of it may leave.

A *story* is the list of states that the repository went through; some of them were
acknowledged, at a point of the file system's record. A crash at a point must leave one
of the states from the last one acknowledged to the next one.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from mvc.errors import MvcError, NotARepository
from mvc.ids import CommitId
from mvc.repo import manifests, pending, remove
from mvc.repo.context import Context
from mvc.repo.repository import Repository
from tests.faults.clock import FixedClock
from tests.faults.crashfs import CrashFS

INDEX_STATES = ("current", "stale", "absent", "truncated", "garbage")
_INDEX = Path(".mvc/index.lmdb/data.mdb")


class Lost(AssertionError):
    """A crash left something that it must not leave."""


@dataclass(frozen=True)
class State:
    """Everything that can be seen of a repository."""

    commits: tuple[CommitId, ...]
    refs: tuple[tuple[str, Any], ...]
    deployments: tuple[tuple[str, int, CommitId, bool], ...]
    removed: tuple[str, ...]


def state_of(context: Context) -> State:
    view = context.fresh()
    refs: dict[str, Any] = {}
    commits: list[CommitId] = []
    for recorded in view.entries():
        commits += [commit.id for commit in recorded.entry.commits]
        for change in recorded.entry.refs:
            refs[change.name] = change.new
    for name, value in refs.items():
        if context.store.ref(name) != value:
            raise Lost(f"the index says that {name} is {context.store.ref(name)!r}, not {value!r}")
    repo = Repository(context)
    deployed = sorted((d.target, d.time_ns, d.commit, d.retracted) for d in repo.deployments())
    return State(
        tuple(commits), tuple(sorted(refs.items())), tuple(deployed), pending.removed(context)
    )


@dataclass
class Story:
    """``contents``: per commit, path to bytes (a file) or to arrays (a Python state)."""

    fs: CrashFS
    root: Path
    repo: Repository | None = None
    states: list[State | None] = field(default_factory=lambda: [None])
    acknowledged: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    contents: dict[CommitId, dict[str, Any]] = field(default_factory=dict)
    indexes: list[tuple[int, bytes]] = field(default_factory=list)
    race: int = 0  # the point at which two entries stand in the journal, none of them flushed

    def acknowledge(self) -> None:
        """The operation that ran last has returned."""
        self.happened()
        self.acknowledged.append((self.fs.crash_points(), len(self.states) - 1))

    def happened(self) -> None:
        """A state that may be seen, but of which nobody was told."""
        assert self.repo is not None
        self.states.append(state_of(self.repo.context))

    def save_index(self) -> None:
        assert self.repo is not None
        self.repo.context.store.view.index_tail(force=True)
        self.indexes.append((self.fs.crash_points(), (self.root / _INDEX).read_bytes()))

    def allowed(self, point: int) -> list[State | None]:
        """The states that a crash after ``point`` changes may leave."""
        first = max(state for at, state in self.acknowledged if at <= point)
        last = min(
            (state for at, state in self.acknowledged if at > point), default=len(self.states) - 1
        )
        return self.states[first : last + 1]

    def index_at(self, point: int, kind: str, rng: random.Random) -> bytes | None:
        """What the index may be at that moment; None for no file."""
        known = [data for at, data in self.indexes if at <= point]
        if kind == "absent" or not known:
            return None
        if kind == "stale":
            return known[-2] if len(known) > 1 else None
        if kind == "current":
            return known[-1]
        if kind == "truncated":
            return known[-1][: rng.randrange(len(known[-1]))]
        return rng.randbytes(len(known[-1]))


def _small(seed: int, change: float = 0.0) -> dict[str, np.ndarray]:
    base = np.random.default_rng(seed)
    state = {
        "weight": base.standard_normal((40, 30)).astype(np.float32),
        "bias": base.standard_normal(30).astype(np.float32),
        "steps": np.array(seed, np.int64),
    }
    if change:
        state["weight"] = state["weight"] + np.float32(change)
    return state


class _Teller:
    """Runs operations and notes what became of them."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.files: dict[str, Any] = {}

    @property
    def repo(self) -> Repository:
        assert self.story.repo is not None
        return self.story.repo

    def python(self, state: dict[str, np.ndarray], **options: Any) -> CommitId:
        made = self.repo.commit(state, **options)
        self.files["model.safetensors"] = state
        self.story.contents[made.id] = dict(self.files)
        self.story.acknowledge()
        return made.id

    def file(self, name: str, data: bytes, **options: Any) -> CommitId:
        (self.story.root / name).write_bytes(data)
        made = self.repo.commit(name, cwd=self.story.root, **options)
        self.files[name] = data
        self.story.contents[made.id] = dict(self.files)
        self.story.acknowledge()
        return made.id

    def do(self, act: Callable[[], object]) -> None:
        act()
        self.story.acknowledge()

    def overtaken(self) -> None:
        """Two commits on the way: one is written, the other one overtakes its flush."""
        story, store = self.story, self.repo.context.store
        publish, other = store.publish, Repository.open(
            story.root, fs=story.fs, clock=FixedClock(1_760_000_000_000_000_000, 1_000)
        )  # fmt: skip
        before = dict(self.files)
        first, second = _small(7), _small(8)

        def between(make: Any, *, release: Any = None) -> Any:
            def released() -> None:
                release()
                id_ = state_of(other.context).commits[-1]
                story.contents[id_] = {**before, "model.safetensors": first}
                story.happened()
                last = other.commit(second, name="other.safetensors")
                story.contents[last.id] = {
                    **before, "model.safetensors": first, "other.safetensors": second,
                }  # fmt: skip
                story.acknowledge()
                story.race = story.fs.crash_points() - 2  # then come a flush and the witness

            store.publish = publish  # type: ignore[method-assign]
            return publish(make, release=released)

        store.publish = between  # type: ignore[method-assign]
        self.repo.commit(first)
        self.files |= {"model.safetensors": first, "other.safetensors": second}
        other.close()
        story.acknowledge()


def tell(folder: Path, ignore: Callable[[str, Path], bool] | None = None) -> Story:
    """Lives the story in ``folder``; with ``ignore`` some flushes have no effect."""
    root = folder / "repo"
    root.mkdir(parents=True)
    story = Story(CrashFS(root, ignore=ignore), root)
    clock = FixedClock(1_750_000_000_000_000_000, 1_000)
    story.repo = Repository.init(root, fs=story.fs, clock=clock)
    story.acknowledge()
    teller = _Teller(story)
    first = teller.python(_small(1), message="first")
    teller.python(_small(1, 0.001), deploy="prod", metrics={"loss": 0.5})
    story.save_index()
    teller.file("weights.safetensors", save(_small(2)))
    teller.do(lambda: story.repo.tag("v1"))
    teller.do(lambda: story.repo.branch("side"))
    teller.overtaken()
    story.save_index()
    teller.python(_small(1, 0.002), reset_point=True)
    teller.do(lambda: story.repo.deploy(first, "prod"))
    teller.do(lambda: remove.remove(story.repo.context, ["weights.safetensors"], cached=True))
    del teller.files["weights.safetensors"]
    teller.python(_small(1, 0.003))
    teller.do(lambda: story.repo.retract("prod"))
    teller.file("notes.bin", np.random.default_rng(3).bytes(3000))
    story.save_index()
    teller.file("notes.bin", np.random.default_rng(3).bytes(2000) + b"end", deploy="edge")
    teller.python(_small(1, 0.004))
    return story


def check_crash(story: Story, point: int, seed: int, dest: Path) -> None:
    """Builds one image of a crash, opens it with the real file system; raises Lost."""
    rng = random.Random(seed)
    index = rng.choice(INDEX_STATES)
    story.fs.image(point, rng, dest)
    data = story.index_at(point, index, rng)
    if data is not None and (dest / _INDEX).parent.parent.exists():
        (dest / _INDEX).parent.mkdir(exist_ok=True)
        (dest / _INDEX).write_bytes(data)
    manifests._kept.clear()
    try:
        _check_image(story, story.allowed(point), dest)
    except (MvcError, Lost) as error:
        raise Lost(f"point {point}, seed {seed}, index {index}: {error!r}") from error
    finally:
        shutil.rmtree(dest)


def _check_image(story: Story, allowed: list[State | None], root: Path) -> None:
    try:
        repo = Repository.open(root, discover=False)
    except NotARepository:
        if None not in allowed:
            raise
        repo = Repository.init(root)
        allowed = [state_of(repo.context)]
    with repo:
        found = state_of(repo.context)
        if found not in allowed:
            raise Lost(f"found {found}, expected one of {allowed}")
        for commit in found.commits:
            check_commit(repo, commit, story.contents[commit])
        fresh = _small(99)
        made = repo.commit(fresh)
        check_arrays(repo.checkout(made.id, path="model.safetensors"), fresh)
        if state_of(repo.context).commits != (*found.commits, made.id):
            raise Lost("a further commit did not follow the others")
        report = repo.fsck(full=True)
        if not report.sound:
            raise Lost(f"fsck: {report.problems}")
    with Repository.open(root, discover=False) as repo:
        check_arrays(repo.checkout(path="model.safetensors"), fresh)


def check_commit(repo: Repository, commit: CommitId, contents: dict[str, Any]) -> None:
    """Every path of a commit comes back bit for bit."""
    if set(repo.manifest(commit).by_path) != set(contents):
        raise Lost(f"{commit.short} has paths {sorted(repo.manifest(commit).by_path)}")
    for path, expected in contents.items():
        if isinstance(expected, bytes):
            target = repo.root / "restored"
            repo.restore(commit, paths=[path], output=target, force=True)
            if target.read_bytes() != expected:
                raise Lost(f"{path} of {commit.short} has other bytes")
        else:
            check_arrays(repo.checkout(commit, path=path), expected)


def check_arrays(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    if set(found) != set(expected):
        raise Lost(f"tensors {sorted(found)} instead of {sorted(expected)}")
    for name, array in expected.items():
        same = found[name].dtype == array.dtype and found[name].shape == array.shape
        if not same or found[name].tobytes() != array.tobytes():
            raise Lost(f"{name} has other bits")
