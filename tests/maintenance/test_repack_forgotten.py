"""repack after forget, before and after gc: a forgotten version may still be the base of others."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import mvc
from mvc.errors import StateForgotten, Unattainable
from mvc.ids import CommitId
from tests.counters import count
from tests.repo.lc.histories import bits, start

_VERSIONS, _RESET_POINTS = 6, (0, 3)
HISTORIES = {
    "chain": ("chain", "lossless"),
    "skips": ("skip:2", "lossless"),
    "groups": ("skip:2", "vsol"),
    "steps": ("chain", "lc:x=2,huffman"),
}
FORGOTTEN = ([0], [1], [2], [3], [4], [0, 1], [2, 4], [1, 2, 3])
Aim = Mapping[str, Any]
AIMS: tuple[Aim, ...] = (
    {"remove": [0]}, {"remove": [3]}, {"remove": [0, 3]}, {"add": [1]}, {"add": [5]},
    {"interval": 1}, {"interval": 4}, {"max_recovery": 10.0},
    {"max_size": 10**9},
)  # fmt: skip


def _moved(value: torch.Tensor) -> torch.Tensor:
    """A twentieth of it changes, so that a delta is worth it."""
    return value + (torch.rand(value.shape) < 0.05) * 0.01 if len(value) > 9 else value


def _history(root: Path, layout: str, pipeline: str) -> list[tuple[CommitId, dict[str, bytes]]]:
    """Every version with its bits; a tag keeps each from rules."""
    made, state = [], {"w": torch.randn(60, 50), "b": torch.randn(400), "frozen": torch.ones(9)}
    with start(root, {"store.layout": layout}) as repo:
        for i in range(_VERSIONS):
            state = {name: _moved(value) for name, value in state.items()}
            full = i in _RESET_POINTS
            done = repo.commit(
                state, pipeline=pipeline, options=mvc.CommitOptions(reset_point=full)
            )
            state = state if done.state is None else done.state
            repo.tag(f"v{i}")
            made.append((done.id, bits(state)))
    return made


def _forget(repo: mvc.Repository, numbers: list[int], *, by_rule: bool) -> None:
    if not by_rule:
        repo.storage.forget([f"v{i}" for i in numbers])
        return
    for i in numbers:
        repo.delete_ref("tag", f"v{i}")
    chosen = repo.storage.forget(keep_last=1)
    assert len(chosen.commits) == len(numbers)


def _repack(repo: mvc.Repository, ids: list[CommitId], aim: Aim) -> None:
    """An aim that names what cannot be done is refused as such."""
    revs = {key: [ids[i] for i in value] for key, value in aim.items() if isinstance(value, list)}
    try:
        repo.storage.repack(**{**aim, **revs})
    except StateForgotten:
        assert revs
    except Unattainable:
        assert "remove" in revs


@pytest.mark.parametrize("name", ["chain", "skips", "groups"])
@pytest.mark.parametrize("number", _RESET_POINTS)
def test_a_removed_reset_point_is_one_no_more(tmp_path: Path, name: str, number: int) -> None:
    """A tensor that all versions have shares a group with the others of the first one."""
    made = _history(tmp_path, *HISTORIES[name])
    with mvc.Repository.open(tmp_path) as repo:
        done = repo.storage.repack(remove=[made[number][0]])
        assert done.plan.removed == (made[number][0],) and done.now is not None
        (other,) = set(_RESET_POINTS) - {number}
        assert done.now.reset_points == (made[other][0],)
        _check(repo, made, [])


def test_a_reset_point_that_another_one_equals_is_not_removed(tmp_path: Path) -> None:
    with start(tmp_path, {}) as repo:
        states = [{"w": torch.randn(60, 50)}]
        states.append({"w": _moved(states[0]["w"])})
        ids = [
            repo.commit(states[i % 2], options=mvc.CommitOptions(reset_point=i != 1)).id
            for i in range(3)
        ]
        with pytest.raises(Unattainable, match=f"version {ids[0].short} stays a reset point"):
            repo.storage.repack(remove=[ids[0]])


@pytest.mark.parametrize("name", HISTORIES)
def test_remove_after_forget(tmp_path: Path, name: str) -> None:
    _try_all(tmp_path, name, AIMS[:2], by_rule=False)


@pytest.mark.long
@pytest.mark.parametrize("by_rule", [False, True], ids=["by name", "by rule"])
@pytest.mark.parametrize("name", HISTORIES)
def test_every_aim_after_forget(tmp_path: Path, name: str, by_rule: bool) -> None:
    _try_all(tmp_path, name, AIMS, by_rule=by_rule)


def _try_all(tmp_path: Path, name: str, aims: Sequence[Aim], *, by_rule: bool) -> None:
    made = _history(tmp_path / "made", *HISTORIES[name])
    ids = [id_ for id_, _ in made]
    wrong = []
    for numbers, aim in product(FORGOTTEN, aims):
        root = tmp_path / "copy"
        shutil.copytree(tmp_path / "made", root)
        try:
            with mvc.Repository.open(root) as repo:
                _forget(repo, numbers, by_rule=by_rule)
                _repack(repo, ids, aim)
                _check(repo, made, numbers)
                repo.storage.gc(grace=timedelta(0))
                _repack(repo, ids, aim)
                _check(repo, made, numbers)
        except Exception as error:
            wrong.append(f"{numbers} forgotten, {dict(aim)}: {error!r}")
        shutil.rmtree(root)
    assert wrong == []
    count(f"aims of repack after forget, {name}", tried=len(FORGOTTEN) * len(aims), wrong=0)


def _check(
    repo: mvc.Repository, made: list[tuple[CommitId, dict[str, bytes]]], forgotten: list[int]
) -> None:
    for i, (id_, want) in enumerate(made):
        if i in forgotten:
            with pytest.raises(StateForgotten):
                repo.checkout(id_)
        else:
            assert bits(repo.checkout(id_)) == want
    assert repo.storage.fsck(full=True).problems == ()
