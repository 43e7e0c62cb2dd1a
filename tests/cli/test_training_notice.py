"""Commands name a training that records on the branch, or deploys to the target."""

from __future__ import annotations

import pytest

from mvc.repo.handle import open_handle
from mvc.repo.recording import announce, announce_target


@pytest.mark.parametrize("branch", ["main", "a/b.c+d"])
def test_the_branch_that_head_leaves_and_comes_to(mvc, branch: str) -> None:
    mvc.commit(1)
    mvc.commit(2)
    if branch != "main":
        mvc("switch", "-c", branch)
    told = f"a training records on {branch}; its next versions go to that branch\n"
    context = open_handle(mvc.folder)
    with announce(context.store, branch):
        assert mvc("checkout", "HEAD~1").err.count(told) == 1
        assert mvc("switch", "-c", "aside").err.count(told) == 0
        assert mvc("switch", branch).err.count(told) == 1
        assert mvc("switch", branch).err.count(told) == 1
        assert told not in mvc("checkout", "HEAD", "-o", "copy").err
        assert mvc("checkout", "HEAD~1", "--json").err.count(told) == 1
        mvc("switch", "aside")
        said = mvc("branch", "-d", "-f", branch, code=3).err
        assert f"a training is recording on {branch}" in said
    assert "training" not in mvc("checkout", branch).err
    context.store.close()


def test_a_detached_head(mvc) -> None:
    mvc.commit(1)
    mvc("checkout", "HEAD~0")
    context = open_handle(mvc.folder)
    with announce(context.store, None):
        assert (
            "records on the detached HEAD; its next versions follow HEAD"
            in mvc("switch", "main").err
        )
    assert "recording" not in mvc("switch", "main").err
    context.store.close()


def test_what_moves_head_or_deploys_beside_a_training(mvc) -> None:
    """Each of these is undone, or overtaken, by the training's next version."""
    mvc.commit(1)
    mvc("deploy", "HEAD", "prod")
    mvc.commit(2)
    mvc("deploy", "HEAD", "prod")
    mvc("switch", "-c", "aside")
    switched = mvc("undo", "--list", "--json").json["operations"][0]["number"]
    told = "a training records on main; its next versions go to that branch\n"
    context = open_handle(mvc.folder)
    with announce(context.store, "main"):
        assert "training" not in mvc("rollback", "prod").err  # it deploys to no target
        assert mvc("undo", switched).err.count(told) == 1
    with announce_target(context.store, "prod"), announce_target(context.store, "prod"):
        for arguments in (["deploy", "HEAD"], ["rollback"]):
            said = mvc(*arguments, "prod").err
            assert said.count("a training deploys to prod: this process (") == 1
            assert "stops deploying there until it restarts" in said
        assert "training" not in mvc("deploy", "HEAD", "staging").err
    assert "training" not in mvc("deploy", "HEAD", "prod").err
    context.store.close()
