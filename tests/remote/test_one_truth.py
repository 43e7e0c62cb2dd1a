"""Two clones and a server against a model with one truth: what is live, and what clones say of it.

The model knows what the server has accepted, in order, what each clone has heard of that, and what
each clone has recorded and not sent.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

import mvc
from mvc.api.repository import Repository
from mvc.errors import NoDeployment, RefConflict, UnknownTarget
from mvc.ids import CommitId, StatementId
from mvc.remote.push import Pushed
from mvc.repo.statements.live import Deployed
from mvc.testing import FixedClock, open_quietly
from tests.counters import count
from tests.remote.kit.places import Place, place
from tests.seeds import draw

NAMES, TARGETS = ("ada", "bob"), ("prod", "edge")
SECOND = 10**9
WHO, ON = st.sampled_from(NAMES), st.sampled_from(TARGETS)
VERB = st.sampled_from(("deploy", "rollback", "retract"))
AT_ONCE = st.sampled_from((False, False, True))
Versions = tuple[CommitId, ...]
NONE: frozenset[StatementId] = frozenset()


@dataclass(frozen=True)
class Operation:
    """It deploys ``made``, if that is not None, and takes others back.

    ``commits``: the versions of all deployments that there are.
    """

    target: str
    made: Deployed | None
    replaces: StatementId | None
    takes_back: frozenset[StatementId] = NONE
    commits: dict[StatementId, CommitId] = field(default_factory=dict)

    @property
    def id(self) -> StatementId | None:
        return None if self.made is None else self.made.id

    @property
    def versions(self) -> set[CommitId]:
        return {self.commits[id_] for id_ in (self.id, *self.takes_back) if id_ is not None}

    def among(self, versions: Collection[CommitId]) -> Operation:
        """What it says of these."""
        return self.without([id_ for id_, commit in self.commits.items() if commit not in versions])

    def __bool__(self) -> bool:
        return self.made is not None or bool(self.takes_back)

    def without(self, ids: Collection[StatementId]) -> Operation:
        made = None if self.id in ids else self.made
        return replace(self, made=made, takes_back=self.takes_back.difference(ids))


@dataclass
class Record:
    """Deployments as they were accepted, and those that were taken back."""

    made: dict[StatementId, Deployed] = field(default_factory=dict)
    taken_back: set[StatementId] = field(default_factory=set)

    def copy(self) -> Record:
        return Record({**self.made}, {*self.taken_back})

    def live(self, target: str) -> Deployed | None:
        """The last one that counts."""
        counting = (d for d in reversed(self.made.values()) if d.id not in self.taken_back)
        return next((d for d in counting if d.target == target), None)

    def add(self, each: Operation) -> None:
        if each.made is not None:
            self.made.setdefault(each.made.id, each.made)
        self.taken_back |= each.takes_back

    def accepts(self, each: Operation) -> bool | None:
        """Whether an operation replaces what is live, and is added; None if it says nothing new."""
        if (each.id is None or each.id in self.made) and not self.counting(each):
            return None
        live = self.live(each.target)
        if each.replaces != (None if live is None else live.id):
            return False
        self.add(each)
        return True

    def counting(self, each: Operation) -> frozenset[StatementId]:
        """What it takes back and counts here."""
        return each.takes_back.intersection(self.made) - self.taken_back


class Stamped(Record):
    """What a clone knows: it hears of deployments in another order than that of their stamps."""

    def live(self, target: str) -> Deployed | None:
        self.made = dict(sorted(self.made.items(), key=lambda item: item[1].order))
        return super().live(target)

    def copy(self) -> Stamped:
        return Stamped({**self.made}, {*self.taken_back})


@dataclass
class Clone:
    """``heard``: what it knows of the server's record. ``unsent``: its own operations, in order.

    ``own``: its own record, all of it.
    """

    heard: Stamped
    own: Stamped
    versions: set[CommitId] = field(default_factory=set)
    unsent: list[Operation] = field(default_factory=list)
    head: CommitId | None = None
    seen: set[CommitId] = field(default_factory=set)

    def expected(self, target: str) -> tuple[Record, set[StatementId], bool]:
        """What the server would then have, what it would not accept, and whether it would anything.

        Of what it would not accept that which still counts here or there.
        """
        there, refused, sent = self.heard.copy(), list[Operation](), False
        for each in self.unsent:
            if each.target == target:
                done = there.accepts(each)
                sent |= done is True
                refused += [each] if done is False else []
        made = {each.id for each in refused if each.id is not None}
        found = made - self.own.taken_back
        return there, found.union(*(there.counting(each) for each in refused)), sent

    def due(self, target: str, given_up: Collection[StatementId] = ()) -> list[CommitId]:
        """The versions of what is to be sent of a target."""
        own = (each.without(given_up) for each in self.unsent if each.target == target)
        return [id_ for each in own for id_ in each.versions]

    def state(self, target: str) -> str:
        _, refused, sent = self.expected(target)
        return "conflict" if refused else "not sent" if sent else "in step"


class TruthMachine(RuleBasedStateMachine):
    """``there``: versions that the server has, ``tips``: its branches by who pushes them.

    ``unnamed``: versions that came without a branch since the last one moved.
    """

    steps = 0
    done: Counter[str] = Counter()
    kind = "folder"

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="mvc-truth-", dir=_memory())
        self.number = 0
        self.record = Record()
        self.behind: dict[CommitId, frozenset[CommitId]] = {}
        self.commits: dict[StatementId, CommitId] = {}
        self.there: set[CommitId] = set()
        self.tips: dict[str, CommitId] = {}
        self.unnamed: set[CommitId] = set()
        self.clones: dict[str, Clone] = {}
        self.repos: dict[str, Repository] = {}
        self._place = place(self.kind, Path(self.folder.name))
        self.remote: Place = self._place.__enter__()

    @initialize(offs=st.lists(st.integers(-5, 5), min_size=2, max_size=2))
    def begin(self, offs: list[int]) -> None:
        """Both know two versions, of which the second is live on one target."""
        root, now = Path(self.folder.name), time.time_ns()
        assert self.remote.root is not None
        self.server = open_quietly(self.remote.root)
        Repository.init(root / "ada").close()
        for name, off in zip(NAMES, offs, strict=True):
            if name == "bob":
                mvc.clone(self.remote.url, root / name).close()
            self.number += 500_009  # no two deployments have one time
            clock = FixedClock(now + off * SECOND + self.number, 1_000_003)
            repo = self.repos[name] = open_quietly(root / name, clock=clock)
            self.clones[name] = Clone(Stamped(), Stamped())
            if name == "ada":
                repo.remotes.add("origin", self.remote.url)
                self.commit("ada", None)
                self.commit("ada", "prod")
                self.push("ada")
            else:
                repo.switch("bobs", create=True)
                self.fetch("bob")
                self.clones["bob"].head = self.clones["ada"].head

    def teardown(self) -> None:
        for repo in self.repos.values():
            repo.close()
        self._place.__exit__(None, None, None)
        self.folder.cleanup()

    # -- what a clone records

    @rule(who=WHO, on=st.sampled_from((None, *TARGETS)))
    def commit(self, who: str, on: str | None) -> None:
        """It ends no conflict: what it replaces is what is live here."""
        repo, clone = self.repos[who], self.clones[who]
        self.number += 1
        made = repo.commit({"w": np.full(4, self.number, np.float32)}, deploy=on).id
        behind = frozenset() if clone.head is None else self.behind[clone.head]
        self.behind[made] = behind | {made}
        clone.versions.add(made)
        clone.head = made
        if on is not None:
            (deployed,) = repo.deployments(rev=made)
            clone.unsent.append(self._operation(deployed, clone.own.live(on)))
            clone.own.add(clone.unsent[-1])

    @rule(who=WHO, on=ON, data=st.data(), at_once=AT_ONCE)
    def deploy(self, who: str, on: str, data: st.DataObject, at_once: bool) -> None:
        known = [id_ for id_ in self.behind if id_ in self.clones[who].versions]
        chosen = data.draw(st.sampled_from(known))
        self._decide(who, on, "deploy", chosen, on, push=at_once, version=(chosen,))

    @rule(who=WHO, on=ON, at_once=AT_ONCE)
    def rollback(self, who: str, on: str, at_once: bool) -> None:
        self._decide(who, on, "rollback", on, push=at_once)

    @rule(who=WHO, on=ON, at_once=AT_ONCE)
    def retract(self, who: str, on: str, at_once: bool) -> None:
        self._decide(who, on, "retract", None, on, push=at_once)

    def _decide(
        self, who: str, on: str, verb: str, *arguments: Any, push: bool, version: Versions = ()
    ) -> None:
        """Replaces what is live at the server, as far as is known here, and ends a conflict."""
        clone = self.clones[who]
        if not version and any(each.target != on for each in clone.unsent):
            push = False  # which of them would go along depends on what it comes to
        there, refused, _ = clone.expected(on)
        try:
            made = getattr(self.repos[who], verb)(*arguments, push=push)
        except (NoDeployment, UnknownTarget):
            return
        except RefConflict:
            assert push
            self.done["refused at once"] += 1
            given_up = refused if verb != "retract" else ()
            led_to = self._led_to(who, *version, *clone.due(on, given_up))
            self._sent(who, led_to, given_up)
            return
        self.done[verb] += 1
        live = there.live(on)
        if verb == "retract":
            ids, replaces = frozenset({made.id}), None if live is None else live.id
            due = Operation(on, None, replaces, ids, self.commits)
        else:
            due = self._operation(made, live, refused)
        self._due(who, due, refused, sent=push)

    @rule(who=WHO, on=ON)
    def rollback_there(self, who: str, on: str) -> None:
        """It goes by the server's record, and takes back what was not sent."""
        clone = self.clones[who]
        try:
            made = self.repos[who].rollback(on, remote="origin")
        except (NoDeployment, UnknownTarget):
            self._heard(who)
            return
        self._heard(who)
        self.done["rollbacks there"] += 1
        own = [each for each in clone.unsent if each.target == on]
        ids = {each.id for each in own if each.id is not None} - clone.own.taken_back
        ids = ids.union(*(self.record.counting(each) for each in own))
        due = self._operation(made, self.record.live(on), ids)
        self._due(who, due, ids, sent=True)

    def _due(
        self, who: str, due: Operation, given_up: Collection[StatementId], *, sent: bool
    ) -> None:
        clone = self.clones[who]
        ids = due.takes_back.intersection(given_up)
        said = due.without(ids.intersection(each.id for each in clone.unsent))
        clone.unsent = [each.without(ids) for each in clone.unsent]
        clone.own.add(due)
        if not sent:
            clone.unsent.append(said)
            return
        self._sent(who, self._led_to(who, *said.versions, *clone.due(due.target)))
        assert self.record.accepts(due) is not False
        clone.unsent = [each.without(due.takes_back) for each in clone.unsent]
        clone.heard.add(due)

    def _operation(
        self, made: Deployed, live: Deployed | None, takes_back: Collection[StatementId] = ()
    ) -> Operation:
        replaces = None if live is None else live.id
        assert made.replaces == replaces
        ids = frozenset(takes_back)
        self.commits[made.id] = made.commit
        return Operation(made.target, made, replaces, ids, self.commits)

    # -- to and from the server

    @rule(who=WHO)
    def push(self, who: str) -> None:
        head = self.clones[who].head
        assert head is not None
        led_to = self._led_to(who, head)
        done = self.repos[who].push()
        self._sent(who, led_to, done=done)
        if self.tips.get(who) != head:
            self.unnamed.clear()
        self.tips[who] = head
        self.clones[who].seen.add(head)

    def _led_to(self, who: str, *tips: CommitId) -> frozenset[CommitId]:
        """Of what a clone knows the versions that the server has once these are sent.

        The server names its branches and what is live.
        """
        clone, live = self.clones[who], map(self.record.live, TARGETS)
        named = {*self.tips.values(), *self.unnamed, *(d.commit for d in live if d is not None)}
        known = {*tips, *clone.seen, *(named & clone.versions)}
        return frozenset().union(*(self.behind[each] for each in known))

    def _sent(
        self,
        who: str,
        led_to: frozenset[CommitId],
        given_up: Collection[StatementId] = (),
        *,
        done: Pushed | None = None,
    ) -> None:
        """The server has accepted what it accepts, of versions that it has then.

        ``given_up``: by an operation that it has refused.
        """
        self.unnamed |= led_to - self.there
        self.there |= led_to
        clone, left = self.clones[who], list[Operation]()
        refused = set[tuple[str, CommitId | None]]()
        for each in clone.unsent:
            said = each.without(given_up).among(led_to)
            if (accepted := self.record.accepts(said)) is False:
                taken_back = self.record.counting(said)
                still = replace(each.without(clone.own.taken_back), takes_back=taken_back)
                if still:
                    left.append(still)
                    live = self.record.live(each.target)
                    refused.add((each.target, None if live is None else live.commit))
                else:  # the server has taken it back already, and the clone need not send it
                    clone.heard.taken_back |= said.takes_back & self.record.taken_back
            else:
                clone.heard.add(said)
                self.done["accepted"] += accepted is True
                rest = each.without([id_ for id_ in (said.id, *said.takes_back) if id_ is not None])
                # What it takes back is neither live nor on a branch: half of it is sent.
                assume(accepted is None or not rest)
                left += [rest] if rest else []
        clone.unsent = left
        if done is not None:
            assert {each.target for each in done.refused} == {target for target, _ in refused}
            assert {(each.target, each.live) for each in done.refused} <= refused
            assert done.is_short == bool(refused)
            self.done["refused"] += len(done.refused)

    @rule(who=WHO)
    def fetch(self, who: str) -> None:
        self.repos[who].fetch()
        self._heard(who)

    def _heard(self, who: str) -> None:
        clone = self.clones[who]
        clone.heard = Stamped({**self.record.made}, {*self.record.taken_back})
        clone.own.made |= self.record.made
        clone.own.taken_back |= self.record.taken_back
        clone.seen |= {*self.tips.values()}
        named = clone.seen | {made.commit for made in self.record.made.values()}
        clone.versions.update(*(self.behind[each] for each in named))

    @rule(who=WHO, on=ON, theirs=VERB, mine=VERB, hears=st.booleans(), data=st.data())
    def race(
        self, who: str, on: str, theirs: str, mine: str, hears: bool, data: st.DataObject
    ) -> None:
        """Both decide, and the other one is first."""
        (other,) = {*NAMES} - {who}
        self.fetch(other)
        self._decided(other, on, theirs, True, data)
        self._decided(who, on, mine, False, data)
        if hears:
            self.fetch(who)

    def _decided(self, who: str, on: str, verb: str, at_once: bool, data: st.DataObject) -> None:
        if verb == "deploy":
            self.deploy(who, on, data, at_once)
        else:
            getattr(self, verb)(who, on, at_once)

    # -- what must hold

    @invariant()
    def one_truth(self) -> None:
        type(self).steps += 1
        self.server.handle.store.fresh()
        assert self.there == {*filter(self.server.handle.store.snapshot.has_commit, self.behind)}
        for target in TARGETS if self.clones else ():
            live = self.record.live(target)
            assert now(self.server, target) == (None if live is None else live.id)
            for name, clone in self.clones.items():
                self._check_clone(name, clone, target)

    def _check_clone(self, name: str, clone: Clone, target: str) -> None:
        repo = self.repos[name]
        found, state = repo.remotes.unsent(target), clone.state(target)
        assert [each.state for each in found] == ([] if state == "in step" else [state]), name
        live = clone.own.live(target)
        assert now(repo, target) == (None if live is None else live.id)
        self.done[state] += 1
        for each in found:
            there = clone.expected(target)[0].live(target)
            assert (each.live_there and each.live_there.id) == (there and there.id)


def now(repo: Repository, target: str) -> StatementId | None:
    try:
        return repo.live(target).deployment.id
    except (NoDeployment, UnknownTarget):
        return None


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _run(kind: str, examples: int, steps: int) -> None:
    rng = draw("truth")
    machine = type("Machine", (TruthMachine,), {"kind": kind, "done": Counter()})
    assert issubclass(machine, TruthMachine)
    run_machine(
        seed(rng.getrandbits(32))(machine),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
    count(f"two clones and one truth ({kind})", lives=examples, steps=machine.steps, **machine.done)


def test_two_clones_and_one_truth() -> None:
    _run("folder", 25, 30)


def test_two_clones_and_one_truth_over_http() -> None:
    _run("http", 3, 15)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["folder", "http"])
@pytest.mark.parametrize("round_", range(2))
def test_two_clones_and_one_truth_in_many_lives(kind: str, round_: int) -> None:
    _run(kind, 100, 50)
