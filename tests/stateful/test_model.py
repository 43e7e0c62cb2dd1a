"""A repository against a dictionary: any sequence of operations, compared after each step.

The model knows commits, their parents and contents, refs, deployments, what was forgotten.
What may be seen of the repository must equal it, and ``fsck`` must find nothing.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from mvc.api.repository import Repository
from mvc.errors import RefConflict
from mvc.ids import CommitId
from mvc.repo import refs
from mvc.repo.commit.request import CommitOptions
from mvc.testing import FixedClock, fresh_process, open_quietly
from tests.counters import count
from tests.crash import maintenance, treatments
from tests.crash.state import Checked, check_version, reachable, state_of
from tests.crash.story import foreign_index
from tests.seeds import draw

_BATCH = 15
PATHS = ("model.safetensors", "other.safetensors")
BRANCHES = ("main", "a", "b")
Recipe = dict[str, int]


@lru_cache(maxsize=64)
def arrays(number: int) -> dict[str, np.ndarray]:
    base = np.random.default_rng(1).standard_normal((20, 30)).astype(np.float32)
    base[number % 20] += np.float32(number)
    return {"w": base, "n": np.array(number % 3)}


@dataclass
class Model:
    """``commits``: parent and recipe of each; ``deployed``: target and commit."""

    commits: dict[CommitId, tuple[CommitId | None, Recipe]] = field(default_factory=dict)
    refs: dict[str, Any] = field(default_factory=lambda: {"HEAD": "main"})
    deployed: list[tuple[str, CommitId]] = field(default_factory=list)
    forgotten: set[CommitId] = field(default_factory=set)

    @property
    def head(self) -> CommitId | None:
        at = self.refs["HEAD"]
        return at if isinstance(at, CommitId) else self.refs.get(f"heads/{at}")

    def lead_to(self) -> set[CommitId]:
        waiting = [value for value in self.refs.values() if isinstance(value, CommitId)]
        waiting += [commit for _, commit in self.deployed]
        found: set[CommitId] = set()
        while waiting:
            commit = waiting.pop()
            if commit not in found:
                found.add(commit)
                parent, _ = self.commits[commit]
                waiting += [] if parent is None else [parent]
        return found


class RepositoryMachine(RuleBasedStateMachine):
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="mvc-model-", dir=_memory())
        self.root = Path(self.folder.name) / "repo"
        self.clock = FixedClock(1_750_000_000_000_000_000, 1_000)
        Repository.init(self.root, clock=self.clock).close()
        self.model = Model()
        self.repo = self._open()

    def _open(self) -> Repository:
        fresh_process()
        return open_quietly(self.root, clock=self.clock)

    def teardown(self) -> None:
        self.repo.close()
        self.folder.cleanup()

    def _commits(self) -> list[CommitId]:
        return sorted(self.model.commits)

    # -- versions

    @rule(
        path=st.sampled_from(PATHS),
        number=st.integers(0, 12),
        reset=st.booleans(),
        deploy=st.sampled_from((None, None, "prod")),
    )
    def commit(self, path: str, number: int, reset: bool, deploy: str | None) -> None:
        head = self.model.head
        if head in self.model.forgotten:
            return  # its paths cannot be taken over: refused
        made = self.repo.commit(
            arrays(number), path=path, deploy=deploy, options=CommitOptions(reset_point=reset)
        ).id
        before = {} if head is None else self.model.commits[head][1]
        self.model.commits[made] = (head, {**before, path: number})
        at = self.model.refs["HEAD"]
        self.model.refs["HEAD" if isinstance(at, CommitId) else f"heads/{at}"] = made
        if deploy is not None:
            self.model.deployed.append((deploy, made))

    @precondition(lambda self: self.model.commits)
    @rule(data=st.data(), name=st.sampled_from(("prod", "edge")))
    def deploy(self, data: st.DataObject, name: str) -> None:
        commit = data.draw(st.sampled_from(self._commits()))
        if commit in self.model.forgotten:
            return
        self.repo.deploy(commit, name)
        self.model.deployed.append((name, commit))

    # -- refs

    @precondition(lambda self: self.model.commits)
    @rule(data=st.data(), name=st.sampled_from(BRANCHES))
    def branch(self, data: st.DataObject, name: str) -> None:
        commit = data.draw(st.sampled_from(self._commits()))
        if self.model.refs["HEAD"] == name:
            return
        self.repo.branch(name, commit.hex(), force=True)
        self.model.refs[f"heads/{name}"] = commit

    @rule(name=st.sampled_from(BRANCHES))
    def delete_branch(self, name: str) -> None:
        assume(f"heads/{name}" in self.model.refs and self.model.refs["HEAD"] != name)
        refs.delete_branch(self.repo.handle.store, name, force=True)
        del self.model.refs[f"heads/{name}"]

    @rule(name=st.sampled_from(BRANCHES))
    def switch(self, name: str) -> None:
        tip = self.model.refs.get(f"heads/{name}")
        assume(tip is not None and tip not in self.model.forgotten)
        self.repo.switch(name, force=True)
        self.model.refs["HEAD"] = name

    @precondition(lambda self: self.model.commits)
    @rule(data=st.data(), name=st.sampled_from(("v1", "v2")))
    def tag(self, data: st.DataObject, name: str) -> None:
        commit = data.draw(st.sampled_from(self._commits()))
        self.repo.tag(name, commit.hex(), force=True)
        self.model.refs[f"tags/{name}"] = commit

    @rule(name=st.sampled_from(("v1", "v2")))
    def delete_tag(self, name: str) -> None:
        assume(f"tags/{name}" in self.model.refs)
        refs.delete_tag(self.repo.handle.store, name)
        del self.model.refs[f"tags/{name}"]

    @rule()
    def undo(self) -> None:
        """What it says that it did is what it did; nothing but refs is touched."""
        try:
            done = self.repo.undo()
        except RefConflict:
            return
        for change in done.entry.refs:
            assert self.model.refs.get(change.name) == change.old
            if change.new is None:
                del self.model.refs[change.name]
            else:
                self.model.refs[change.name] = change.new

    # -- maintenance

    @rule()
    def gc(self) -> None:
        maintenance.collect(self.repo.handle)
        kept = self.model.lead_to()
        self.model.commits = {c: v for c, v in self.model.commits.items() if c in kept}

    @rule(interval=st.integers(1, 4))
    def repack(self, interval: int) -> None:
        maintenance.repack(self.repo.handle, interval)

    @precondition(lambda self: self.model.commits)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        commit = data.draw(st.sampled_from(self._commits()))
        if commit == self.model.head:
            with pytest.raises(RefConflict):
                maintenance.forget_named(self.repo.handle, commit)
            return
        maintenance.forget_named(self.repo.handle, commit)
        self.model.forgotten.add(commit)

    # -- opening, index

    @rule()
    def reopen(self) -> None:
        self.repo.close()
        self.repo = self._open()

    @rule(name=st.sampled_from(sorted(treatments.TREATMENTS)), number=st.integers(0, 5))
    def treat_index(self, name: str, number: int) -> None:
        """From outside, while the repository is open: deleted, exchanged, set back."""
        place = treatments.Place.beside(self.root, self._foreign(), number % 2)
        treatments.TREATMENTS[name][0](place, random.Random(number))

    def _foreign(self) -> Path:
        folder = self.root.parent / "foreign"
        if not folder.exists():
            treatments.write(folder, foreign_index())
        return folder

    @rule(inside=st.booleans())
    def rebuild_index(self, inside: bool) -> None:
        """By this opening or by another one, as another process would."""
        if inside:
            self.repo.storage.rebuild_index()
            return
        with Repository.open(self.root, discover=False, clock=self.clock) as other:
            other.storage.rebuild_index()

    @rule()
    def extend_index(self) -> None:
        self.repo.handle.store.fresh().index_tail(force=True)

    @rule(data=st.data())
    def damage_index(self, data: st.DataObject) -> None:
        self.repo.handle.store.fresh().index_tail(force=True)
        self.repo.close()
        for file in treatments.data_files(self.root / treatments.INDEX):
            content = bytearray(file.read_bytes())
            at = data.draw(st.integers(8192, len(content) - 1)) if len(content) > 8192 else 0
            content[at] ^= 1 << data.draw(st.integers(0, 7))
            file.write_bytes(content)
        self.repo = self._open()

    # -- what must hold

    @invariant()
    def equal(self) -> None:
        RepositoryMachine.steps += 1
        now = state_of(self.repo.handle)
        assert dict(now.refs) == self.model.refs
        assert sorted(now.commits) == self._commits()
        assert set(now.forgotten) == self.model.forgotten
        assert sorted((t, c) for t, _, c, _ in now.deployments) == sorted(self.model.deployed)
        assert reachable(self.repo.handle, now) == self.model.lead_to()
        checked: Checked = {}
        for commit in now.commits:
            _, recipe = self.model.commits[commit]
            contents = {path: arrays(number) for path, number in recipe.items()}
            check_version(self.repo, now, commit, contents, checked)
        report = self.repo.storage.fsck()
        assert [p for p in report.problems if p.kind != "index"] == []


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _run(examples: int, steps: int) -> None:
    done, steps_before = 0, RepositoryMachine.steps
    rng = draw("model")
    while done < examples:
        size = min(_BATCH, examples - done)
        machine = type("Machine", (RepositoryMachine,), {})
        run_machine(
            seed(rng.getrandbits(32))(machine),
            settings=settings(
                max_examples=size,
                stateful_step_count=steps,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        done += size
    count(
        "repository against a dictionary",
        lives=done,
        steps=RepositoryMachine.steps - steps_before,
    )


def test_a_repository_is_what_a_dictionary_says() -> None:
    _run(15, 20)


@pytest.mark.long
@pytest.mark.parametrize("round_", range(6))
def test_a_repository_is_what_a_dictionary_says_in_many_lives(round_: int) -> None:
    _run(125, 50)
