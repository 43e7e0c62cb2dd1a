"""The aims of a repack: one at a time, and an empty or false value is an aim as any other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import mvc
from mvc.errors import Unattainable, WrongUsage

AIMS: dict[str, Any] = {
    "interval": 2,
    "max_recovery": 5.0,
    "max_size": 10**9,
    "add": ["HEAD~1"],
    "remove": ["HEAD~3"],
    "add_queried": 1,
}
_LISTS = {"add", "remove"}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mvc.Repository]:
    with mvc.Repository.init(tmp_path_factory.mktemp("aims")) as repo:
        for i in range(4):
            w = np.random.default_rng(1).standard_normal(500)
            repo.commit(
                {"w": w + (np.arange(500) % 50 == i)}, options=mvc.CommitOptions(reset_point=i == 2)
            )
        repo.checkout("HEAD~1")
        yield repo


def _unchanged(repo: mvc.Repository, **aims: Any) -> str:
    """What is said of aims that are refused; nothing is done."""
    before = next(iter(repo.operations())).number
    with pytest.raises(WrongUsage) as refused:
        repo.storage.repack(**aims)
    assert next(iter(repo.operations())).number == before
    assert "\n" not in refused.value.message
    return refused.value.message


@pytest.mark.parametrize("pair", list(combinations(AIMS, 2)), ids="-".join)
def test_two_aims_are_refused(repo: mvc.Repository, pair: tuple[str, str]) -> None:
    first, second = (name.replace("_", "-") for name in pair)
    said = _unchanged(repo, **{name: AIMS[name] for name in pair})
    assert said == f"{first} and {second} exclude each other"


@pytest.mark.parametrize("pair", list(combinations(AIMS, 2)), ids="-".join)
def test_a_second_aim_counts_although_it_is_nothing(
    repo: mvc.Repository, pair: tuple[str, str]
) -> None:
    first, second = pair
    said = f"{first} and {second} exclude each other".replace("_", "-")
    assert _unchanged(repo, **{first: AIMS[first], second: _nothing(second)}) == said
    assert _unchanged(repo, **{first: _nothing(first), second: AIMS[second]}) == said


def _nothing(aim: str) -> Any:
    return [] if aim in _LISTS else 0


@pytest.mark.parametrize("aim", AIMS)
def test_nothing_is_no_aim(repo: mvc.Repository, aim: str) -> None:
    if aim == "max_size":
        with pytest.raises(Unattainable, match="no layout fits into 0 bytes"):
            repo.storage.repack(max_size=0)
        return
    assert aim.replace("_", "-") in _unchanged(repo, **{aim: _nothing(aim)}).replace("_", "-")


@pytest.mark.parametrize("aim", AIMS)
def test_each_alone_is_planned(repo: mvc.Repository, aim: str) -> None:
    plan = repo.storage.repack(**{aim: AIMS[aim]}, dry_run=True).plan
    assert str(plan.goal).startswith(aim.replace("_", "-").removesuffix("-queried"))
