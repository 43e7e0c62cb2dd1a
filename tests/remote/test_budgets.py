"""Bytes and round trips: one new version costs its records, nothing new costs one look."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import mvc
from mvc.testing import open_quietly
from tests.benchmarks.bench_histories import build
from tests.remote.kit.mixed import model, moved
from tests.remote.kit.places import Place, place

KIB = 1024
PUSH, FETCH, IDLE = 3, 2, 1
"""Round trips."""


def trips(remote: Place, act: Callable[[], object]) -> tuple[int, int]:
    """Round trips and bytes of that."""
    with remote.counted() as wire:
        act()
        return wire.trips, wire.up + wire.down


@pytest.mark.parametrize("kind", ["http", pytest.param("ssh", marks=pytest.mark.long)])
def test_one_new_version_costs_its_records(kind: str, tmp_path: Path) -> None:
    state = model(1, (300, 400))
    with place(kind, tmp_path) as remote, mvc.Repository.init(tmp_path / "a") as a:
        for i in range(3):
            state = moved(state, i)
            a.commit(state)
        a.remotes.add("origin", remote.url)
        a.push("origin", ["main"])
        with mvc.clone(remote.url, tmp_path / "b") as b:
            records = a.commit(moved(state, 9)).stored_bytes
            assert records > 64 * KIB
            for act, most in (
                (lambda: a.push("origin", ["main"]), PUSH),
                (lambda: b.fetch("origin"), FETCH),
            ):
                count, sent = trips(remote, act)
                assert count <= most
                assert sent <= 1.02 * records + 32 * KIB
            for idle in (lambda: b.fetch("origin"), lambda: a.push("origin", ["main"])):
                count, sent = trips(remote, idle)
                assert (count, sent <= 4 * KIB) == (IDLE, True)
        whole = sum(path.stat().st_size for path in (tmp_path / "a/.mvc/packs").iterdir())
        count, sent = trips(remote, lambda: mvc.clone(remote.url, tmp_path / "c").close())
        assert count <= FETCH
        assert sent <= 1.02 * whole + 32 * KIB


@pytest.mark.parametrize("versions", [10, 200, pytest.param(100_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["http", pytest.param("ssh", marks=pytest.mark.long)])
def test_round_trips_do_not_grow_with_the_history(kind: str, versions: int, tmp_path: Path) -> None:
    served = build(tmp_path / "built", versions)
    with place(kind, tmp_path, served) as remote:
        mvc.clone(remote.url, tmp_path / "a").close()
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        with open_quietly(tmp_path / "a") as a, open_quietly(tmp_path / "b") as b:
            a.commit({key: value + 1 for key, value in a.checkout("HEAD").items()})
            for act, most in (
                (lambda: a.push("origin", ["main"]), PUSH),
                (lambda: b.fetch("origin"), FETCH),
                (lambda: b.fetch("origin"), IDLE),
            ):
                count, sent = trips(remote, act)
                assert count <= most
                assert sent <= 40 * KIB
