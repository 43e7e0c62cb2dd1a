"""What the values of ``live`` say, and rollbacks one by one."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from mvc.api.repository import Repository
from mvc.errors import NoDeployment, StateForgotten, UnknownRevision, UnknownTarget, WrongUsage
from mvc.ids import CommitId
from mvc.testing import FixedClock
from mvc.times import format_time

START, SECOND = 1_750_000_000_000_000_000, 10**9


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(START)


@pytest.fixture
def repo(tmp_path: Path, clock: FixedClock) -> Repository:
    return Repository.init(tmp_path / "repo", clock=clock)


def versions(
    repo: Repository, clock: FixedClock, names: str, target: str = "prod"
) -> dict[str, CommitId]:
    """A version a letter, each deployed a second after the last; a letter again: that version."""
    made: dict[str, CommitId] = {}
    for name in names:
        clock.advance(SECOND)
        if name not in made:
            state = {"w": np.full(2, ord(name))}
            made[name] = repo.commit(state, message=name, metrics={"acc": 0.5}).id
        repo.deploy(made[name], "prod", reason=f"to {name}")
    clock.advance(SECOND)
    return made


def message(repo: Repository) -> str:
    return repo.live("prod").message


def test_what_it_says(repo: Repository, clock: FixedClock) -> None:
    made = versions(repo, clock, "ab")
    live = repo.live("prod", at=START + SECOND)
    assert (live.commit, live.target, live.message, live.metrics) == (
        made["a"], "prod", "a", {"acc": 0.5},
    )  # fmt: skip
    assert (live.since_ns, live.until_ns) == (START + SECOND, START + 2 * SECOND)
    assert live.since == datetime.fromtimestamp(live.since_ns / 1e9).astimezone()
    assert live.until is not None and live.until > live.since
    assert live.deployment.reason == "to a" and live.deployment.author == live.version.author
    assert repo.live("prod").until is None
    assert repo.find(live) == made["a"]
    assert repo.live() == (repo.live("prod"),)
    assert repo.live(at=START) == ()
    repo.deploy("HEAD", "edge", at=START)
    assert [each.target for each in repo.live()] == ["edge", "prod"]
    between = repo.live_between(START, clock.time_ns)
    assert [(each.target, each.message) for each in between] == [
        ("edge", "b"), ("prod", "a"), ("prod", "b"),
    ]  # fmt: skip


def test_what_is_refused(repo: Repository, clock: FixedClock) -> None:
    assert repo.live() == ()
    for unknown_target in ("prod", "2 hours ago"):
        with pytest.raises(UnknownTarget):
            repo.live(unknown_target)
    versions(repo, clock, "a")
    for wrong in (START, datetime.now()):
        with pytest.raises(WrongUsage) as caught:
            repo.live(wrong)  # type: ignore[call-overload]
        assert "at=" in (caught.value.hint or "")
    before, after = (re.escape(format_time(START + n * SECOND)) for n in (0, 1))
    with pytest.raises(WrongUsage, match=f"ends before it begins: {before} < {after}"):
        repo.live_between(START + 1, START)
    with pytest.raises(NoDeployment):
        repo.live("prod", at=START)
    assert repo.live_between(START, START, "prod") == ()
    assert repo.find("prod") == repo.live("prod").commit
    repo.deploy("HEAD", "2026-11-20")
    assert repo.live("2026-11-20").message == "a"


def test_messages_print_whole_seconds(repo: Repository, clock: FixedClock) -> None:
    """Rounded up for what began, because ``at`` finds it then."""
    clock.advance(1)
    id_ = repo.commit({"w": np.zeros(2)}, deploy="prod").id
    before, began = (re.escape(format_time(START + n * SECOND)) for n in (0, 1))
    first = f"at {before}: its first deployment is {id_.short} at {began}"
    with pytest.raises(NoDeployment, match=first):
        repo.live("prod", at=format_time(START))
    with pytest.raises(UnknownRevision, match=f"no version at {before}") as caught:
        repo.find(f"main@{{{format_time(START)}}}")
    assert caught.value.hint == f"its history begins at {format_time(START + SECOND)}"
    assert repo.live("prod", at=format_time(START + SECOND)).commit == id_
    repo.retract("HEAD", "prod")
    with pytest.raises(NoDeployment, match=f"retracted already, at {began}"):
        repo.retract("HEAD", "prod")


def test_a_time_to_come_ends_it(repo: Repository, clock: FixedClock) -> None:
    made = versions(repo, clock, "ab")
    repo.deploy(made["a"], "prod", at=START + 60 * SECOND)
    assert repo.live("prod").until_ns == START + 60 * SECOND
    repo.retract(None, "prod")
    assert repo.live("prod").until_ns is None


def test_a_second_rollback_goes_one_further_back(repo: Repository, clock: FixedClock) -> None:
    made = versions(repo, clock, "abcd")
    for left, back in ("dc", "cb", "ba"):
        clock.advance(SECOND)
        done = repo.rollback("prod", reason="broken")
        assert (done.left, done.commit, done.reason) == (made[left], made[back], "broken")
        assert message(repo) == back
    with pytest.raises(NoDeployment, match="nothing was live on prod before"):
        repo.rollback("prod")
    assert message(repo) == "a"
    repo.rollback("prod", to=made["d"])
    assert repo.rollback("prod", steps=2).commit == made["b"]
    with pytest.raises(NoDeployment):
        repo.rollback("prod", steps=2)
    for steps in (0, -1):
        with pytest.raises(WrongUsage):
            repo.rollback("prod", steps=steps)
    with pytest.raises(WrongUsage):
        repo.rollback("prod", "HEAD", steps=2)


@pytest.mark.parametrize(
    ("names", "backs"),
    [
        ("ab", "a"),
        ("abab", "a"),  # b was just left, and a is live
        ("abac", "ab"),  # a third would go to a again
        ("abcc", "ba"),
        ("abcabc", "ba"),
    ],
)
def test_never_to_a_version_that_was_just_left(
    repo: Repository, clock: FixedClock, names: str, backs: str
) -> None:
    made = versions(repo, clock, names)
    for back in backs:
        clock.advance(SECOND)
        assert repo.rollback("prod").commit == made[back]
    with pytest.raises(NoDeployment):
        repo.rollback("prod")


def test_a_deployment_in_between_begins_anew(repo: Repository, clock: FixedClock) -> None:
    made = versions(repo, clock, "abc")
    repo.rollback("prod")
    clock.advance(SECOND)
    repo.deploy(made["c"], "prod")
    clock.advance(SECOND)
    assert repo.rollback("prod").commit == made["b"]
    assert repo.rollback("prod").commit == made["a"]


def test_a_retracted_rollback_was_none(repo: Repository, clock: FixedClock) -> None:
    made = versions(repo, clock, "abc")
    repo.rollback("prod")
    repo.retract(None, "prod")
    assert message(repo) == "c"
    assert repo.rollback("prod").commit == made["b"]
    repo.retract(made["b"], "prod", at=START + 2 * SECOND)  # what it went back to
    assert message(repo) == "b"
    assert repo.rollback("prod").commit == made["a"]


def test_what_a_rollback_needs_was_forgotten(repo: Repository, clock: FixedClock) -> None:
    made = versions(repo, clock, "abc")
    repo.storage.forget(made["b"])
    with pytest.raises(StateForgotten) as caught:
        repo.rollback("prod")
    assert f"'mvc rollback prod --to {made['a'].short}'" in str(caught.value.hint)
    assert repo.rollback("prod", made["a"]).commit == made["a"]
    with pytest.raises(NoDeployment) as none:
        repo.rollback("prod", steps=9)
    assert made["a"].short not in str(none.value.hint), "it is live already"
