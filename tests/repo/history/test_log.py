from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import UnknownMetric, UnknownRevision, UnknownTarget, WrongUsage
from mvc.ids import CommitId
from mvc.repo import refs
from mvc.repo.commit.request import CommitOptions
from mvc.repo.handle import Handle
from mvc.repo.history import log as history
from mvc.repo.history.log import LogEntry, LogOptions, is_reset_point
from mvc.repo.statements.record import deploy, retract
from tests.repo.publishing import START, advance, commit, set_ref


def log(
    context: Handle, rev: Any = "HEAD", *, limit: int | None = None, **options: Any
) -> Iterator[LogEntry]:
    return history.log(context.store, rev, LogOptions(**options), limit=limit)


def ids(context: Handle, *args: str, **options: object) -> list[CommitId]:
    return [e.id for e in log(context, *args, **options)]  # type: ignore[arg-type]


def test_newest_first_with_names(context: Handle) -> None:
    made = []
    for _ in range(4):
        advance(context, 60)
        made.append(commit(context))
    refs.create_tag(context.store, "v1", "HEAD~1")
    refs.create_branch(context.store, "side", "HEAD~1")
    entries = list(log(context))
    assert [e.id for e in entries] == made[::-1]
    assert [e.refs for e in entries] == [("HEAD", "main"), ("side", "tag: v1"), (), ()]
    assert entries[0].commit.parents == (made[2],) and entries[0].reset_point is None
    set_ref(context, "HEAD", made[0])
    assert [e.refs for e in log(context, "main")] == [("main",), ("side", "tag: v1"), (), ("HEAD",)]
    assert ids(context) == made[:1]
    assert ids(context, "main~1", limit=2) == [made[2], made[1]]
    assert ids(context, "main", limit=0) == []


def test_every_ancestor_once_and_parents_after_children(context: Handle) -> None:
    rng = random.Random(2)
    made: list[CommitId] = []
    parents: dict[CommitId, list[CommitId]] = {}
    for i in range(50):
        chosen = rng.sample(made[-8:], min(len(made), rng.choice([1, 1, 2, 3])))
        advance(context, 60)
        made.append(commit(context, *chosen, branch=f"b{i}"))
        parents[made[-1]] = chosen
    reach: set[CommitId] = set()
    todo = [made[-1]]
    while todo:
        id_ = todo.pop()
        if id_ not in reach:
            reach.add(id_)
            todo += parents[id_]
    found = ids(context, "b49")
    assert len(found) == len(set(found)) and set(found) == reach
    assert found == [i for i in reversed(made) if i in reach]


def test_a_bound_of_time_leaves_out_what_is_older_and_nothing_else(context: Handle) -> None:
    rng = random.Random(3)
    times = dict[CommitId, int]()
    for i in range(40):
        parents = rng.sample([*times][-6:], min(len(times), rng.choice([1, 1, 2])))
        time_ns = START + (i if rng.random() < 0.7 else rng.randrange(50)) * 10**9
        times[commit(context, *parents, branch=f"b{i}", time_ns=time_ns)] = time_ns
    for since in sorted({*times.values()}):
        for rev in "b39", "b38", "b20":
            expected = [id_ for id_ in ids(context, rev) if times[id_] >= since]
            assert ids(context, rev, since=since) == expected


def test_times_set_back_lose_nothing(context: Handle) -> None:
    """An import puts old checkpoints after new versions."""
    new = commit(context, time_ns=START)
    old = [commit(context, time_ns=START - 1000 + i) for i in range(3)]
    newest = commit(context, time_ns=START + 5)
    assert ids(context) == [newest, old[2], old[1], old[0], new]
    assert ids(context, since=START) == [newest, new]
    assert ids(context, until=START - 1) == old[::-1]
    assert ids(context, since=START - 999, until=START) == [old[2], old[1], new]


def test_deployments_are_shown(context: Handle) -> None:
    first = commit(context, deploy="prod")
    commit(context, deploy="test")
    advance(context, 60)
    retract(context.store, context.config, None, "prod")
    second, one = log(context)
    assert [(d.target, d.commit, d.retracted) for d in one.deployments] == [("prod", first, True)]
    assert [d.target for d in second.deployments] == ["test"]


def test_the_history_of_a_target(context: Handle) -> None:
    a = commit(context, deploy="prod", deploy_time=30)
    commit(context)
    b = commit(context, deploy="prod", deploy_time=20)
    gone = commit(context, deploy="prod", deploy_time=40)
    retract(context.store, context.config, None, "prod")
    side = commit(context, a, branch="side", deploy="prod", deploy_time=50)
    c = commit(context, deploy="prod", deploy_time=10)
    assert gone not in ids(context, target="prod")
    assert ids(context, target="prod") == [a, b, c]
    assert ids(context, "side", target="prod") == [side, a]
    assert ids(context, target="prod", since=20) == [a, b]
    assert ids(context, target="prod", until=20) == [b, c]
    assert ids(context, target="prod", since=15, until=25) == [b, c]  # c was live at 15 already
    assert ids(context, target="prod", since=21, until=29) == [b]
    assert ids(context, target="prod", since=9, until=9) == []
    assert ids(context, target="prod", since=25, until=15) == []
    assert ids(context, target="prod", limit=1) == [a]
    with pytest.raises(UnknownTarget):
        log(context, target="test")


def test_a_version_deployed_twice_appears_once(context: Handle) -> None:
    a = commit(context, deploy="prod", deploy_time=10)
    b = commit(context, deploy="prod", deploy_time=20)
    deploy(context.store, context.config, a, "prod", 30)
    assert ids(context, target="prod") == [a, b]
    retract(context.store, context.config, a, "prod", 30)
    assert ids(context, target="prod") == [b, a]


def test_refusals_come_at_once(context: Handle) -> None:
    with pytest.raises(UnknownRevision):
        log(context)
    commit(context)
    with pytest.raises(WrongUsage):
        log(context, limit=-1)
    with pytest.raises(UnknownRevision):
        log(context, CommitId(bytes(32)))


def test_reset_points_are_told_when_asked_for(repo: Repository) -> None:
    weights = np.random.default_rng(0).standard_normal((100, 200)).astype(np.float32)
    for i in range(3):
        repo.commit(
            {"w": weights + np.float32(i * 1e-4)}, options=CommitOptions(reset_point=i == 2)
        )
    entries = list(log(repo.handle, reset_points=True))
    assert [e.reset_point for e in entries] == [True, False, True]
    assert is_reset_point(repo.handle.store, entries[0].id)


# -- searching -------------------------------------------------------------------------------


@pytest.fixture
def measured(repo: Repository) -> Repository:
    """Five versions; the third was evaluated later, and approved."""
    for n in range(5):
        values = {"metrics": {"auc": 0.5 + n / 10}, "params": {"lr": 10.0**-n, "data": "cars"}}
        repo.commit(
            {"w": np.full(2, n)},
            message=f"step {n}",
            **values,
            options=CommitOptions(run="ab"[n % 2]),
        )
    repo.annotate("HEAD~2", metrics={"auc": 0.99, "f1": 0.8}, note="approved by Ada")
    repo.annotate("HEAD~2", params={"data": "vans"})
    return repo


def found(log: Iterable[LogEntry]) -> list[str]:
    return [entry.commit.message.removeprefix("step ") for entry in log]


def test_where(measured: Repository) -> None:
    """What was annotated later counts; numbers in params are numbers."""
    assert found(log(measured.handle, where="auc > 0.75")) == ["4", "3", "2"]
    assert found(log(measured.handle, where="auc > 0.75 and lr >= 1e-3")) == ["3", "2"]
    assert found(log(measured.handle, where="f1")) == ["2"] and found(
        log(measured.handle, where="not f1 > 1")
    ) == ["2"]
    assert found(log(measured.handle, where="data != cars or run = b")) == ["3", "2", "1"]
    assert found(log(measured.handle, where="data != 'cars'")) == ["2"]
    assert found(log(measured.handle, where="auc > 0.5", limit=1)) == ["4"]
    assert found(log(measured.handle, where="run = 'b'", sort="auc")) == ["3", "1"]
    assert found(log(measured.handle, where="note != ''")) == ["2"]
    with pytest.raises(WrongUsage, match=r"auc > \^and"):
        log(measured.handle, where="auc > and")


def test_grep(measured: Repository) -> None:
    assert found(log(measured.handle, grep="step [12]")) == ["2", "1"]
    assert found(log(measured.handle, grep="by Ada")) == ["2"]
    assert found(log(measured.handle, grep="^data=vans$")) == ["2"]
    assert found(log(measured.handle, grep="f1=0.8")) == ["2"]
    assert found(log(measured.handle, grep="^b$")) == ["3", "1"]
    with pytest.raises(WrongUsage, match="not a regular expression"):
        log(measured.handle, grep="(")


def test_sorts_by_params_and_by_what_was_annotated(measured: Repository) -> None:
    assert found(measured.log("HEAD", LogOptions(sort="-lr"))) == ["4", "3", "2", "1", "0"]
    assert found(measured.log("HEAD", LogOptions(sort="auc"), limit=2)) == ["2", "4"]
    with pytest.raises(UnknownMetric, match="data"):
        measured.log("HEAD", LogOptions(sort="data"))


def test_live_shows_what_was_annotated(measured: Repository) -> None:
    measured.deploy("HEAD~2", "prod")
    live = measured.live("prod")
    assert live.metrics["auc"] == 0.99 and live.params["data"] == "vans"
    assert [annotation.note for annotation in live.annotations] == ["approved by Ada", ""]
