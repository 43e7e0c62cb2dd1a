"""Histories of every kind by every transport; what is committed after a clone costs the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import mvc
from mvc.api.repository import Repository
from mvc.io.files import FileSystem
from mvc.repo.config import set_value
from mvc.testing import open_quietly
from tests.frozen.test_frozen import READ, unpacked
from tests.remote.conftest import Copy
from tests.remote.kit.mixed import model, moved
from tests.remote.kit.places import KINDS, place
from tests.remote.kit.same import assert_clean, assert_same, known, refs_of

TORN = {"one-copy", "torn-first-copy", "torn-second-copy"}
"""Their journals lack a copy, which a source may have and a clone has not."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_history_of_all_kinds_goes_through_a_transport(
    kind: str, mixed_history: Copy, tmp_path: Path
) -> None:
    with place(kind, tmp_path) as remote, open_quietly(mixed_history(tmp_path / "a")) as source:
        source.remotes.add("origin", remote.url)
        source.push("origin", every=True, partial=True)
        with mvc.clone(remote.url, tmp_path / "b") as clone:
            assert_same(source, clone)
            their = {name: id_ for name, id_ in refs_of(source).items() if name != "heads/main"}
            assert clone.find("HEAD") == source.find("main")
            for name, id_ in their.items():
                short = name.partition("/")[2]
                assert clone.find(f"origin/{short}" if name.startswith("heads") else short) == id_

        def look(owned: Repository) -> None:
            assert_same(source, owned)
            assert refs_of(owned) == refs_of(source)

        remote.own(look, reads=True)


@pytest.mark.parametrize("name", sorted(READ - TORN))
def test_repositories_of_earlier_programs_are_cloned(name: str, tmp_path: Path) -> None:
    root = unpacked(name, tmp_path / "a")
    with mvc.clone(str(root), tmp_path / "b") as clone, open_quietly(root) as source:
        assert_same(source, clone, clean=False)
        assert_clean(clone)


def line(count: int, seed: int) -> list[Mapping[str, np.ndarray]]:
    states, state = [], model(seed)
    for i in range(count):
        state = moved(state, 5000 + i)
        states.append(state)
    return states


def further(repo: Repository, states: list[Mapping[str, np.ndarray]]) -> tuple[int, int]:
    """Stored bytes of these commits; deltas to each of them, added up."""
    stored = sum(repo.commit(state).stored_bytes for state in states)
    log = repo.log("HEAD", mvc.LogOptions(prices=True), limit=len(states))
    return stored, sum(entry.storage.deltas for entry in log if entry.storage is not None)


def laid_out(root: Path, layout: str) -> Repository:
    set_value(FileSystem(), root / ".mvc/config.yaml", "store.layout", layout)
    return open_quietly(root)


@pytest.mark.parametrize("layout", ["skip:4", "skip:2", "chain"])
def test_the_next_commits_after_a_clone_cost_what_they_cost_in_the_source(
    layout: str, tmp_path: Path
) -> None:
    states = line(43, 2)
    Repository.init(tmp_path / "a").close()
    with laid_out(tmp_path / "a", layout) as source:
        for state in states[:23]:
            source.commit(state)
    mvc.clone(str(tmp_path / "a"), tmp_path / "b").close()
    with laid_out(tmp_path / "a", layout) as source, laid_out(tmp_path / "b", layout) as clone:
        expected, found = further(source, states[23:]), further(clone, states[23:])
        print(layout, found, expected)
        assert found[0] <= 1.05 * expected[0], (found, expected)
        assert found[1] <= 1.05 * expected[1] + 1, (found, expected)
        assert_clean(clone)
        ids = known(clone)
    assert len(ids) == 43
