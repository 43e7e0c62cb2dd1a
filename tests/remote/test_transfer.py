"""A transfer between two open repositories: what it takes, what it costs, what arrives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.remote.door import Wanted
from mvc.testing import open_quietly
from mvc.testing.history import History
from tests.remote.kit.carrying import carry
from tests.remote.kit.same import assert_clean, known, states


@pytest.fixture
def source(tmp_path: Path, mixed_history: Callable[[Path], Path]) -> Path:
    return mixed_history(tmp_path / "source")


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Repository]:
    Repository.init(tmp_path / "target").close()
    with open_quietly(tmp_path / "target") as repo:
        yield repo


def test_a_history_of_all_kinds_arrives(source: Path, target: Repository) -> None:
    with open_quietly(source) as repo:
        took = carry(repo, target)
        ids = known(repo)
        assert states(target, ids) == states(repo, ids)
        assert [target.version(id_) for id_ in ids] == [repo.version(id_) for id_ in ids]
        assert_clean(target)
        assert took.tries == 1
        again = carry(repo, target, Wanted(after=took.place))
        assert again.wire < 256
        assert again.last is not None and again.last.moved == ()


def test_one_version_more_costs_its_records(tmp_path: Path, target: Repository) -> None:
    history = History(tmp_path / "source", 4)
    place = carry(history.repo, target).place
    made = history.commit()
    stored = sum(
        region.length
        for commit in [made]
        for entry in history.repo.context.store.snapshot.publishing(commit)
        for region in entry.entry.regions
    )
    took = carry(history.repo, target, Wanted(after=place, have=frozenset(history.ids[:4])))
    assert took.wire <= 1.02 * stored + (32 << 10)
    assert (took.slices, took.tries) == (1, 1)
    assert states(target, history.ids) == states(history.repo, history.ids)
    assert_clean(target)
    history.close()
