"""Commands on versions that a training by steps made."""

from __future__ import annotations

from pathlib import Path

import pytest

import mvc as library
from tests.cli.program import Mvc
from tests.recipes.test_steps import recorded, versions

pytestmark = pytest.mark.usefixtures("prepared", "one_thread")


@pytest.fixture
def made(mvc: Mvc, tmp_path: Path) -> list[str]:
    """Five versions, of which the first and the fourth are full states."""
    with library.Repository.open(mvc.folder) as repo:
        recorded(repo, tmp_path / "data", 5, full_every=3)
        return list(map(str, versions(repo)))


def test_forget_proves_a_range_and_names_what_keeps_its_weights(mvc: Mvc, made: list[str]) -> None:
    assert "--trust-code" in mvc("forget", "--weights", f"{made[0]}..main", code=3).err
    assert "goes with --weights" in mvc("forget", "main", "--trust-code", code=2).err
    said = mvc("forget", "--weights", f"{made[0]}..main", "--trust-code").err
    assert f"kept: the weights of {made[3][:10]}: a full state" in said
    assert f"kept: the weights of {made[4][:10]}: HEAD" in said
    assert f"given up: the weights of {made[2][:10]}, {made[1][:10]}" in said
    again = mvc("forget", "--weights", made[1], made[3], "--json").json["versions"]
    assert [each["version"] for each in again if each["kept"]] == [made[3]]
