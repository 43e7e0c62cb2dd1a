"""A slip in the name of a target: a new target is named as new, with its nearest neighbour."""

from __future__ import annotations

from tests.cli.program import Mvc


def test_a_new_target_beside_others(mvc: Mvc) -> None:
    mvc.commit(1.0)
    assert "new target" not in mvc("deploy", "HEAD", "prod").err  # there is no other
    slip = mvc("deploy", "HEAD", "prdo").err
    assert "prdo is a new target; did you mean prod?" in slip
    withdraw = slip.split("'mvc ")[1].split("'")[0]
    assert "Retracted" in mvc(*withdraw.split()).out
    assert "new target" not in mvc("deploy", "HEAD", "prod").err
    far = mvc("deploy", "HEAD", "elsewhere", "--at", "2020-01-01").err
    assert "elsewhere is a new target (" in far
    assert "new target" not in mvc("deploy", "HEAD", "elsewhere", "--at", "2019-01-01").err


def test_a_new_target_of_a_commit(mvc: Mvc) -> None:
    mvc.commit(1.0)
    mvc("deploy", "HEAD", "prod")
    mvc.commit(2.0)
    found = mvc("commit", "--allow-empty", "-m", "two", "--deploy", "Prod")
    assert "Prod is a new target; did you mean prod?" in found.err
