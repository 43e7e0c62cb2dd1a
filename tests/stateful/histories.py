"""Random histories of one repository, and a model of what each version must give back.

A history is a row of operations of a seeded generator; no part of what is expected is read from
the repository. ``History.run`` checks every version after every operation.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from mvc.api.repository import Repository
from mvc.errors import (
    NoDeployment,
    NotTrusted,
    RefConflict,
    StateForgotten,
    Unattainable,
    UnknownMetric,
    UnknownRevision,
    UnknownTarget,
    WeightsDropped,
    WrongUsage,
)
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.maintenance.repack.super_steps import join
from mvc.repo.commit.request import CommitOptions
from mvc.repo.commit.result import CommitResult
from mvc.repo.config import set_value
from mvc.testing import FixedClock, fresh_process, open_quietly
from tests.crash import treatments
from tests.crash.state import check_arrays
from tests.crash.story import foreign_index
from tests.recipes import by_hand as recipes

Arrays = Mapping[str, np.ndarray]
LAYOUTS = ("chain", "skip:2", "skip:4")
PIPELINES = (None, None, "lossless", "vsol", "lc:x=2,huffman")
STATES, FILES = ("model.safetensors", "second.safetensors"), ("notes.bin", "file.safetensors")
TRAINING = "training.safetensors"
BRANCHES, TARGETS = ("main", "side", "third"), ("prod", "edge")


@dataclass
class Version:
    """``dropped``: its weights at ``recipes.PATH`` may be gone."""

    parent: CommitId | None
    contents: Mapping[str, Arrays | bytes]
    needs: tuple[CommitId, ...] = ()
    forgotten: bool = False
    dropped: bool = False


@dataclass
class Expected:
    """``refs``: branches and tags; ``head``: the name of a branch."""

    versions: dict[CommitId, Version] = field(default_factory=dict)
    refs: dict[str, CommitId] = field(default_factory=dict)
    head: str = "main"
    deployed: list[tuple[str, CommitId]] = field(default_factory=list)

    @property
    def tip(self) -> CommitId | None:
        return self.refs.get(f"heads/{self.head}")

    def lead_to(self) -> set[CommitId]:
        """Versions that a ref or a deployment leads to."""
        waiting = [*self.refs.values(), *(commit for _, commit in self.deployed)]
        reached: set[CommitId] = set()
        while waiting:
            commit = waiting.pop()
            if commit not in reached:
                reached.add(commit)
                version = self.versions[commit]
                waiting += [*version.needs, *([version.parent] if version.parent else [])]
        return reached


def again(arguments: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What a recipe makes."""
    return arrays(random.Random(int(arguments["seed"])))


def arrays(rng: random.Random) -> dict[str, np.ndarray]:
    made = np.random.default_rng(rng.getrandbits(32))
    return {
        "w": made.standard_normal((20, 30)).astype(np.float32),
        "half": made.standard_normal(90).astype(np.float16),
        "count": made.integers(0, 9, 5),
        "frozen": np.arange(40, dtype=np.float32),
        "empty": np.zeros((0, 3), np.float32),
    }


def moved(state: Arrays, rng: random.Random) -> dict[str, np.ndarray]:
    """A step later: a few numbers of some tensors are others."""
    after = dict(state)
    for name in ("w", "half", "count"):
        if rng.random() < 0.8:
            changed = after[name].copy()
            for _ in range(1 + changed.size // 30):
                changed.flat[rng.randrange(changed.size)] += 1
            after[name] = changed
    return after


def begun(rng: random.Random) -> dict[str, Any]:
    """The state of a training with Adam or RMSprop, before its first step."""
    made = np.random.default_rng(rng.getrandbits(32))
    weights = made.normal(0, 0.05, (40, 30)).astype(np.float32)
    names, group = rng.choice(
        [
            (("square_avg",), {"alpha": 0.9, "centered": False, "momentum": 0}),
            (("exp_avg", "exp_avg_sq"), {"betas": (0.9, 0.999), "amsgrad": False}),
        ]
    )
    state = {name: np.zeros_like(weights) for name in names}
    group |= {"lr": 1e-3, "eps": 1e-8, "weight_decay": 0, "params": [0]}
    optimizer = {"state": {0: {"step": 0.0, **state}}, "param_groups": [group]}
    return {"model": {"w": weights}, "optimizer": optimizer}


def stepped(training: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """The same one step later; some gradients are zero."""
    made, single = np.random.default_rng(rng.getrandbits(32)), np.float32
    weights, optimizer = training["model"]["w"], training["optimizer"]
    state, step = optimizer["state"][0], optimizer["state"][0]["step"] + 1
    gradient = made.normal(0, 1e-2, weights.shape) * (made.random(weights.shape) < 0.6)
    gradient = gradient.astype(np.float32)
    if "square_avg" in state:
        square = single(0.9) * state["square_avg"] + (single(0.1) * gradient) * gradient
        moments = {"square_avg": square}
        weights = weights - (single(1e-3) * gradient) / (np.sqrt(square) + single(1e-8))
    else:
        first = single(0.9) * state["exp_avg"] + single(0.1) * gradient
        square = single(0.999) * state["exp_avg_sq"] + (single(0.001) * gradient) * gradient
        moments = {"exp_avg": first, "exp_avg_sq": square}
        size, root = 1e-3 / (1 - 0.9**step), (1 - 0.999**step) ** 0.5
        weights = weights - (single(size) * first) / (np.sqrt(square) / single(root) + single(1e-8))
    after = {"state": {0: {"step": step, **moments}}, "param_groups": optimizer["param_groups"]}
    return {"model": {"w": weights}, "optimizer": after}


class History:
    """``counts``: operations by name, and the versions that were read back (``checkouts``)."""

    def __init__(self, folder: Path, seed: str) -> None:
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.model = Expected()
        self._folder, self._root = folder, folder / "repo"
        self._clock = FixedClock(1_750_000_000_000_000_000, 1_000)
        Repository.init(self._root, clock=self._clock).close()
        settings = {
            "store.layout": self.rng.choice(LAYOUTS),
            "store.reset_interval": self.rng.choice((3, 10, 1000)),
        }
        for key, value in settings.items():
            set_value(FileSystem(), self._root / ".mvc/config.yaml", key, str(value))
        self.repo = self._open()

    def _open(self) -> Repository:
        fresh_process()
        return open_quietly(self._root, clock=self._clock)

    def run(self, steps: int) -> None:
        acts, weights = zip(*self._acts(), strict=True)
        try:
            for _ in range(steps):
                self._clock.advance(self.rng.choice((0, 10**9, 3600 * 10**9, 30_000 * 10**9)))
                (act,) = self.rng.choices(acts, weights)
                act()
                self.counts[act.__name__] += 1
                self._check()
            assert self.repo.storage.fsck(full=True).problems == ()
        finally:
            self.repo.close()

    def _acts(self) -> Iterator[tuple[Callable[[], None], int]]:
        yield self.commit_state, 22
        yield self.commit_steps, 8
        yield self.commit_files, 8
        yield self.commit_all_kinds, 4
        yield self.rename, 3
        yield self.commit_with_recipe, 3
        yield self.drop_weights, 3
        yield self.branch, 4
        yield self.switch, 4
        yield self.tag, 2
        yield self.delete, 3
        yield self.deploy, 5
        yield self.retract, 2
        yield self.undo, 4
        yield self.repack, 14
        yield self.join, 2
        yield self.forget, 5
        yield self.forget_by_rule, 4
        yield self.gc, 6
        yield self.fsck, 2
        yield self.reopen, 3
        yield self.treat_index, 5
        yield self.rebuild_index, 2

    # -- versions

    def _parent(self) -> dict[str, Any] | None:
        """What the tip has; None where it is forgotten, so that nothing can be taken over."""
        if self.model.tip is None:
            return {}
        tip = self.model.versions[self.model.tip]
        return None if tip.forgotten else dict(tip.contents)

    def _commit(self, state: Any = None, **named: Any) -> CommitResult | None:
        """None where the tip gave up weights that the new version would have to take over."""
        try:
            return self.repo.commit(state, **named, **self._options())
        except WeightsDropped:
            assert self.model.tip is not None and self.model.versions[self.model.tip].dropped
            self.counts["refused: commit"] += 1
            return None

    def _committed(self, id_: CommitId, contents: Mapping[str, Any], *needs: CommitId) -> None:
        self.model.versions[id_] = Version(self.model.tip, contents, needs)
        self.model.refs[f"heads/{self.model.head}"] = id_
        self.counts["commits"] += 1

    def _next(self, contents: Mapping[str, Any], path: str) -> dict[str, np.ndarray]:
        begun = contents.get(path)
        return arrays(self.rng) if begun is None else moved(begun, self.rng)

    def _options(self) -> dict[str, Any]:
        return {
            "options": CommitOptions(reset_point=self.rng.random() < 0.15),
            "metrics": {"acc": self.rng.random()},
            "message": "x" * self.rng.randrange(9),
        }

    def commit_state(self) -> None:
        contents = self._parent()
        if contents is None:
            return
        path, pipeline = self.rng.choice(STATES), self.rng.choice(PIPELINES)
        state = self._next(contents, path)
        done = self._commit(state, path=path, pipeline=pipeline)
        if done is not None:
            lossy = pipeline is not None and pipeline.startswith("lc")
            self._committed(done.id, contents | {path: done.state if lossy else state})

    def commit_steps(self) -> None:
        """A few steps of a training with the state of its optimizer."""
        for _ in range(self.rng.randrange(1, 4)):
            contents = self._parent()
            if contents is None:
                return
            known = contents.get(TRAINING)
            state = begun(self.rng) if known is None else stepped(known, self.rng)
            done = self._commit(state, path=TRAINING)
            if done is not None:
                self._committed(done.id, contents | {TRAINING: state})
                self.counts["predicted"] += bool(self.repo.storage.predicted(done.id))

    def commit_files(self) -> None:
        contents = self._parent()
        if contents is None:
            return
        made = {path: self._file(contents, path) for path in FILES if self.rng.random() < 0.7}
        for path, data in made.items():
            (self._root / path).write_bytes(data)
        if any(contents.get(path) != data for path, data in made.items()):
            done = self._commit([self._root / path for path in made])
            if done is not None:
                self._committed(done.id, contents | made)

    def _file(self, contents: Mapping[str, Any], path: str) -> bytes:
        """Opaque bytes with a small edit, or a model file."""
        if path.endswith(".safetensors"):
            return save(dict(arrays(random.Random(self.rng.randrange(4)))))
        data = bytearray(contents.get(path) or b"a note of some length, " * 40)
        at = self.rng.randrange(len(data))
        data[at:at] = self.rng.randbytes(3)
        return bytes(data)

    def commit_all_kinds(self) -> None:
        """Two states at once, deployed."""
        contents = self._parent()
        if contents is None:
            return
        states = {path: self._next(contents, path) for path in STATES}
        target = self.rng.choice(TARGETS)
        done = self._commit(states=states, deploy=target)
        if done is not None:
            self._committed(done.id, contents | states)
            self.model.deployed.append((target, done.id))

    def rename(self) -> None:
        contents, tip = self._parent(), self.model.tip
        if not contents or "notes.bin" not in contents or not tip:
            return
        if self.model.versions[tip].dropped:
            return  # the commit may be refused
        new = f"notes-{self.rng.randrange(3)}.bin"
        data = contents.pop("notes.bin")
        (self._root / new).write_bytes(data)
        (self._root / "notes.bin").unlink(missing_ok=True)
        done = self._commit([self._root / new, self._root / "notes.bin"])
        assert done is not None
        self._committed(done.id, contents | {new: data})

    def commit_with_recipe(self) -> None:
        """On a version that has all of its weights; it carries files of its own."""
        contents, base = self._parent(), self.model.tip
        if not contents or base is None or self.model.versions[base].dropped:
            return
        if not isinstance(contents.get(recipes.PATH), Mapping):
            return
        arguments = {"seed": self.rng.randrange(1 << 30)}
        made = recipes.trained(self.repo, again, arguments, base)
        self._committed(made, contents | {recipes.PATH: again(arguments)}, base)

    def drop_weights(self) -> None:
        kept = self._some(lambda version: bool(version.needs) and not version.dropped)
        if kept is None:
            return
        bases = [self.model.versions[id_] for id_ in self.model.versions[kept].needs]
        if any(base.forgotten for base in bases):
            with pytest.raises(StateForgotten):
                recipes.drop(self.repo, kept)
        else:
            recipes.drop(self.repo, kept)
            self.model.versions[kept].dropped = True

    def _some(self, fits: Callable[[Version], bool] = lambda _: True) -> CommitId | None:
        """One of the versions that are not forgotten."""
        versions = self.model.versions.items()
        known = sorted(id_ for id_, v in versions if not v.forgotten and fits(v))
        return self.rng.choice(known) if known else None

    # -- names

    def branch(self) -> None:
        name, commit = self.rng.choice(BRANCHES), self._some()
        if commit is not None and name != self.model.head:
            self.repo.branch(name, commit, force=True)
            self.model.refs[f"heads/{name}"] = commit

    def switch(self) -> None:
        name = self.rng.choice(BRANCHES)
        tip = self.model.refs.get(f"heads/{name}")
        if tip is None or self.model.versions[tip].forgotten or self.model.versions[tip].dropped:
            return
        try:
            self.repo.switch(name, force=True)
        except WeightsDropped:  # those of a version behind it, which it shares
            return
        self.model.head = name

    def tag(self) -> None:
        commit, name = self._some(), self.rng.choice(("v1", "v2", "v3"))
        if commit is not None:
            self.repo.tag(name, commit, force=True)
            self.model.refs[f"tags/{name}"] = commit

    def delete(self) -> None:
        names = sorted(self.model.refs.keys() - {f"heads/{self.model.head}"})
        if names:
            name = self.rng.choice(names)
            kind, _, short = name.partition("/")
            if kind == "heads":
                self.repo.delete_ref("branch", short, force=True)
            else:
                self.repo.delete_ref("tag", short)
            del self.model.refs[name]

    def deploy(self) -> None:
        commit, target = self._some(lambda version: not version.dropped), self.rng.choice(TARGETS)
        if commit is not None:
            self.repo.deploy(commit, target)
            self.model.deployed.append((target, commit))

    def retract(self) -> None:
        """Of the newest deployment on a target; what it led to stays reachable."""
        on = sorted({target for target, _ in self.model.deployed})
        if on:
            try:
                self.repo.retract(None, self.rng.choice(on))
            except NoDeployment:
                self.counts["refused: retract"] += 1

    def undo(self) -> None:
        try:
            done = self.repo.undo()
        except RefConflict:
            self.counts["refused: undo"] += 1
            return
        for change in done.entry.refs:
            if change.name == "HEAD":
                assert isinstance(change.new, str)
                self.model.head = change.new
                continue
            assert self.model.refs.get(change.name) == change.old
            self.model.refs.pop(change.name, None)
            if isinstance(change.new, CommitId):
                self.model.refs[change.name] = change.new

    # -- maintenance

    def repack(self) -> None:
        some = [id_ for id_ in {self._some(), self._some()} if id_ is not None]
        aims: list[dict[str, Any]] = [
            {},
            {"interval": self.rng.randint(1, 5)},
            {"max_recovery": self.rng.choice((1e-6, 0.01, 10.0))},
            {"max_size": self.rng.choice((1_000, 40_000, 10**9))},
            {"add_queried": self.rng.randint(1, 3)},
        ]
        if some:
            aims += [{"add": some}, {"remove": some[:1]}, {"remove": some}]
        aim = self.rng.choice(aims)
        name = "repack " + (next(iter(aim), "") or "by settings")
        try:
            self.repo.storage.repack(**aim)
        except (Unattainable, WrongUsage, WeightsDropped, NotTrusted):
            name = f"refused: {name}"
        self.counts[name] += 1

    def join(self) -> None:
        join(self.repo.handle.store, self.repo.handle.config, self.rng.randint(2, 4))

    def forget(self) -> None:
        known = sorted(self.model.versions)
        if not known:
            return
        commits = {self.rng.choice(known) for _ in range(self.rng.randint(1, 3))}
        try:
            chosen = self.repo.storage.forget(sorted(commits))
        except RefConflict:  # HEAD's, or what a recipe needs
            self.counts["refused: forget"] += 1
            return
        assert {commit.id for commit in chosen.commits} <= commits
        for commit in commits:
            self.model.versions[commit].forgotten = True
        for commit in chosen.restored:
            self.model.versions[commit].dropped = False

    def forget_by_rule(self) -> None:
        rules: dict[str, Any] = self.rng.choice(
            (
                {"keep_last": self.rng.randint(1, 9)},
                {"keep_hourly": self.rng.randint(1, 9)},
                {"keep_daily": self.rng.randint(1, 9)},
                {"keep_best": ["acc:5"]},
                {"keep_best": ["-acc:5"], "keep_last": 2},
                {"unused": self.rng.choice(TARGETS), "keep_last": 5},
                {"unqueried": True, "keep_last": 5},
            )
        )
        try:
            chosen = self.repo.storage.forget(**rules)
        except (UnknownMetric, UnknownTarget, WrongUsage):
            self.counts["refused: forget_by_rule"] += 1
            return
        going = {commit.id for commit in chosen.commits}
        assert not going & set(self.model.refs.values())
        for commit in going:
            self.model.versions[commit].forgotten = True

    def gc(self) -> None:
        grace = self.rng.choice((0, 0, 1, 20))
        self.repo.storage.gc(grace=timedelta(hours=grace))
        reachable = self.model.lead_to()
        for commit in sorted(self.model.versions.keys() - reachable):
            if not self._is_known(commit):
                del self.model.versions[commit]
            else:
                assert grace, "gc without a grace keeps what nothing leads to"

    def _is_known(self, commit: CommitId) -> bool:
        try:
            self.repo.version(commit)
        except UnknownRevision:
            return False
        return True

    def fsck(self) -> None:
        assert self.repo.storage.fsck(full=self.rng.random() < 0.5).problems == ()

    # -- opening, index

    def reopen(self) -> None:
        self.repo.close()
        self.repo = self._open()

    def treat_index(self) -> None:
        """From outside, while the repository is open: deleted, exchanged, set back."""
        foreign = self._folder / "foreign"
        if not foreign.exists():
            treatments.write(foreign, foreign_index())
        place = treatments.Place.beside(self._root, foreign, self.rng.randrange(2))
        name = self.rng.choice(sorted(treatments.TREATMENTS))
        treatments.TREATMENTS[name][0](place, self.rng)

    def rebuild_index(self) -> None:
        """By this opening or by another one, as another process would."""
        if self.rng.random() < 0.5:
            self.repo.storage.rebuild_index()
            return
        with Repository.open(self._root, discover=False, clock=self._clock) as other:
            other.storage.rebuild_index()

    # -- what must hold

    def _check(self) -> None:
        model = self.model
        names = {f"heads/{ref.name}": ref.commit for ref in self.repo.refs()}
        names |= {f"tags/{ref.name}": ref.commit for ref in self.repo.refs("tag")}
        assert names == model.refs
        for id_, version in model.versions.items():
            if version.forgotten:
                with pytest.raises(StateForgotten):
                    self.repo.checkout(id_)
            else:
                self._check_version(id_, version)
                self.counts["checkouts"] += 1

    def _check_version(self, id_: CommitId, version: Version) -> None:
        assert set(self.repo.manifest(id_).by_path) == set(version.contents)
        for path, expected in version.contents.items():
            try:
                if isinstance(expected, bytes):
                    target = self._folder / "restored.bin"
                    self.repo.checkout(id_, path=[path], to=target, force=True)
                    assert target.read_bytes() == expected
                else:
                    check_arrays(self.repo.checkout(id_, path=path), expected)
            except WeightsDropped:
                assert version.dropped and path == recipes.PATH
