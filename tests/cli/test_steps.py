"""Commands on versions that a training by steps made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mvc as library
from tests.cli.program import Mvc
from tests.recipes.stepped import unseeded
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
    assert "needs --weights" in mvc("forget", "main", "--trust-code", code=2).err
    said = mvc("forget", "--weights", f"{made[0]}..main", "--trust-code").err
    assert f"stored: the weights of {made[3][:10]}: a full state" in said
    assert f"stored: the weights of {made[4][:10]}: HEAD" in said
    assert f"dropped: the weights of {made[2][:10]}, {made[1][:10]}" in said
    again = mvc("forget", "--weights", made[1], made[3], "--json").json["versions"]
    assert [each["version"] for each in again if each["kept"]] == [made[3]]


def test_show_says_what_makes_a_version_and_prints_the_code_of_its_full_state(
    mvc: Mvc, made: list[str]
) -> None:
    assert (
        f"Steps:    2 batches of 16 rows after {made[0][:10]}, not proven"
        in mvc("show", made[2]).out
    )
    mvc("retrain", made[2], "--trust-code")
    assert f"after {made[0][:10]}, replayed in about " in mvc("show", made[2]).out
    assert mvc("show", made[2], "--json").json["steps"]["batches"] == 2
    assert mvc("show", made[0], "--json").json["steps"] is None
    code = mvc("show", made[2], "--code").out
    assert "builds the model: tests.recipes.stepped.Net()" in code
    assert "tests.recipes.stepped:step(" in code


def test_repack_names_versions_that_a_lower_bound_makes_too_slow(mvc: Mvc, made: list[str]) -> None:
    mvc("forget", "--weights", made[1], made[2], "--trust-code")
    mvc("repack", "--interval", 1)
    mvc("gc", "--grace", 0)
    assert "would take longer" not in mvc("repack", "-n").err
    mvc("config", "store.max_recovery", "0.000001")
    said = mvc("repack", "-n", code=None).err
    assert f"'mvc retrain {made[1][:10]} --trust-code' stores" in said


def test_retrain_says_whether_a_tolerance_was_needed(mvc: Mvc, tmp_path: Path) -> None:
    with library.Repository.open(mvc.folder) as repo:
        recorded(repo, tmp_path / "data", 2, recipe=unseeded)
    said = mvc("retrain", "HEAD", "--trust-code", "--tolerance", "5").err
    assert "replayed " in said and "not proven" in said
    assert "replayed within " in mvc("show", "HEAD").out
    told = mvc("retrain", "HEAD", "--trust-code", "--tolerance", "5", "--json").json["versions"]
    assert told[0]["made"] == "near" and 0 < told[0]["distance"] <= 5
    mvc("forget", "--weights", "HEAD", "--trust-code")
    mvc("checkout", "HEAD", "-o", "kept.safetensors")


def test_fsck_counts_what_was_trained_in_another_environment(
    mvc: Mvc, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mvc("forget", "--weights", made[1], made[2], "--trust-code")
    mvc("gc", "--grace", 0)
    assert "another environment" not in mvc("fsck").err
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "VSX")
    assert "2 versions without weights: trained in another environment" in mvc("fsck").err
