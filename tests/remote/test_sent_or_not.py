"""Deployments that a remote lacks are named, and one that replaces what is not live is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from mvc import Repository, clone
from mvc.errors import MvcError, RefConflict
from mvc.repo.commit.request import CommitOptions
from mvc.testing import FixedClock
from tests.remote.kit.places import Place, place

Pair = tuple[Repository, Repository, Repository]


def version(repo: Repository, seed: int) -> str:
    state = {"w": np.random.default_rng(seed).standard_normal(8)}
    return str(repo.commit(state, message=f"v{seed}").id)


def trio(root: Path, remote: Place) -> Pair:
    """A server, and two clones that both know versions 1 and 2, of which 1 is live."""
    assert remote.root is not None
    ada = Repository.init(root / "ada")
    ada.remotes.add("origin", remote.url)
    first = version(ada, 1)
    ada.deploy(first, "prod")
    version(ada, 2)
    ada.push()
    bob = clone(remote.url, root / "bob")
    return Repository.open(remote.root), ada, bob


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Pair]:
    with place("folder", tmp_path) as remote:
        yield trio(tmp_path, remote)


@pytest.fixture(params=["folder", "http"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """The same, also with a server that is a process."""
    with place(request.param, tmp_path) as remote:
        yield trio(tmp_path, remote)


def state(repo: Repository, target: str = "prod") -> str:
    found = [each.state for each in repo.remotes.unsent(target)]
    assert len(found) < 2
    return found[0] if found else "in step"


def test_a_deployment_is_not_sent_until_it_is_pushed(three: Pair) -> None:
    server, ada, bob = three
    assert (state(ada), state(bob)) == ("in step", "in step")
    made = bob.deploy("HEAD", "prod")
    assert state(bob) == "not sent" and state(ada) == "in step"
    done = bob.push()
    assert not done.refused and state(bob) == "in step"
    assert server.live("prod").deployment.id == made.id
    bob.retract("HEAD", "prod")
    assert state(bob) == "not sent"
    bob.push()
    assert state(bob) == "in step" and server.live("prod").commit == ada.find("HEAD~1")


def test_a_deployment_that_replaces_what_is_not_live_is_refused_for_its_target(three: Pair) -> None:
    server, ada, bob = three
    theirs = ada.deploy("HEAD", "prod", reason="better")
    ada.push()
    bob.deploy("HEAD", "prod")
    bob.deploy("HEAD", "edge")
    done = bob.push()
    (refused,) = done.refused
    assert (refused.target, refused.live) == ("prod", theirs.commit) and done.is_short
    assert refused.author == ada.deployments("prod")[-1].author
    assert server.live("prod").deployment.id == theirs.id
    assert server.live("edge").commit == bob.find("HEAD")
    assert state(bob, "edge") == "in step"
    bob.fetch()
    (conflict,) = bob.remotes.unsent("prod")
    assert conflict.state == "conflict" and conflict.live_there is not None
    assert conflict.live_there.id == theirs.id
    assert bob.push().refused and state(bob) == "conflict"  # until somebody decides


@pytest.mark.parametrize("to", ["origin", "url"])
def test_nothing_is_said_to_be_sent_that_was_refused(three: Pair, to: str) -> None:
    server, ada, bob = three
    ada.deploy("HEAD", "prod")
    ada.push()
    bob.deploy("HEAD", "prod", reason="too late")
    for _ in range(3):
        done = bob.push(str(server.root) if to == "url" else to)
        assert [each.target for each in done.refused] == ["prod"] and done.is_short
        assert (done.targets, done.operations, done.is_news) == ((), 0, False)
    said = run(bob, "push", str(server.root) if to == "url" else to, code=3)
    assert "not sent: your deployment to prod" in said and "Run 'mvc fetch'" in said
    assert "with deployments" not in said and "up to date" not in said
    bob.deploy("HEAD", "edge")  # what is taken is counted beside it
    done = bob.push()
    assert (done.targets, done.operations, len(done.refused)) == (("edge",), 1, 1)


@pytest.mark.parametrize("how", ["deploy", "rollback", "retract"])
def test_a_conflict_ends_with_a_decision(three: Pair, how: str) -> None:
    server, ada, bob = three
    mine = bob.deploy("HEAD", "prod")
    theirs = ada.deploy("HEAD", "prod")
    ada.push()
    bob.fetch()
    assert state(bob) == "conflict"
    if how == "deploy":
        made = bob.deploy("HEAD", "prod")
        assert made.replaces == theirs.id
    elif how == "rollback":
        made = bob.rollback("prod")
        assert made.replaces == theirs.id and made.commit == bob.find("HEAD~1")
    else:
        assert bob.retract("HEAD", "prod").id == mine.id
        made = theirs
        assert state(bob) == "in step"
    assert not bob.push().refused
    assert state(bob) == "in step" and server.live("prod").deployment.id == made.id
    ada.fetch()
    assert all(each.live("prod").deployment.id == made.id for each in (ada, bob))
    assert mine.id not in {each.id for each in server.deployments("prod")}
    assert not bob.push().refused and state(bob) == "in step"


def test_what_is_pushed_at_once_is_recorded_only_if_it_is_accepted(three: Pair) -> None:
    server, ada, bob = three
    made = ada.deploy("HEAD", "prod", push=True)
    assert server.live("prod").deployment.id == made.id and state(ada) == "in step"
    before = bob.deployments()
    with pytest.raises(RefConflict, match="to prod meanwhile"):
        bob.rollback("prod", push=True) if len(before) > 1 else bob.deploy(
            "HEAD", "prod", push=True
        )
    assert bob.deployments() == before and state(bob) == "in step"
    back = bob.rollback("prod", remote="origin")
    assert back.commit == server.find("main~1") == server.live("prod").commit
    assert back.replaces == made.id and state(bob) == "in step"
    assert not bob.push().refused and not ada.push().refused


@pytest.mark.parametrize("how", ["retract", "deploy"])
def test_what_was_given_up_in_a_conflict_never_goes_live(three: Pair, how: str) -> None:
    """Also if the remote went back to what it replaces, and its version travels later."""
    server, ada, bob = three
    first = server.live("prod").commit
    bob.switch("next", create=True)
    version(bob, 3)
    mine = bob.deploy("HEAD", "prod")
    ada.deploy("HEAD", "prod")
    ada.push()
    bob.fetch()
    assert state(bob) == "conflict"
    bob.retract("HEAD", "prod") if how == "retract" else bob.deploy("HEAD~1", "prod")
    ada.retract("HEAD", "prod")
    ada.push()
    bob.switch("main")
    bob.push()
    for _ in range(2):
        assert bool(bob.push("origin", ["next"]).refused) == (how == "deploy")
        assert server.live("prod").commit == first
    bob.fetch()
    assert state(bob) == ("in step" if how == "retract" else "conflict")
    assert mine.id not in {each.id for each in server.deployments("prod")}


@pytest.mark.parametrize("how", ["retract", "deploy", "rollback"])
def test_a_rollback_by_the_record_of_a_remote_gives_up_what_was_not_sent(
    three: Pair, how: str
) -> None:
    server, ada, bob = three
    ada.deploy("HEAD", "prod", push=True)
    bob.fetch()
    bob.rollback("prod") if how == "rollback" else getattr(bob, how)("HEAD", "prod")
    assert state(bob) == "not sent"
    made = bob.rollback("prod", remote="origin")
    assert server.live("prod").deployment.id == made.id and made.commit == ada.find("HEAD~1")
    assert state(bob) == "in step" and not bob.push().refused


def test_a_deployment_that_is_sent_at_once_brings_those_that_it_builds_on(three: Pair) -> None:
    """Else it replaces what the remote has never heard of, and is refused."""
    server, _, bob = three
    bob.switch("next", create=True)
    bob.commit({"w": np.zeros(8)}, deploy="prod")
    made = bob.rollback("prod", push=True)
    assert server.live("prod").deployment.id == made.id and state(bob) == "in step"


@pytest.mark.parametrize("who", [1, 2])
def test_a_version_that_is_live_and_on_no_branch_is_known_to_be_there(
    three: Pair, who: int
) -> None:
    server, ada, bob = three
    ada.switch("next", create=True)
    version(ada, 3)
    ada.deploy("HEAD", "prod", push=True)
    ada.switch("main")
    version(ada, 4)
    ada.push()
    bob.pull()
    three[who].retract(None, "prod")
    three[who].push()
    assert state(three[who]) == "in step" and server.live("prod").commit == ada.find("main~2")


def test_a_retraction_that_is_sent_at_once_settles_what_was_refused(three: Pair) -> None:
    """Its subject is not there, and must not come afterwards."""
    server, _, bob = three
    first = server.live("prod").commit
    bob.switch("next", create=True)
    version(bob, 3)
    bob.deploy("HEAD", "prod")
    bob.switch("main")
    bob.deploy("HEAD", "prod")
    bob.push()
    bob.retract("HEAD", "prod", push=True)
    bob.push("origin", ["next"])
    live = server.live("prod").commit
    assert state(bob) == "in step" and live == bob.live("prod").commit != first


def test_a_retraction_that_is_made_again_is_not_said_to_be_refused(three: Pair) -> None:
    server, ada, bob = three
    bob.retract(None, "prod")
    theirs = ada.deploy("HEAD", "prod", push=True)
    bob.fetch()
    assert state(bob) == "conflict"
    assert bob.retract("HEAD", "prod").id == theirs.id
    assert state(bob) == "conflict"
    bob.retract(None, "prod")
    assert state(bob) == "not sent"
    assert not bob.push().refused and state(bob) == "in step"
    assert all(each.retracted for each in server.deployments("prod"))


def run(repo: Repository, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "mvc", *words], cwd=repo.root, capture_output=True, text=True,
        env=os.environ | {"MVC_AUTHOR": repo.root.name},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_scene_rollback_in_a_clone(scene: Pair) -> None:
    """It says that production goes on until it is sent, and where; then production is back."""
    server, ada, bob = scene
    run(ada, "deploy", "HEAD", "prod", "--push")
    run(bob, "fetch")
    assert "not sent yet to origin: run 'mvc push origin'" in run(bob, "rollback", "prod")
    assert server.live("prod").commit == ada.find("HEAD")
    for words in (["status"], ["live", "prod"], ["log"]):
        assert "not sent yet to origin" in run(bob, *words)
    run(bob, "push")
    assert server.live("prod").commit == ada.find("HEAD~1")
    for words in (["status"], ["live", "prod"], ["log"]):
        assert "not sent" not in run(bob, *words)


def test_scene_stale_rollback(scene: Pair) -> None:
    """A clone that has not heard of the last deployment cannot send production elsewhere."""
    server, ada, bob = scene
    run(bob, "deploy", "HEAD", "prod", "--push")
    run(ada, "fetch")
    run(ada, "switch", "-c", "next")
    made = ada.commit({"w": np.zeros(8)}, message="v3", deploy="prod")
    run(ada, "push", "origin", "next")
    refused = run(bob, "rollback", "prod", "--push", code=3)
    assert f"{made.id.short} to prod meanwhile" in refused and "nothing was recorded" in refused
    run(bob, "rollback", "prod")
    assert f"{made.id.short} to prod meanwhile" in run(bob, "push", code=3)
    assert server.live("prod").commit == made.id
    run(bob, "fetch")
    assert "conflict" in run(bob, "status")
    assert "Rolled back" in run(bob, "rollback", "prod", "--remote", "origin")
    assert server.live("prod").commit == ada.find("HEAD~1")
    assert "conflict" not in run(bob, "status")


def test_a_commit_that_deploys_says_what_is_not_sent(three: Pair) -> None:
    server, _, bob = three
    (bob.root / "m.bin").write_bytes(b"one")
    assert "not sent yet to origin: run 'mvc push origin' (or use --push)" in run(
        bob, "commit", "m.bin", "--deploy", "prod"
    )
    run(bob, "push")
    (bob.root / "m.bin").write_bytes(b"two")
    said = run(bob, "commit", "-a", "--deploy", "prod", "--push")
    assert "not sent" not in said and "'mvc push' sends the branch" in said
    assert server.live("prod").commit == bob.find("HEAD") and state(bob) == "in step"
    assert "not sent" not in run(bob, "commit", "--allow-empty", "-m", "no deployment")
    assert "--push needs --deploy" in run(bob, "commit", "-a", "--push", code=2)


def test_a_commit_stays_without_the_deployment_that_a_remote_refuses(three: Pair) -> None:
    server, ada, bob = three
    theirs = ada.deploy("HEAD", "prod", push=True)
    with pytest.raises(
        RefConflict, match=r"^committed .{10}, but did not deploy it to prod: origin"
    ):
        bob.commit({"w": np.zeros(8)}, deploy="prod", options=CommitOptions(push=True))
    head, before = bob.find("HEAD"), bob.deployments()
    assert bob.version(head).parents == (server.find("main"),) and len(before) == 1
    assert server.live("prod").deployment.id == theirs.id
    for target, remote in ((None, True), ("prod", "nowhere")):
        with pytest.raises(MvcError):
            bob.commit({"w": np.ones(8)}, deploy=target, options=CommitOptions(push=remote))
    assert bob.find("HEAD") == head and bob.deployments() == before
    bob.fetch()
    done = bob.commit({"w": np.ones(8)}, deploy="prod", options=CommitOptions(push="origin"))
    assert done.deployment is not None and done.deployment.replaces == theirs.id
    assert server.live("prod").deployment.id == done.deployment.id and state(bob) == "in step"


def test_a_deployment_for_a_time_that_was_given_took_over_meanwhile(three: Pair) -> None:
    server, ada, bob = three
    mine = bob.deploy("HEAD", "prod")
    after = datetime.fromtimestamp(mine.time.timestamp() + 0.001, UTC)
    theirs = ada.deploy("HEAD~1", "prod", at=after)
    ada.push()
    assert server.live("prod").deployment.id == theirs.id
    (refused,) = bob.push().refused
    assert refused.live == theirs.commit
    bob.fetch()
    (conflict,) = bob.remotes.unsent("prod")
    assert conflict.state == "conflict" and conflict.live_there is not None
    assert conflict.live_there.id == theirs.id
    again = bob.deploy("HEAD", "prod")
    assert not bob.push().refused and state(bob) == "in step"
    assert server.live("prod").deployment.id == bob.live("prod").deployment.id == again.id


def test_a_clock_that_is_behind_does_not_hide_what_is_live_there(three: Pair) -> None:
    server, ada, bob = three
    theirs = ada.deploy("HEAD", "prod", at=datetime.now(UTC) - timedelta(milliseconds=1))
    ada.push()
    bob.fetch()
    with Repository.open(bob.root, clock=FixedClock(time.time_ns() - 3600 * 10**9, 1)) as behind:
        behind.deploy("HEAD~1", "prod")
        assert state(behind) == "conflict"
        assert behind.push().refused
    assert server.live("prod").deployment.id == theirs.id


def test_an_own_deployment_for_a_later_time_is_no_conflict(three: Pair) -> None:
    server, _, bob = three
    soon = bob.deploy("HEAD", "prod", at=datetime.now(UTC) + timedelta(seconds=1))
    bob.deploy("HEAD~1", "prod")
    while datetime.now(UTC) <= soon.time:
        time.sleep(0.05)
    assert state(bob) == "not sent" and not bob.push().refused
    assert server.live("prod").deployment.id == bob.live("prod").deployment.id == soon.id


def test_what_one_remote_has_accepted_is_not_dropped_for_another(
    three: Pair, tmp_path: Path
) -> None:
    """Others deployed there since: a remote that has heard of neither is no judge."""
    server, ada, bob = three
    Repository.init(tmp_path / "mirror", bare=True).close()
    ada.remotes.add("mirror", tmp_path / "mirror")
    ada.remotes.add("colleague", tmp_path / "bob")
    first = ada.live("prod").deployment.id

    def states() -> dict[str, str]:
        return {each.remote: each.state for each in ada.remotes.unsent("prod")}

    bob.deploy("HEAD", "prod")
    bob.push()
    ada.fetch()
    assert states() == {"mirror": "not sent", "colleague": "not sent"}
    for _ in range(2):  # then the mirror, too, has heard of something
        ada.deploy("HEAD~1", "prod")
        assert not ada.push().refused and "origin" not in states()
        record = [(each.id, each.retracted) for each in server.deployments("prod")]
        assert (first, False) in record
        assert [(each.id, each.retracted) for each in ada.deployments("prod")] == record
        ada.push("mirror")
        bob.fetch()
        bob.deploy("HEAD", "prod")
        bob.push()
        ada.fetch()


def test_a_deployment_that_was_dropped_stays_dropped_when_what_it_replaced_is_live_again(
    three: Pair,
) -> None:
    server, ada, bob = three
    bob.deploy("HEAD", "prod")
    bob.push()
    bob.retract("HEAD", "prod")
    ada.fetch()
    before = ada.deploy("HEAD~1", "prod")
    ada.push()
    bob.fetch()
    bob.deploy("HEAD", "prod")  # which takes back what bob has retracted, too
    ada.deploy("HEAD", "prod")
    ada.push()
    bob.fetch()
    bob.retract("HEAD", "prod")
    bob.push()
    ada.retract("HEAD", "prod")
    ada.push()
    for _ in range(2):
        bob.push()
        assert server.live("prod").deployment.id == before.id
        assert len(server.deployments("prod")) == 4
        bob.fetch()
    assert state(bob) == "in step" and bob.live("prod").deployment.id == before.id
