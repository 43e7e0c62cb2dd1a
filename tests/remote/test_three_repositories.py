"""Three repositories and a remote: any sequence of operations, clean after each, equal in the end.

The model knows what every version ever made must give back, and which were forgotten anywhere.
A state that nobody forgot comes back bit for bit wherever its version is known. In the end all
sync in any order: then deployments, retractions and what was live when are the same for all. Who
was in conflict on a target has what the remote has of it, and more (test_one_truth.py). So has
who took back a deployment before it was sent and others deployed meanwhile: it changes no answer.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

import mvc
from mvc.api import Gone
from mvc.api.repository import Repository
from mvc.errors import (
    NoDeployment,
    RefConflict,
    StateForgotten,
    UnknownRevision,
    UnknownTarget,
    WeightsDropped,
    WrongUsage,
)
from mvc.ids import CommitId, StatementId
from mvc.io.files import FileSystem
from mvc.repo.config import set_value
from mvc.repo.lookup.availability import dropped
from mvc.repo.statements.live import Deployed, live_now
from mvc.testing import FixedClock, fresh_process, open_quietly
from tests.counters import count
from tests.crash.state import check_arrays
from tests.recipes import by_hand
from tests.remote.kit.places import KINDS, Place, place
from tests.remote.kit.same import answers, known, refs_of
from tests.seeds import draw

NAMES = ("ada", "ben", "cleo")
BRANCHES, TARGETS = ("main", "side"), ("prod", "edge")
SECOND = 1_000_000_000
WHO = st.sampled_from(NAMES)
Arrays = Mapping[str, np.ndarray]
T = TypeVar("T")


@lru_cache(maxsize=512)
def arrays(number: int) -> dict[str, np.ndarray]:
    base = np.random.default_rng(1).standard_normal((20, 30)).astype(np.float32)
    base[number % 20] += np.float32(number)
    return {"w": base, "n": np.array(number)}


def again(arguments: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return arrays(arguments["number"])


class Person:
    """One of the three: a repository with a clock of its own."""

    def __init__(self, name: str, root: Path, start: int) -> None:
        self.name, self.root = name, root
        self.clock = FixedClock(start, 1_000_003)
        self.apart: set[str] = set()  # targets on which it was in conflict
        set_value(FileSystem(), root / ".mvc/config.yaml", "user.name", name)
        self.repo = self._open()

    def _open(self) -> Repository:
        fresh_process()
        return open_quietly(self.root, clock=self.clock)

    def reopen(self) -> None:
        self.repo.close()
        self.repo = self._open()

    def note(self) -> None:
        """Notes conflicts: a decision that ends one stays here with what it drops."""
        if self.repo.remotes.list():
            found = self.repo.remotes.unsent()
            self.apart |= {each.target for each in found if each.state == "conflict"}


class RemoteMachine(RuleBasedStateMachine):
    steps = 0
    done: Counter[str] = Counter()
    kind = "folder"

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="mvc-remotes-", dir=_memory())
        self.start = time.time_ns()  # the remote's clock is that of the computer
        self.states: dict[CommitId, Arrays] = {}
        self.forgotten: set[CommitId] = set()
        self.number = 0
        self.people: dict[str, Person] = {}
        self._place = place(self.kind, Path(self.folder.name))
        self.remote: Place = self._place.__enter__()

    @initialize(offs=st.lists(st.integers(-5, 5), min_size=3, max_size=3))
    def begin(self, offs: list[int]) -> None:
        """One has a version already, and gives it to the others."""
        root = Path(self.folder.name)
        for name, off in zip(NAMES, offs, strict=True):
            if name == NAMES[0]:
                Repository.init(root / name, clock=FixedClock(self.start)).close()
                self.people[name] = Person(name, root / name, self.start + off * SECOND)
                self.commit(name, 0, "prod")
                self.people[name].repo.remotes.add("origin", self.remote.url)
                self.people[name].repo.push("origin", ["main"])
            else:
                mvc.clone(self.remote.url, root / name).close()
                self.people[name] = Person(name, root / name, self.start + off * SECOND)
        self._check(*NAMES)

    def teardown(self) -> None:
        try:
            if len(self.people) == len(NAMES):
                self._sync()
        finally:
            for person in self.people.values():
                person.repo.close()
            self._place.__exit__(None, None, None)
            self.folder.cleanup()

    # -- versions

    @rule(who=WHO, numbers=st.lists(st.integers(0, 12), min_size=1, max_size=4),
          deploy=st.sampled_from((None, *TARGETS)))  # fmt: skip
    def commits(self, who: str, numbers: list[int], deploy: str | None) -> None:
        for number in numbers:
            self.commit(who, number, deploy)
        self._check(who)

    def commit(self, who: str, number: int, deploy: str | None) -> None:
        self.people[who].note()
        repo = self.people[who].repo
        self.number += 1
        state = arrays(100 * number + self.number % 7)
        with suppress(WeightsDropped, StateForgotten):
            made = repo.commit(
                state,
                path=by_hand.PATH,
                deploy=deploy,
                options=mvc.CommitOptions(reset_point=not number),
            )
            self.states[made.id] = state
            self.done["commits"] += 1

    @rule(who=WHO, number=st.integers(0, 9))
    def train(self, who: str, number: int) -> None:
        """A version with a recipe, whose weights may be given up."""
        repo = self.people[who].repo
        base = repo.head().commit
        if base is None or self._absent(repo, base):
            return
        with suppress(StateForgotten, WeightsDropped):
            made = by_hand.trained(repo, again, {"number": number}, base)
            self.states[made] = arrays(number)
        self._check(who)

    @rule(who=WHO, data=st.data())
    def drop_weights(self, who: str, data: st.DataObject) -> None:
        repo = self.people[who].repo
        there = set(known(repo))
        ids = [id_ for id_ in self.states if id_ in there and repo.version(id_).needs]
        if ids:
            with suppress(StateForgotten, WeightsDropped):
                by_hand.drop(repo, data.draw(st.sampled_from(ids)))
                self.done["drops"] += 1
        self._check(who)

    # -- names and deployments

    @rule(who=WHO, name=st.sampled_from(BRANCHES))
    def switch(self, who: str, name: str) -> None:
        repo = self.people[who].repo
        there = {branch.name for branch in repo.refs()}
        with suppress(WeightsDropped, StateForgotten, RefConflict):
            repo.switch(name, create=name not in there, force=True)
        self._check(who)

    @rule(who=WHO, name=st.sampled_from(("v1", "v2")), data=st.data())
    def tag(self, who: str, name: str, data: st.DataObject) -> None:
        repo = self.people[who].repo
        repo.tag(name, self._drawn(repo, data), force=True)
        self._check(who)

    @rule(who=WHO, on=st.sampled_from(TARGETS), ago=st.sampled_from((None, None, -50, 5, 900)),
          data=st.data())  # fmt: skip
    def deploy(self, who: str, on: str, ago: int | None, data: st.DataObject) -> None:
        person = self.people[who]
        id_ = self._drawn(person.repo, data)
        at = None if ago is None else self.start - ago * SECOND
        person.note()
        with suppress(StateForgotten, WeightsDropped):
            person.repo.deploy(id_, on, at=at)
        self._check(who)

    @rule(who=WHO, on=st.sampled_from(TARGETS))
    def retract(self, who: str, on: str) -> None:
        self.people[who].note()
        with suppress(NoDeployment, UnknownTarget):
            self.people[who].repo.retract(None, on)
        self._check(who)

    @rule(who=WHO, data=st.data())
    def annotate(self, who: str, data: st.DataObject) -> None:
        repo = self.people[who].repo
        repo.annotate(self._drawn(repo, data), metrics={"auc": self.number / 9})
        self._check(who)

    @rule(who=WHO)
    def undo(self, who: str) -> None:
        with suppress(RefConflict):
            self.people[who].repo.undo()
        self._check(who)

    # -- maintenance, here and at the remote

    @rule(who=st.sampled_from((*NAMES, "origin")), data=st.data())
    def forget_by_name(self, who: str, data: st.DataObject) -> None:
        chosen = self._on(who, lambda repo: self._drawn(repo, data), reads=True)
        self._on(who, lambda repo: self._forget(repo, [chosen]))
        self._check(*self.people)

    @rule(who=st.sampled_from((*NAMES, "origin")), last=st.integers(1, 6))
    def forget_by_rule(self, who: str, last: int) -> None:
        self._on(who, lambda repo: self._forget(repo, keep_last=last))
        self._check(*self.people)

    def _forget(self, repo: Repository, ids: list[CommitId] | None = None, **rules: Any) -> None:
        with suppress(RefConflict, WrongUsage):
            gone = {c.id for c in repo.storage.forget(ids or (), **rules).commits}
            self.forgotten |= gone
            self.done["forgotten"] += len(gone)

    @rule(who=st.sampled_from((*NAMES, "origin")), interval=st.integers(0, 4))
    def maintain(self, who: str, interval: int) -> None:
        """gc, or repack with an interval."""

        def act(repo: Repository) -> None:
            if interval:
                with suppress(WeightsDropped):
                    repo.storage.repack(interval=interval)
            else:
                repo.storage.gc(grace="0")

        self._on(who, act)
        self._check(who)

    def _drawn(self, repo: Repository, data: st.DataObject) -> CommitId:
        """One of the versions, in the order in which they were made: ids are others each time."""
        there = set(known(repo))
        return data.draw(st.sampled_from([id_ for id_ in self.states if id_ in there]))

    def _on(self, who: str, act: Callable[[Repository], T], *, reads: bool = False) -> T:
        remote = who == "origin"
        return self.remote.own(act, reads=reads) if remote else act(self.people[who].repo)

    # -- the remote

    @precondition(lambda self: self.people)
    @rule(who=WHO, force=st.booleans(), partial=st.booleans())
    def push(self, who: str, force: bool, partial: bool = True) -> None:
        """A refusal is one by name, and takes nothing away."""
        with suppress(RefConflict, StateForgotten, WeightsDropped):
            done = self.people[who].repo.push("origin", every=True, force=force, partial=partial)
            self.people[who].apart |= {each.target for each in done.refused}
            self.done["pushes"] += 1
        self._check(who, "origin")

    @rule(who=WHO, to=WHO, number=st.integers(0, 12), on=st.sampled_from((None, *TARGETS)))
    def share(self, who: str, to: str, number: int, on: str | None) -> None:
        """One pulls, commits and pushes; another one pulls."""
        self.pull(who)
        self.commit(who, number, on)
        self.push(who, force=False)
        self.pull(to)

    @rule(who=WHO, states=st.sampled_from((None, "live", "last:1", "none")))
    def fetch(self, who: str, states: str | None) -> None:
        """What did not come counts as forgotten; what is live came, if the remote has it."""
        repo = self.people[who].repo
        before = set(known(repo, tracked=True))
        repo.fetch("origin", states=states)
        if states is not None:
            came = set(known(repo, tracked=True)) - before
            self.forgotten |= {id_ for id_ in came if self._is_gone(repo, id_)}
        if states in ("live", "last:1"):
            live = {*live_now(repo.handle.store)}
            here = {id_ for id_ in live if self._is_gone(repo, id_)}
            there = self.remote.own(lambda own: self._whole(own, here), reads=True)
            assert not {id_ for id_ in there if not repo.availability(id_).named}
            self.done["live"] += len(live - before - here)
        self._check(who)

    @staticmethod
    def _is_gone(repo: Repository, id_: CommitId) -> bool:
        return isinstance(repo.availability(id_), Gone)

    def _whole(self, repo: Repository, ids: set[CommitId]) -> set[CommitId]:
        """Those that are here with all that they are made from."""
        there = ids & set(known(repo))
        needs = {id_: (id_, *repo.version(id_).needs) for id_ in there}
        return {i for i in there if not any(self._is_gone(repo, each) for each in needs[i])}

    @rule(who=WHO)
    def pull(self, who: str) -> None:
        (self.people[who].root / by_hand.PATH).unlink(missing_ok=True)  # never of a newer state
        with suppress(RefConflict, StateForgotten, WeightsDropped, UnknownRevision):
            self.people[who].repo.pull("origin")
            self.done["pulls"] += 1
        self._check(who)

    @rule(who=WHO)
    def reopen(self, who: str) -> None:
        self.people[who].reopen()
        self._check(who)

    # -- what must hold

    def _absent(self, repo: Repository, id_: CommitId) -> bool:
        try:
            repo.checkout(id_, path=by_hand.PATH)
        except (StateForgotten, WeightsDropped):
            return True
        return False

    def _check(self, *who: str) -> None:
        if len(self.people) < len(NAMES):
            return
        type(self).steps += 1

        def look(repo: Repository) -> None:
            assert repo.storage.fsck(full=True).problems == ()
            for id_ in known(repo):
                self._check_version(repo, id_)

        for name in who:
            self._on(name, look, reads=True)

    def _check_version(self, repo: Repository, id_: CommitId) -> None:
        """Its bits, or refused by name; forgotten only where it was forgotten somewhere.

        A version that came without weights counts as forgotten where its base is absent.
        """
        try:
            state = repo.checkout(id_, path=by_hand.PATH)
        except StateForgotten:
            if id_ not in self.forgotten:
                assert any(self._is_gone(repo, base) for base in repo.version(id_).needs)
                assert not repo.availability(id_).named
                self.forgotten.add(id_)
        except WeightsDropped:
            assert repo.version(id_).needs
        else:
            check_arrays(state, self.states[id_])

    def _settled(self, repo: Repository, act: Callable[[], object]) -> None:
        """A version without weights is refused where its base is gone: they are stored again."""
        try:
            act()
        except WeightsDropped as error:
            assert error.hint is not None and "mvc retrain" in error.hint
            for name in NAMES:
                self._store_again(self.people[name].repo)
            self._on("origin", self._store_again)
            act()

    def _store_again(self, repo: Repository) -> None:
        for id_ in known(repo):
            is_gone = self._is_gone(repo, id_)  # dropped first, and forgotten later
            if not is_gone and dropped(repo.handle.store, id_) is not None:
                by_hand.store_again(repo, id_, again)

    def _sync(self) -> None:
        """In any order: everybody gives what they have under names of their own, and takes all."""
        order = random.Random(self.number).sample(NAMES, len(NAMES))
        for name in order:
            repo = self.people[name].repo
            for ref, id_ in refs_of(repo).items():
                repo.branch(f"{name}/{ref.replace('/', '-')}", id_, force=True)
            for i, id_ in enumerate(sorted({d.commit for d in repo.deployments()})):
                repo.branch(f"{name}/deployed-{i}", id_, force=True)
            mine = [b.name for b in repo.refs() if b.name.startswith(f"{name}/")]
            self._settled(repo, lambda repo=repo: repo.fetch("origin"))
            self.people[name].note()
            self._settled(repo, lambda repo=repo, m=mine: repo.push("origin", m, partial=True))
            self.people[name].note()
        for name in reversed(order):
            repo = self.people[name].repo
            self._settled(repo, lambda repo=repo: repo.fetch("origin"))
            self.people[name].note()
        self._check(*NAMES, "origin")
        expected = self.remote.own(answers, reads=True)
        sent = self.remote.own(lambda repo: {d.id for d in repo.deployments()}, reads=True)
        for name in NAMES:
            repo, apart = self.people[name].repo, self.people[name].apart
            found = answers(repo, _given_up(repo, name, sent))
            self.done["targets"] += len(TARGETS)
            self.done["apart"] += len(apart)
            there, here = ([row[:4] for row in each["deployments"]] for each in (expected, found))
            assert {*there} <= {*here}, name
            for question in expected.keys() - {f"now {target}" for target in TARGETS}:
                if question == "deployments":
                    there, here = (
                        [row for row in each[question] if row[0] not in apart]
                        for each in (expected, found)
                    )
                    assert there == here, (name, question)
                elif question.rpartition(" ")[2] not in apart:
                    assert found[question] == expected[question], (name, question)


def _given_up(repo: Repository, name: str, sent: set[StatementId]) -> set[StatementId]:
    """What a person took back before it was sent, and others changed the target meanwhile."""
    every = list(repo.deployments())

    def is_refused(own: Deployed) -> bool:
        others = (each for each in every if each.id in sent and each.target == own.target)
        return any(
            (each.author != name and each.sequence > own.sequence)
            or (each.id == own.replaces and each.retracted_by != name and each.retracted)
            for each in others
        )

    mine = (each for each in every if each.id not in sent and each.author == name)
    return {each.id for each in mine if each.retracted and is_refused(each)}


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _run(kind: str, examples: int, steps: int) -> None:
    rng = draw("remotes")
    machine = type("Machine", (RemoteMachine,), {"kind": kind, "done": Counter()})
    run_machine(
        seed(rng.getrandbits(32))(machine),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    count(
        f"three repositories and a remote ({kind})",
        lives=examples,
        steps=machine.steps,
        **machine.done,
    )


def test_taken_back_before_it_was_sent() -> None:
    """Others deployed meanwhile: it stays here, and changes no answer."""
    machine = RemoteMachine()
    machine.begin([1, 1, 1])
    machine.commit("cleo", 1, "edge")
    machine.retract(on="edge", who="cleo")
    machine.share(who="ben", to="cleo", number=7, on="edge")
    machine.teardown()


def test_three_repositories_and_a_remote() -> None:
    _run("folder", 3, 20)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("round_", range(2))
def test_three_repositories_and_a_remote_in_many_lives(kind: str, round_: int) -> None:
    _run(kind, 40, 40)
